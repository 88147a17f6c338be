"""The place where verl's V1 trainer computes advantages: verdicts and rows live in TransferQueue.

Rows are judged by their tags, which are there already, or, where a tag says nothing, by fields that verl's
own read brings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import numpy as np
import torch
import transfer_queue
from tensordict import TensorDict

from samplemask.policy import RowPlan
from samplemask_verl.advantage import decided, warn_if_silent
from samplemask_verl.config import VerlPolicy, acts, policy_of
from samplemask_verl.decision import Decision
from samplemask_verl.loss import EXCLUSION, MASKS, exclusion_column
from samplemask_verl.refill import GroupVerdict, Judge, judge_groups
from samplemask_verl.stage_queue import marking, reading, rewards_of
from samplemask_verl.steps import state_of
from samplemask_verl.told import Told, decide_rows, read, told_by_fields, told_by_tags, verdict_fields
from samplemask_verl.verify import check_unmoved, other_content


def wrap_compute_advantage(host: ModuleType) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the maker of the wrapper around `PPOTrainer._compute_advantage`.

    Args:
        host: The module verl.trainer.ppo.v1.trainer_base.
    """

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def _compute_advantage(self: Any, batch: Any, metrics: dict[str, Any]) -> Any:
            policy = policy_of(self.config.algorithm)
            if not acts(policy):
                return original(self, batch, metrics)
            stage = _Stage(host, original, self, batch, metrics, policy)
            if not stage.rides:
                told = told_by_fields(batch, read(host, batch))
                return stage.run(told, stage.decide(told))
            told = told_by_tags(batch)
            try:
                return stage.read_and_run() if told is None else stage.run(told, stage.decide(told))
            except _TagsAreOldError:
                return stage.read_and_run()

        return _compute_advantage

    return make


class _TagsAreOldError(Exception):
    """Ends verl's stage as soon as it has read its rows: their rewards are not those of the tags."""


class _RowsAreSilentError(Exception):
    """Ends verl's stage as soon as it has read its rows: it has to run on fewer."""

    def __init__(self, told: Told, decision: Decision) -> None:
        super().__init__()
        self.told, self.decision = told, decision


@dataclass(frozen=True)
class _Stage:
    """One run of verl's advantage stage.

    Attributes:
        host: The module verl.trainer.ppo.v1.trainer_base.
        original: verl's `_compute_advantage`.
        trainer: Its trainer.
        batch: The batch's keys and tags.
        metrics: The step's metrics.
        policy: What to do with masked rows.
    """

    host: ModuleType
    original: Callable[..., Any]
    trainer: Any
    batch: Any
    metrics: dict[str, Any]
    policy: VerlPolicy

    @property
    def rides(self) -> bool:
        """Whether what verl reads and writes can carry more; not when another queue is in its place."""
        return self.host.tq is transfer_queue

    def read_and_run(self) -> Any:
        """Judge the rows by what verl reads, and let it go on, or begin again with the rows that vote."""

        def judge(stored: Any) -> None:
            told = told_by_fields(self.batch, stored)
            decision = self.decide(told)
            if not decision.plan.changes_nothing:
                raise _RowsAreSilentError(told, decision)
            self.note(decision)

        try:
            with reading(verdict_fields(self.batch), judge), _deciding():
                return self.original(self.trainer, self.batch, self.metrics)
        except _RowsAreSilentError as found:
            told, decision = found.told, found.decision
        return self.run(told, decision)

    def run(self, told: Told, decision: Decision) -> Any:
        """Let verl do its stage on the rows that vote, and write zeros for the others."""
        plan = decision.plan
        if plan.changes_nothing:
            written = self.estimate(told, plan)
            self.note(decision)
            return written
        marks_B = exclusion_column(plan.trains_B, told.rows.padding_B, self.policy.denominator)
        before = _Before.of(self) if self.policy.verify else None
        with marking(marks_B[torch.from_numpy(plan.votes_B)]):
            written = self.estimate(told, plan)
        self.note(decision)
        if before is not None:
            _verify(self, before, plan)
        silenced = _silence(self, told, plan, written, marks_B)
        if not self.rides:
            return _put(self, range(len(marks_B)), {EXCLUSION: marks_B})
        return silenced if written is None else _joined(self, written, silenced)

    def decide(self, told: Told) -> Decision:
        """Say who trains and who votes."""
        warn_if_silent(told.verdicts)
        return decide_rows(self.host, self.trainer.config.algorithm, told, self.policy)

    def note(self, decision: Decision) -> None:
        """Keep the decision for the step's metrics and updates."""
        state_of(self.trainer).add(self.batch.keys, decision)
        self.metrics.update(decision.metrics)

    def estimate(self, told: Told, plan: RowPlan) -> Any:
        """Let verl do its whole advantage stage on the voting rows; None when there are none.

        Raises:
            _TagsAreOldError: The rewards are others than those that were told. Nothing was written.
        """
        voters = [key for key, votes in zip(self.batch.keys, plan.votes_B, strict=True) if votes]
        if not voters:
            return None
        voting = self.batch if len(voters) == len(self.batch.keys) else self.batch.select_keys(voters)

        def check(stored: Any) -> None:
            rewards, _ = rewards_of(stored["rm_scores"])
            if not np.array_equal(rewards, told.rows.reward_B[plan.votes_B], equal_nan=True):
                raise _TagsAreOldError

        with reading((), check) if self.rides else nullcontext(), _deciding():
            return self.original(self.trainer, voting, self.metrics)


@contextmanager
def _deciding() -> Iterator[None]:
    """Tell the wrapper around `compute_advantage` that its rows are decided."""
    token = decided.set(True)
    try:
        yield
    finally:
        decided.reset(token)


