"""`verify: true` in verl's V1 trainer: the advantage stage runs again, with other content in masked rows."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from samplemask.policy import RowPlan
from samplemask_verl.told import read, told_by_fields
from samplemask_verl.verify import check_unmoved, other_content


@dataclass(frozen=True)
class Before:
    """What verl's advantage stage changes besides its results, as it was before the stage ran.

    Attributes:
        trainer: A shallow copy with a KL controller of its own, which learns from each run.
        masks: The response mask of each row: rollout correction rejects tokens.
    """

    trainer: Any
    masks: Any

    @classmethod
    def of(cls, stage: Any) -> Before:
        """Keep it.

        Args:
            stage: The `v1` stage that is about to run.
        """
        copied = copy(stage.trainer)
        if hasattr(copied, "kl_ctrl_in_reward"):
            copied.kl_ctrl_in_reward = copy(copied.kl_ctrl_in_reward)
        return cls(copied, _field(stage, "response_mask"))


def verify(stage: Any, before: Before, plan: RowPlan) -> None:
    """Run the stage again with other rewards in the rows that do not vote, then put theirs back.

    Args:
        stage: The `v1` stage that ran.
        before: What it had found.
        plan: What it did.

    Raises:
        VerificationError: A row that trains got another advantage.
    """
    if not plan.trains_B.any() or plan.votes_B.all():
        return
    keys = stage.batch.keys
    silent = [row for row, votes in enumerate(plan.votes_B) if not votes]
    scores = _field(stage, "rm_scores")
    advantages = _advantages(stage, plan)
    stage.put(silent, {"rm_scores": nested([other_content(scores[row]) for row in silent])})
    stage.put(range(len(plan.votes_B)), {"response_mask": nested(before.masks)})
    try:
        again = replace(stage, trainer=before.trainer, metrics={})
        told = told_by_fields(stage.batch, read(stage.host, stage.batch))
        decision = again.decide(told)
        again.estimate(told, decision.plan)
        after = _advantages(stage, plan)
    finally:
        stage.put(silent, {"rm_scores": nested([scores[row] for row in silent])})
    check_unmoved((plan, advantages), (decision.plan, after), keys.__getitem__)


def nested(rows: list[torch.Tensor]) -> torch.Tensor:
    """Return rows of several lengths as one tensor."""
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def _field(stage: Any, name: str) -> Any:
    return [row.clone() for row in stage.get(stage.batch.keys, name).unbind()]


def _advantages(stage: Any, plan: RowPlan) -> torch.Tensor:
    """Return the advantages of all rows, padded; zeros for rows that do not train."""
    rows = np.flatnonzero(plan.trains_B)
    stored = stage.get([stage.batch.keys[row] for row in rows], "advantages")
    values = stored.to_padded_tensor(padding=0.0)
    advantages = values.new_zeros((len(plan.trains_B), values.shape[1]))
    advantages[torch.from_numpy(rows)] = values
    return advantages
