"""Edges of the verl adapter's row selection that a mutation run found untested."""

import numpy as np
import pytest

from samplemask import MaskPolicy
from samplemask_verl.decision import Decision, Rows, decide
from samplemask_verl.verdicts import RowVerdicts


def decided(groups, masked, rewards=None, kinds=None, policy=None, **columns) -> Decision:
    rows = Rows(np.array(list(groups), dtype=object), rewards or [1.0] * len(masked), **columns)
    masked = np.array(masked, dtype=bool)
    verdicts = RowVerdicts(masked, kinds or [None] * len(masked), True, np.zeros_like(masked))
    return decide(rows, verdicts, policy or MaskPolicy())


def test_dropped_groups_and_outages_reach_the_rows_plan():
    assert decided("aab", [1, 0, 0], policy=MaskPolicy(action="drop_group")).plan.dropped_groups == 1
    skip = MaskPolicy(max_masked_fraction=0.0, outage_min_rows=1, on_outage="skip_step")
    assert decided("aab", [1, 0, 0], policy=skip).plan.outage is True
    assert decided("aab", [0, 0, 0], policy=skip).plan.outage is False


def test_the_trained_rows_of_sessions_are_counted_in_rows():
    decision = decided("aaaaa", [0, 0, 0, 0, 1], session_B=["s0", "s1", "s1", "s1", "s2"])
    assert decision.metrics["mask_sample/rows_trained"] == 4.0
    assert decision.metrics["mask_sample/masked_pct"] == pytest.approx(100 / 3)


def test_the_plans_arrays_are_booleans():
    plan = decided("aaa", [0, 1, 0], padding_B=np.array([False, False, False])).plan
    assert {plan.trains_B.dtype, plan.votes_B.dtype, plan.masked_B.dtype} == {np.dtype(bool)}


def test_a_reward_column_of_objects_is_read_as_numbers():
    decision = decided("aaa", [0, 1, 0], rewards=[1.0, None, 0.5])
    assert decision.metrics["mask_sample/reward"] == 0.75


def test_ignore_leaves_even_a_row_without_a_number_its_vote():
    plan = decided("aa", [1, 0], rewards=[float("nan"), 1.0], policy=MaskPolicy(action="ignore")).plan
    assert plan.votes_B.tolist() == [True, True]


def test_a_thin_group_stays_silent_beside_a_row_without_a_number():
    policy = MaskPolicy(action="loss_multiplier")
    plan = decided("aaab", [1, 0, 0, 0], rewards=[float("nan"), 1.0, 1.0, 1.0], policy=policy).plan
    assert plan.votes_B.tolist() == [False, True, True, False]


def test_a_remark_of_an_earlier_row_does_not_become_the_kind_of_an_unmasked_session():
    kinds = ["agent_timeout", "judge_failed", None, None]
    decision = decided(
        "aaaa",
        [0, 0, 0, 0],
        kinds=kinds,
        policy=MaskPolicy(masked_kinds={"agent_timeout"}),
        session_B=["s0", "s0", "s1", "s2"],
    )
    assert decision.plan.masked_B.tolist() == [False] * 4


@pytest.mark.parametrize(
    ("masked", "kinds"),
    [
        ([1, 1, 0], ["session_lost", "judge_failed", None]),  # the last flagged row's
        ([0, 1, 0], [None, "judge_failed", "agent_timeout"]),  # not that of a final row nobody flagged
    ],
)
def test_the_last_flagged_row_names_the_kind_of_its_session(masked, kinds):
    policy = MaskPolicy(masked_kinds={"agent_timeout"})
    made = {"kinds": [*kinds, None, None], "policy": policy, "session_B": ["s0"] * 3 + ["s1", "s2"]}
    metrics = decided("aaaaa", [*masked, 0, 0], **made).metrics
    assert {name for name in metrics if "/kind/" in name} == {"mask_sample/kind/judge_failed"}


def test_the_kind_of_a_masked_session_is_the_first_that_a_masked_row_names():
    decision = decided(
        "aaaaa",
        [1, 1, 0, 0, 0],
        kinds=["agent_timeout", None, None, None, None],
        session_B=["s0"] * 3 + ["s1", "s2"],
    )
    assert decision.metrics["mask_sample/kind/agent_timeout"] == 1.0
