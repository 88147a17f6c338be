"""What every plan keeps, whatever the batch: Hypothesis over flags, groups, kinds and policies."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from samplemask import MaskPolicy, RowPlan, plan_rows

KINDS = [None, "agent_timeout", "session_lost", "judge_failed"]
POLICIES = st.builds(
    MaskPolicy,
    action=st.sampled_from(["loss_multiplier", "exclude", "drop_group", "ignore"]),
    min_valid=st.integers(1, 4),
    drop_group_above=st.sampled_from([0.0, 0.25, 0.5, 1.0]),
    scored_kinds=st.sampled_from([frozenset(), frozenset({"agent_timeout"})]),
    masked_kinds=st.sampled_from([frozenset(), frozenset({"judge_failed"})]),
)
ROWS = st.lists(st.tuples(st.booleans(), st.integers(-2, 3), st.sampled_from(KINDS)), max_size=24)


def planned(rows, policy) -> RowPlan:
    return plan_rows([m for m, _, _ in rows], [g for _, g, _ in rows], policy, [k for _, _, k in rows])


def columns(plan: RowPlan) -> list[tuple[bool, bool, bool]]:
    return list(zip(plan.trains_B.tolist(), plan.votes_B.tolist(), plan.masked_B.tolist(), strict=True))


def counts(plan: RowPlan) -> tuple[int, int, bool]:
    return plan.dropped_groups, plan.thin_groups, plan.outage


@given(ROWS, POLICIES)
def test_whoever_trains_votes_and_no_masked_row_trains(rows, policy):
    plan = planned(rows, policy)
    assert not (plan.trains_B & ~plan.votes_B).any()
    if policy.action != "ignore":
        assert not (plan.trains_B & plan.masked_B).any()
    if policy.action in ("exclude", "drop_group"):
        assert np.array_equal(plan.trains_B, plan.votes_B)


@given(ROWS, POLICIES, st.randoms(use_true_random=False))
def test_permuting_the_rows_permutes_the_plan(rows, policy, random):
    order = list(range(len(rows)))
    random.shuffle(order)
    plan, shuffled = planned(rows, policy), planned([rows[row] for row in order], policy)
    assert columns(shuffled) == [columns(plan)[row] for row in order]
    assert counts(shuffled) == counts(plan)


@given(ROWS, POLICIES, st.permutations(["u-9", (1, 2), 10**30, -5, 0.5, b"x"]))
def test_relabelling_the_groups_changes_nothing(rows, policy, labels):
    relabelled = [(masked, labels[group + 2], kind) for masked, group, kind in rows]
    assert columns(planned(relabelled, policy)) == columns(planned(rows, policy))
    assert counts(planned(relabelled, policy)) == counts(planned(rows, policy))


@given(ROWS, POLICIES)
def test_planning_what_is_already_masked_gives_the_same_plan(rows, policy):
    plan = planned(rows, policy)
    again = [(masked, group, None) for masked, (_, group, _) in zip(plan.masked_B, rows, strict=True)]
    assert columns(planned(again, policy)) == columns(plan)


@given(ROWS, POLICIES, st.integers(1, 4))
def test_appending_a_fully_masked_group_changes_no_other_row(rows, policy, size):
    plan = planned(rows, policy)
    more = planned(rows + [(True, 99, "session_lost")] * size, policy)
    assert columns(more)[: len(rows)] == columns(plan)
    if policy.action != "ignore":
        assert not more.trains_B[len(rows) :].any()


@given(ROWS, st.integers(1, 4))
def test_exclude_plans_the_survivors_as_if_the_masked_rows_had_been_deleted(rows, min_valid):
    policy = MaskPolicy(min_valid=min_valid)
    kept = [row for row in rows if not row[0]]
    survivors = [
        column for column, row in zip(columns(planned(rows, policy)), rows, strict=True) if not row[0]
    ]
    assert survivors == columns(planned(kept, policy))


@given(ROWS, POLICIES)
def test_groups_do_not_influence_each_other(rows, policy):
    whole = columns(planned(rows, policy))
    for group in {row[1] for row in rows}:
        places = [place for place, row in enumerate(rows) if row[1] == group]
        assert [whole[place] for place in places] == columns(
            planned([rows[place] for place in places], policy)
        )


@given(ROWS, POLICIES)
def test_a_group_trains_with_min_valid_voters_or_not_at_all(rows, policy):
    plan = planned(rows, policy)
    for group in {row[1] for row in rows}:
        member = np.array([row[1] == group for row in rows])
        voters = int((plan.votes_B & member).sum())
        assert voters == 0 or voters >= policy.min_valid or policy.action == "ignore"


@given(ROWS, POLICIES)
def test_dropped_and_thin_groups_are_groups_of_the_batch(rows, policy):
    plan = planned(rows, policy)
    assert 0 <= plan.dropped_groups + plan.thin_groups <= len({row[1] for row in rows})
    silent = [
        g
        for g in {row[1] for row in rows}
        if not any(plan.votes_B[i] for i, r in enumerate(rows) if r[1] == g)
    ]
    assert plan.dropped_groups + plan.thin_groups == len(silent)


@given(ROWS, POLICIES)
def test_masking_one_more_row_never_lets_another_row_train(rows, policy):
    before = planned(rows, policy)
    for place, (masked, group, _) in enumerate(rows):
        if not masked:
            more = [*rows[:place], (True, group, "session_lost"), *rows[place + 1 :]]
            after = planned(more, policy)
            others = np.arange(len(rows)) != place
            assert not (after.trains_B & ~before.trains_B & others).any()
            break
