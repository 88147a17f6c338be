"""The proof that can be switched on: other content in rows that do not vote moves no row that trains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from samplemask.errors import SampleMaskError
from samplemask.policy import RowPlan

TRASH = 1e6


class VerificationError(SampleMaskError):
    """A row that trains depends on the content of a row that must not matter."""


def other_content(value: torch.Tensor) -> torch.Tensor:
    """Return other numbers of the same shape; what is not finite stays so, since that is a verdict too."""
    return torch.where(torch.isfinite(value), value.new_full((), TRASH), value)


def perturbed(data: Any, plan: RowPlan) -> Any:
    """Return a copy of a DataProto with other content in every float tensor's rows that do not vote."""
    every_row = np.arange(len(plan.votes_B))
    copy = data.select_idxs(every_row)
    rows = torch.from_numpy(~plan.votes_B)
    for name, value in copy.batch.items():
        if value.is_floating_point():
            value[rows] = other_content(value[rows])
            copy.batch[name] = value
    return copy


def check_unmoved(
    before: tuple[RowPlan, torch.Tensor], after: tuple[RowPlan, torch.Tensor], names: Callable[[int], str]
) -> None:
    """Compare two computations of one step.

    Args:
        before: Plan, and advantages (B, T) of all rows.
        after: The same, with other content in the rows that do not vote.
        names: Names a row for the message.

    Raises:
        VerificationError: The plans differ, or a row that trains moved.
    """
    (plan, advantages), (plan_after, advantages_after) = before, after
    moved_B = (plan.trains_B != plan_after.trains_B) | (plan.votes_B != plan_after.votes_B)
    differs_B = (advantages != advantages_after).any(dim=-1).cpu().numpy()
    moved_B |= plan.trains_B & differs_B
    if moved_B.any():
        rows = [names(int(row)) for row in np.flatnonzero(moved_B)]
        raise VerificationError(
            "algorithm.mask_sample.verify: expected that rows without a vote change nothing, found that "
            f"their content moves {len(rows)} rows: {', '.join(rows[:5])}. Something reads them: another "
            "plugin, or an estimator that keeps state. Report it with your adv_estimator, or set "
            "algorithm.mask_sample.action=ignore."
        )
