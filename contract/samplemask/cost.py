"""What the failures did to training: advantages as it saw them, against advantages without them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from samplemask.columns import NO_INDEX, SCORED, Groups, Rollouts
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
    ran = ran[ran["task"] != NO_INDEX] if (ran["task"] == NO_INDEX).any() else ran
    groups = Groups(ran, GROUP)
    codes_B, count = groups.code_R, groups.count
    masked_B = ran["disposition"] != SCORED
    reward_B = np.where(np.isfinite(ran["reward"]), ran["reward"], 0.0)
    everyone_B = np.ones(len(ran), dtype=bool)
    plan = plan_rows(masked_B, codes_B, policy or MaskPolicy())
    with np.errstate(over="ignore", invalid="ignore"):  # rewards near the largest float
        saw_B = _advantages(reward_B, codes_B, count, everyone_B)
        right_B = np.where(plan.trains_B, _advantages(reward_B, codes_B, count, plan.votes_B), 0.0)
        shift_B = np.abs(saw_B - right_B)
    affected_B = np.bincount(codes_B[masked_B], minlength=count).astype(bool)[codes_B]
    kept_B = affected_B & ~masked_B
    flips_B = kept_B & (np.sign(saw_B) * np.sign(right_B) < 0)
    return {
        "groups": count,
        "groups_affected": _count(codes_B[affected_B]),
        "groups_with_signal_only_from_failures": _count_false_signal(
            codes_B, count, saw_B, right_B, masked_B
        ),
        "groups_lost": _count_lost(codes_B, count, masked_B, plan.votes_B),
        "rows_measured": int((~masked_B).sum()),
        "rows_trained_on_nothing": int((masked_B & (saw_B != 0)).sum()),
        "advantage_shift": {"mean": mean(shift_B[kept_B]), "largest": _largest(shift_B[kept_B])},
        "sign_flips": int(flips_B.sum()),
    }


def _advantages(
    reward_B: npt.NDArray[np.float64],
    codes_B: npt.NDArray[np.intp],
    count: int,
    votes_B: npt.NDArray[np.bool_],
) -> npt.NDArray[np.float64]:
    voters_G = np.bincount(codes_B[votes_B], minlength=count)
    total_G = np.bincount(codes_B[votes_B], weights=reward_B[votes_B], minlength=count)
    mean_G = np.divide(total_G, voters_G, out=np.zeros(count), where=voters_G > 0)
    advantage_B: npt.NDArray[np.float64] = reward_B - mean_G[codes_B]
    # Equal rewards give exactly no signal; the mean of 0.1, 0.1, 0.1 is not quite 0.1.
    advantage_B[np.abs(advantage_B) <= 1e-12 * np.maximum(1.0, np.abs(reward_B))] = 0.0
    return advantage_B


def _count_false_signal(
    codes_B: npt.NDArray[np.intp],
    count: int,
    saw_B: npt.NDArray[np.float64],
    right_B: npt.NDArray[np.float64],
    masked_B: npt.NDArray[np.bool_],
) -> int:
    saw_G = np.bincount(codes_B[saw_B != 0], minlength=count) > 0
    right_G = np.bincount(codes_B[right_B != 0], minlength=count) > 0
    masked_G = np.bincount(codes_B[masked_B], minlength=count) > 0
    return int((saw_G & ~right_G & masked_G).sum())


def _count_lost(
    codes_B: npt.NDArray[np.intp],
    count: int,
    masked_B: npt.NDArray[np.bool_],
    votes_B: npt.NDArray[np.bool_],
) -> int:
    """Count the groups of two or more rows whom the failures left without a vote."""
    size_G = np.bincount(codes_B, minlength=count)
    masked_G = np.bincount(codes_B[masked_B], minlength=count)
    voters_G = np.bincount(codes_B[votes_B], minlength=count)
    return int(((size_G > 1) & (masked_G > 0) & (voters_G == 0)).sum())


def _count(codes: npt.NDArray[np.intp]) -> int:
    return len(np.unique(codes))


def _largest(values: npt.NDArray[np.float64]) -> float | None:
    finite = values[np.isfinite(values)]
    return float(finite.max()) if len(finite) else None
