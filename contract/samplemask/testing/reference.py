"""Group-relative advantages in plain numpy, masked rows excluded: what the conformance suite asks for.

Sources: GRPO (Shao et al. 2024, arXiv:2402.03300), RLOO (Ahmadian et al. 2024, arXiv:2402.14740).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from samplemask.errors import ContractError
from samplemask.groups import group_codes
from samplemask.policy import MaskPolicy, plan_rows
from samplemask.testing.batches import GrpoBatch

Baseline = Literal["group_mean", "leave_one_out"]


def reference_advantage(
    batch: GrpoBatch,
    *,
    baseline: Baseline = "group_mean",
    normalize: bool = False,
    policy: MaskPolicy | None = None,
) -> npt.NDArray[np.float64]:
    """Return the advantages, float64 (B,): 0 for every row that does not train.

    The rows of one session are one rollout: it has the reward of its last row, votes once, is masked
    when any of its rows is, and its rows share one advantage.

    Args:
        batch: The batch.
        baseline: Mean of the group's voters, or of its other voters.
        normalize: Divide by the sample standard deviation (ddof 1) of the rewards behind the baseline;
            not where they are all equal.
        policy: The policy; `exclude` by default.

    Raises:
        OutageError: The batch is an outage and the policy says to raise.
    """
    if baseline not in ("group_mean", "leave_one_out"):
        raise ContractError.of("baseline", '"group_mean" or "leave_one_out"', baseline, "Choose one.")
    rollouts, codes_B = _rollouts(batch)
    last = batch.select(rollouts)
    group_R, reward_R = last.group_B, last.reward_B.astype(np.float64)
    masked_R = np.zeros(len(last), dtype=bool)
    np.logical_or.at(masked_R, codes_B[codes_B >= 0], batch.masked_B[codes_B >= 0])
    plan = plan_rows(masked_R, group_R, policy or MaskPolicy(), list(last.kinds_B))
    group_codes_R, groups = group_codes(group_R, len(last))
    advantage_R = np.zeros(len(last) + 1)  # the last one is for padding rows, whose code is -1
    for group in range(groups):
        voters = np.flatnonzero((group_codes_R == group) & plan.votes_B)
        estimated = _group(reward_R[voters], baseline, normalize)
        advantage_R[voters] = np.where(plan.trains_B[voters], estimated, 0.0)
    return advantage_R[codes_B]


def reference_estimator(**options: Any) -> Callable[[GrpoBatch], npt.NDArray[np.float64]]:
    """Return `reference_advantage` with these options, as a function of the batch alone."""
    return lambda batch: reference_advantage(batch, **options)


def _rollouts(batch: GrpoBatch) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Return the last row of each rollout, and intp (B,): the rollout of each row, -1 for padding."""
    codes_B = np.full(len(batch), -1, dtype=np.intp)
    real = np.flatnonzero(~batch.padding_B)
    codes_B[real], count = group_codes(batch.session_B[real], len(real))
    last = np.zeros(count, dtype=np.intp)
    for row in real[np.argsort(batch.order_B[real], kind="stable")]:
        last[codes_B[row]] = row
    return last, codes_B


def _group(reward_V: npt.NDArray[np.float64], baseline: Baseline, normalize: bool) -> npt.NDArray[np.float64]:
    """Return the advantages of one group's voters, V of them."""
    if baseline == "group_mean":
        centred = reward_V - reward_V.mean() if len(reward_V) else reward_V
        return centred / _spread(reward_V) if normalize else centred
    advantage = np.zeros(len(reward_V))
    for row, reward in enumerate(reward_V):
        others = np.delete(reward_V, row)
        advantage[row] = reward - (others.mean() if len(others) else 0.0)
        if normalize:
            advantage[row] /= _spread(others)
    return advantage


def _spread(reward_V: npt.NDArray[np.float64]) -> float:
    """Return the sample standard deviation, or 1 where dividing by it would blow up rounding errors."""
    if len(reward_V) < 2 or np.ptp(reward_V) == 0.0:
        return 1.0
    return float(reward_V.std(ddof=1))
