"""What the failures did to training: advantages as it saw them, against advantages without them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from samplemask.columns import NO_INDEX, SCORED, Groups, Rollouts, chosen
from samplemask.policy import MaskPolicy, plan_rows
from samplemask.quality import GROUP, mean, that_ran


def training_cost(rollouts: Rollouts, policy: MaskPolicy | None = None) -> dict[str, Any]:
    """Compare each group's advantages with and without its failures, in the form of `--json`.

    The advantage is reward minus the group's mean (GRPO without its division by the standard
    deviation). What training saw: every row of the group with the reward that it carries, 0 where it
    carries none. Against it: masked and failed rows neither train nor vote, and a group with fewer
    than two measured rows does not train (`MaskPolicy`).

    Args:
        rollouts: The rollouts; those without a task and those that never ran take no part.
        policy: The policy of the comparison; the default policy excludes.
    """
    ran = that_ran(rollouts)
    ran = chosen(ran, ran["task"] != NO_INDEX)
    groups, failed_B = Groups(ran, GROUP), ran["disposition"] != SCORED
    affected_G = groups.counts(failed_B) > 0
    whole = {
        "groups": groups.count,
        "groups_affected": int(affected_G.sum()),
        "rows_measured": int((~failed_B).sum()),
    }
    return {**whole, **_in_affected_groups(ran[affected_G[groups.code_R]], policy or MaskPolicy())}


def _in_affected_groups(ran: Rollouts, policy: MaskPolicy) -> dict[str, Any]:
    """Compare advantages; in a group without a failure nothing changes."""
    groups, masked_B = Groups(ran, GROUP), ran["disposition"] != SCORED
    reward_B = np.where(np.isfinite(ran["reward"]), ran["reward"], 0.0)
    plan = plan_rows(masked_B, groups.code_R, policy)
    with np.errstate(over="ignore", invalid="ignore"):  # rewards near the largest float
        saw_B = _advantages(reward_B, groups, np.ones(len(ran), dtype=bool))
        right_B = np.where(plan.trains_B, _advantages(reward_B, groups, plan.votes_B), 0.0)
        shift_B = np.abs(saw_B - right_B)[~masked_B]
    voters_G, signal_G = groups.counts(plan.votes_B), groups.counts(right_B != 0) > 0
    return {
        "groups_with_signal_only_from_failures": int(((groups.counts(saw_B != 0) > 0) & ~signal_G).sum()),
        "groups_lost": int(((groups.size_G > 1) & (voters_G == 0)).sum()),
        "rows_trained_on_nothing": int((masked_B & (saw_B != 0)).sum()),
        "advantage_shift": {"mean": mean(shift_B), "largest": _largest(shift_B)},
        "sign_flips": int((~masked_B & (np.sign(saw_B) * np.sign(right_B) < 0)).sum()),
    }


def _advantages(
    reward_B: npt.NDArray[np.float64], groups: Groups, votes_B: npt.NDArray[np.bool_]
) -> npt.NDArray[np.float64]:
    mean_G = np.nan_to_num(groups.means(reward_B, votes_B), nan=0.0)
    advantage_B: npt.NDArray[np.float64] = reward_B - mean_G[groups.code_R]
    # Equal rewards give exactly no signal; the mean of 0.1, 0.1, 0.1 is not quite 0.1.
    advantage_B[np.abs(advantage_B) <= 1e-12 * np.maximum(1.0, np.abs(reward_B))] = 0.0
    return advantage_B


def _largest(values: npt.NDArray[np.float64]) -> float | None:
    finite = values[np.isfinite(values)]
    return float(finite.max()) if len(finite) else None