def make_judge(host: ModuleType) -> Callable[[Any, VerlPolicy], Judge]:
    """Return what judges finished groups for the refill; see `refill.Refill.judge`."""

    def of(trainer: Any, policy: VerlPolicy) -> Judge:
        # A single group cannot be an outage; the batch is judged when its advantages are computed.
        grouped = policy.model_copy(update={"max_masked_fraction": None})

        def judge(rows: dict[str, dict[str, Any]]) -> dict[str, GroupVerdict]:
            keys = list(rows)
            groups = host.KVBatchMeta(partition_id="train", keys=keys, tags=list(rows.values()))
            told = told_by_tags(groups) or told_by_fields(groups, read(host, groups))
            decision = decide_rows(host, trainer.config.algorithm, told, grouped)
            return judge_groups(keys, decision, told.verdicts.kinds_B)

        return judge

    return of


@dataclass(frozen=True)
class _Before:
    """What verl's advantage stage changes besides its results, as it was before the stage ran.

    Attributes:
        trainer: A shallow copy with a KL controller of its own, which learns from each run.
        masks: The response mask of each row: rollout correction rejects tokens.
    """

    trainer: Any
    masks: Any

    @classmethod
    def of(cls, stage: _Stage) -> _Before:
        copied = copy(stage.trainer)
        if hasattr(copied, "kl_ctrl_in_reward"):
            copied.kl_ctrl_in_reward = copy(copied.kl_ctrl_in_reward)
        return cls(copied, _field(stage, "response_mask"))


def _verify(stage: _Stage, before: _Before, plan: RowPlan) -> None:
    """Run the stage again with other rewards in the rows that do not vote, then put theirs back."""
    if not plan.trains_B.any() or plan.votes_B.all():
        return
    keys = stage.batch.keys
    silent = [row for row, votes in enumerate(plan.votes_B) if not votes]
    scores = _field(stage, "rm_scores")
    advantages = _advantages(stage, plan)
    _put(stage, silent, {"rm_scores": _nested([other_content(scores[row]) for row in silent])})
    _put(stage, range(len(plan.votes_B)), {"response_mask": _nested(before.masks)})
    try:
        again = replace(stage, trainer=before.trainer, metrics={})
        told = told_by_fields(stage.batch, read(stage.host, stage.batch))
        decision = again.decide(told)
        again.estimate(told, decision.plan)
        after = _advantages(stage, plan)
    finally:
        _put(stage, silent, {"rm_scores": _nested([scores[row] for row in silent])})
    check_unmoved((plan, advantages), (decision.plan, after), keys.__getitem__)


def _field(stage: _Stage, name: str) -> Any:
    return [row.clone() for row in _get(stage, stage.batch.keys, name).unbind()]


def _advantages(stage: _Stage, plan: RowPlan) -> torch.Tensor:
    """Return the advantages of all rows, padded; zeros for rows that do not train."""
    rows = np.flatnonzero(plan.trains_B)
    stored = _get(stage, [stage.batch.keys[row] for row in rows], "advantages")
    values = stored.to_padded_tensor(padding=0.0)
    advantages = values.new_zeros((len(plan.trains_B), values.shape[1]))
    advantages[torch.from_numpy(rows)] = values
    return advantages


def _get(stage: _Stage, keys: list[str], name: str) -> Any:
    partition = stage.batch.partition_id
    return stage.host.tq.kv_batch_get(keys=keys, partition_id=partition, select_fields=[name])[name]


def _put(stage: _Stage, rows: Sequence[int], fields: dict[str, Any]) -> Any:
    return stage.host.tq.kv_batch_put(
        keys=[stage.batch.keys[row] for row in rows],
        partition_id=stage.batch.partition_id,
        fields=TensorDict(fields, batch_size=len(rows)),
    )


def _silence(stage: _Stage, told: Told, plan: RowPlan, written: Any, marks_B: torch.Tensor) -> Any:
    """Write zeros for the rows that do not train, and the mark that takes them out of the loss."""
    silent = np.flatnonzero(~plan.trains_B)
    tokens = told.tokens_B[silent].tolist()
    fields = _stage_fields(stage.trainer.config.algorithm, written)
    zeros = {name: _nested([torch.zeros(length) for length in tokens]) for name in fields}
    masks = _nested([torch.zeros(length, dtype=torch.int64) for length in tokens])
    marks = marks_B[torch.from_numpy(silent)]
    return _put(stage, silent.tolist(), {**zeros, **dict.fromkeys(MASKS, masks), EXCLUSION: marks})


def _joined(stage: _Stage, written: Any, silenced: Any) -> Any:
    """Return the whole batch as TransferQueue describes it, from what was written for its two parts."""
    batch = stage.batch
    tags = {key: tag for part in (written, silenced) for key, tag in zip(part.keys, part.tags, strict=True)}
    return stage.host.KVBatchMeta(
        keys=list(batch.keys),
        tags=[tags[key] for key in batch.keys],
        partition_id=batch.partition_id,
        fields=[name for name in silenced.fields if name in written.fields],
    )


def _stage_fields(algorithm: Any, written: Any) -> list[str]:
    """Name the fields that verl's advantage stage writes, so that every row has them."""
    fields = ["advantages", "returns"]
    if algorithm.get("use_kl_in_reward", False):
        fields.append("token_level_rewards")
    if written is not None and "rollout_is_weights" in (written.fields or ()):
        fields.append("rollout_is_weights")
    return fields


def _nested(rows: list[torch.Tensor]) -> torch.Tensor:
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)
