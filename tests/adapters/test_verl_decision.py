"""Sessions and padding, and then the shared policy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samplemask import MaskPolicy, failure_kinds
from samplemask_verl.decision import Rows, decide, with_signal
from samplemask_verl.verdicts import RowVerdicts


def verdicts(masked, kinds=None, failed=None):
    masked = np.array(masked, dtype=bool)
    return RowVerdicts(
        masked, kinds or [None] * len(masked), True, np.array(failed or masked * 0, dtype=bool)
    )


def rows(groups, rewards=None, **columns):
    return Rows(np.array(list(groups), dtype=object), np.array(rewards or [1.0] * len(groups)), **columns)


def test_each_row_is_its_own_session_where_there_are_none():
    plan = decide(rows("aaaa"), verdicts([0, 1, 0, 0]), MaskPolicy()).plan
    assert plan.trains_B.tolist() == [True, False, True, True]
    assert plan.votes_B.tolist() == [True, False, True, True]


def test_the_account_counts_sessions_by_their_verdicts_and_not_by_the_policy():
    scored_kind = MaskPolicy(scored_kinds={"agent_timeout"})
    session = ["s0", "s1", "s1", "s2", "s3"]
    kinds = [None, "agent_timeout", None, "NodeFailure", None]
    said = verdicts([0, 1, 0, 1, 0], kinds, failed=[0, 0, 0, 1, 0])
    padding = np.array([0, 0, 0, 0, 1], dtype=bool)
    batch = rows("aaaaa", [1.0, 0.5, 0.25, 0.0, 9.0], session_B=session, padding_B=padding)
    decision = decide(batch, said, scored_kind)
    assert decision.counts.masked == 1
    counts = decision.sessions.counts()
    assert (counts.scored, counts.masked, counts.failed) == (1, 1, 1)
    assert counts.kinds == {"agent_timeout": 1, "NodeFailure": 1}
    assert (counts.reward, counts.reward_unmasked) == (1.25 / 3, 1.0)
    some = decision.sessions.counts([1, 2])
    assert (some.scored, some.masked, some.failed) == (0, 1, 1)
    assert some.kinds == {"agent_timeout": 1, "NodeFailure": 1}
    assert decision.sessions.group_S.tolist() == ["a"] * 3


@pytest.mark.parametrize("session", [None, ["s0", "s1"]])
def test_the_account_has_each_session_as_its_verdict_says(session):
    said = verdicts([1, 1], ["a:a", "a:b"], failed=[0, 1])
    sessions = decide(rows("aa", session_B=session), said, MaskPolicy()).sessions
    assert sessions.kinds_S == ["a:a", "a:b"]
    assert sessions.failed_S.tolist() == [False, True]


def test_one_flagged_row_masks_its_whole_session():
    sessions = ["s0", "s1", "s1", "s2"]
    decision = decide(rows("aaaa", session_B=sessions), verdicts([0, 0, 1, 0]), MaskPolicy())
    assert decision.plan.trains_B.tolist() == [True, False, False, True]
    assert decision.metrics["mask_sample/masked_pct"] == pytest.approx(100 / 3)
    assert decision.metrics["mask_sample/rows_trained"] == 2.0


def test_a_session_is_one_voter_however_many_rows_it_has():
    plan = decide(rows("aaa", session_B=["s0"] * 3), verdicts([0, 0, 0]), MaskPolicy()).plan
    assert plan.trains_B.tolist() == [False] * 3
    assert plan.thin_groups == 1


def test_a_sessions_reward_is_that_of_its_last_row_wherever_it_stands():
    made = rows(
        "aaaa",
        rewards=[0.0, 1.0, 0.25, 0.0],
        session_B=["s0", "s1", "s1", "s2"],
        order_B=np.array([0, 1, 0, 0]),
    )
    decision = decide(made, verdicts([1, 0, 0, 0], ["session_lost", None, None, None]), MaskPolicy())
    assert decision.metrics["mask_sample/reward_unmasked"] == 0.5
    assert decision.metrics["mask_sample/kind/session_lost"] == 1.0


def test_a_sessions_kind_is_found_on_whichever_row_carries_it():
    kinds = [None, None, "agent_timeout", None]
    decision = decide(
        rows("aaaa", session_B=["s0", "s1", "s1", "s2"]), verdicts([0, 0, 1, 0], kinds), MaskPolicy()
    )
    assert decision.metrics["mask_sample/kind/agent_timeout"] == 1.0
    kept = decide(
        rows("aaaa", session_B=["s0", "s1", "s1", "s2"], order_B=np.array([0, 1, 0, 0])),
        verdicts([0, 0, 1, 0], kinds),
        MaskPolicy(scored_kinds=["agent_timeout"]),
    )
    assert kept.plan.trains_B.all()


def test_padding_neither_trains_nor_votes_nor_counts():
    padding = np.array([False, False, False, True])
    decision = decide(rows("aaap", padding_B=padding), verdicts([0, 1, 0, 1]), MaskPolicy())
    assert decision.plan.trains_B.tolist() == [True, False, True, False]
    assert decision.plan.votes_B.tolist() == [True, False, True, False]
    assert decision.plan.masked_B.tolist() == [False, True, False, False]
    assert decision.metrics["mask_sample/masked_pct"] == pytest.approx(100 / 3)
    assert decision.plan.thin_groups == 0


def test_a_batch_of_padding_only_trains_nobody():
    decision = decide(rows("pp", padding_B=np.array([True, True])), verdicts([0, 0]), MaskPolicy())
    assert not decision.plan.trains_B.any()


def test_a_healthy_batch_has_no_metrics():
    decision = decide(rows("aabb"), verdicts([0] * 4), MaskPolicy())
    assert decision.plan.changes_nothing
    assert decision.metrics == {}


def test_loss_multiplier_lets_a_masked_row_vote_but_not_with_a_reward_that_is_no_number():
    made = rows("aaaa", rewards=[1.0, 7.0, np.nan, 0.0])
    plan = decide(made, verdicts([0, 1, 1, 0]), MaskPolicy(action="loss_multiplier")).plan
    assert plan.votes_B.tolist() == [True, True, False, True]
    assert plan.trains_B.tolist() == [True, False, False, True]


def test_a_scored_kind_without_a_reward_stays_masked():
    made = rows("aaaa", rewards=[1.0, np.nan, 0.5, 0.0])
    kinds = [None, "agent_timeout", "agent_timeout", None]
    decision = decide(made, verdicts([0, 1, 1, 0], kinds), MaskPolicy(scored_kinds=["agent_timeout"]))
    assert decision.plan.trains_B.tolist() == [True, False, True, True]
    assert decision.metrics["mask_sample/kind/samplemask:reward_not_finite"] == 1.0


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.integers(1, 3)), min_size=1, max_size=8),
    st.randoms(),
)
def test_the_order_of_rows_does_not_matter(sessions, random):
    table = [
        (group, f"s{number}", order, masked and order == 0)
        for number, (group, masked, size) in enumerate(sessions)
        for order in range(size)
    ]

    def trains(table):
        groups, names, orders, masked = zip(*table, strict=True)
        made = rows(groups, session_B=list(names), order_B=np.array(orders))
        plan = decide(made, verdicts(masked), MaskPolicy()).plan
        return dict(zip([row[1:3] for row in table], plan.trains_B.tolist(), strict=True))

    shuffled = list(table)
    random.shuffle(shuffled)
    assert trains(table) == trains(shuffled)


def test_most_groups_with_a_single_rollout_are_said_once(caplog, monkeypatch):
    monkeypatch.setattr(failure_kinds, "_reported", set())
    with caplog.at_level("WARNING", logger="samplemask"):
        for _ in range(2):
            decide(rows("abcc"), verdicts([0] * 4), MaskPolicy())
    (record,) = caplog.records
    assert record.message == (
        "2 of 3 groups hold a single rollout, so they have no group statistics and none of them trains "
        "(min_valid). Check what sets uid and rollout.n; algorithm.mask_sample.min_valid=1 keeps verl's "
        "own rule for such groups. Said once."
    )


def test_a_group_that_failures_made_thin_is_no_reason_to_doubt_the_ids(caplog, monkeypatch):
    monkeypatch.setattr(failure_kinds, "_reported", set())
    decide(rows("aabb"), verdicts([1, 0, 1, 0]), MaskPolicy())
    decide(rows("abb"), verdicts([0, 0, 0]), MaskPolicy())  # half of the groups are not most of them
    assert not caplog.records


@pytest.mark.parametrize(
    ("masked", "kinds", "counted"),
    [
        ([1, 0, 0, 0], ["session_lost", "agent_timeout", None, None], "session_lost"),
        ([1, 1, 0, 0], ["session_lost", "agent_timeout", None, None], "session_lost"),
        ([1, 1, 0, 0], ["agent_timeout", "session_lost", None, None], "session_lost"),
        ([1, 1, 0, 0], [None, "agent_timeout", None, None], "samplemask:unspecified"),
    ],
)
def test_a_scored_row_does_not_pardon_another_row_of_its_session(masked, kinds, counted):
    made = rows("aaaa", session_B=["s0", "s0", "s1", "s2"])
    decision = decide(made, verdicts(masked, kinds), MaskPolicy(scored_kinds=["agent_timeout"]))
    assert decision.plan.trains_B.tolist() == [False, False, True, True]
    assert decision.metrics[f"mask_sample/kind/{counted}"] == 1.0


def test_a_session_of_scored_kinds_only_stays_scored():
    made = rows("aaaa", session_B=["s0", "s0", "s1", "s2"])
    decision = decide(
        made,
        verdicts([1, 0, 0, 0], ["agent_timeout", None, None, None]),
        MaskPolicy(scored_kinds=["agent_timeout"]),
    )
    assert decision.plan.trains_B.tolist() == [True] * 4


def test_a_masked_kind_of_the_final_row_outweighs_a_scored_flag():
    made = rows("aaaa", session_B=["s0", "s0", "s1", "s2"])
    policy = MaskPolicy(masked_kinds=["judge_failed"], scored_kinds=["agent_timeout"])
    decision = decide(made, verdicts([1, 0, 0, 0], ["agent_timeout", "judge_failed", None, None]), policy)
    assert decision.plan.trains_B.tolist() == [False, False, True, True]
    assert decision.metrics["mask_sample/kind/judge_failed"] == 1.0


def test_voters_with_fewer_than_two_tokens_between_them_cannot_be_estimated():
    decision = decide(rows("aaaa"), verdicts([0, 1, 0, 1]), MaskPolicy())
    assert with_signal(decision, np.array([1, 9, 1, 9])) is decision
    silent = with_signal(decision, np.array([1, 9, 0, 9]))
    assert silent.plan.trains_B.tolist() == silent.plan.votes_B.tolist() == [False] * 4
    assert silent.plan.masked_B.tolist() == [False, True, False, True]
    assert (silent.counts.trained, silent.counts.masked) == (0, 2)


def test_a_batch_without_voters_stays_as_it_was_decided():
    decision = decide(rows("aa"), verdicts([1, 1]), MaskPolicy())
    assert with_signal(decision, np.array([1, 1])) is decision
