"""The place where verl's V1 trainer computes advantages: verdicts and rows live in TransferQueue.

Rows are judged by their tags, which are there already, or, where a tag says nothing, by fields that verl's
own read brings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch
import transfer_queue
from tensordict import TensorDict
from verl.utils.tensordict_utils import index_select_tensor_dict

from samplemask.policy import RowPlan
from samplemask_verl.advantage import decided, warn_if_silent
from samplemask_verl.config import VerlPolicy, acts, policy_of
from samplemask_verl.decision import Decision
from samplemask_verl.loss import EXCLUSION, MASKS, exclusion_column
from samplemask_verl.refill import GroupVerdict, Judge, judge_groups
from samplemask_verl.stage_queue import AllRows, reading, rewards_of, writing
from samplemask_verl.steps import state_of
from samplemask_verl.told import Told, decide_rows, read, told_by_fields, told_by_tags, verdict_fields
from samplemask_verl.v1_verify import Before, nested, verify


def wrap_compute_advantage(host: ModuleType) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the maker of the wrapper around `PPOTrainer._compute_advantage`.

    Args:
        host: The module verl.trainer.ppo.v1.trainer_base.
    """

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def _compute_advantage(self: Any, batch: Any, metrics: dict[str, Any]) -> Any:
            algorithm = self.config.algorithm
            policy = policy_of(algorithm)
            if not acts(policy):
                return original(self, batch, metrics)
            stage = _Stage(host, original, self, algorithm, batch, metrics, policy)
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

    def __init__(self, told: Told, decision: Decision, ready: Any) -> None:
        super().__init__()
        self.told, self.decision, self.ready = told, decision, ready


@dataclass(frozen=True)
class _Stage:
    """One run of verl's advantage stage.

    Attributes:
        host: The module verl.trainer.ppo.v1.trainer_base.
        original: verl's `_compute_advantage`.
        trainer: Its trainer.
        algorithm: Its configuration of that name.
        batch: The batch's keys and tags.
        metrics: The step's metrics.
        policy: What to do with masked rows.
    """

    host: ModuleType
    original: Callable[..., Any]
    trainer: Any
    algorithm: Any
    batch: Any
    metrics: dict[str, Any]
    policy: VerlPolicy

    @property
    def rides(self) -> bool:
        """Whether what verl reads and writes can carry more; not when another queue is in its place."""
        return self.host.tq is transfer_queue

    def read_and_run(self) -> Any:
        """Judge the rows by what verl reads, and let it go on, or begin again with the rows that vote."""
        more = verdict_fields(self.batch)

        def judge(stored: Any) -> None:
            told = told_by_fields(self.batch, stored)
            decision = self.decide(told)
            if not decision.plan.changes_nothing:
                voters = np.flatnonzero(decision.plan.votes_B).tolist()
                ready = index_select_tensor_dict(stored.exclude(*more), voters) if voters else None
                raise _RowsAreSilentError(told, decision, ready)
            self.note(decision)

        try:
            with reading(more, judge), _deciding():
                return self.original(self.trainer, self.batch, self.metrics)
        except _RowsAreSilentError as found:
            told, decision, ready = found.told, found.decision, found.ready
        return self.run(told, decision, ready)

    def run(self, told: Told, decision: Decision, ready: Any = None) -> Any:
        """Let verl do its stage on the rows that vote, and write zeros for those that do not train."""
        plan = decision.plan
        before = Before.of(self) if self.policy.verify and not plan.changes_nothing else None
        written = self.estimate(told, plan, ready)
        self.note(decision)
        if before is not None:
            verify(self, before, plan)
        if plan.changes_nothing or (self.rides and written is not None):
            return written
        return _silence(self, told, plan, written)

    def decide(self, told: Told) -> Decision:
        """Say who trains and who votes."""
        warn_if_silent(told.verdicts)
        return decide_rows(self.host, self.algorithm, told, self.policy)

    def note(self, decision: Decision) -> None:
        """Keep the decision for the step's metrics and updates."""
        state_of(self.trainer).add(self.batch.keys, decision, masks_stay=self.rides)
        self.metrics.update(decision.metrics)

    def estimate(self, told: Told, plan: RowPlan, ready: Any = None) -> Any:
        """Let verl do its whole advantage stage on the voting rows; None when there are none.

        Args:
            told: The rows.
            plan: Who trains and who votes.
            ready: What verl will read of the voting rows, where that was read already.

        Raises:
            _TagsAreOldError: The rewards are others than those that were told. Nothing was written.
        """
        voters = [key for key, votes in zip(self.batch.keys, plan.votes_B, strict=True) if votes]
        if not voters:
            return None
        voting = self.batch if len(voters) == len(self.batch.keys) else self.batch.select_keys(voters)
        with _deciding(), self.riding(told, plan, ready) if self.rides else nullcontext():
            return self.original(self.trainer, voting, self.metrics)

    @contextmanager
    def riding(self, told: Told, plan: RowPlan, ready: Any) -> Iterator[None]:
        """Check what verl reads, and let it write all rows."""

        def check(stored: Any) -> None:
            rewards, _ = rewards_of(stored["rm_scores"])
            if not np.array_equal(rewards, told.rows.reward_B[plan.votes_B], equal_nan=True):
                raise _TagsAreOldError

        if plan.changes_nothing:
            riding = nullcontext()
        else:
            riding = writing(AllRows(self.batch.keys, plan, told.tokens_B, self.marks(told, plan)))
        with reading((), check, ready), riding:
            yield

    def marks(self, told: Told, plan: RowPlan) -> torch.Tensor:
        """Return the marks that take the rows that do not train out of the loss."""
        return exclusion_column(plan.trains_B, told.rows.padding_B, self.policy.denominator)

    def get(self, keys: list[str], name: str) -> Any:
        """Read one field."""
        partition = self.batch.partition_id
        return self.host.tq.kv_batch_get(keys=keys, partition_id=partition, select_fields=[name])[name]

    def put(self, rows: Sequence[int], fields: dict[str, Any]) -> Any:
        """Write fields of some of the batch's rows."""
        return self.host.tq.kv_batch_put(
            keys=[self.batch.keys[row] for row in rows],
            partition_id=self.batch.partition_id,
            fields=TensorDict(fields, batch_size=len(rows)),
        )


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


def _silence(stage: _Stage, told: Told, plan: RowPlan, written: Any) -> Any:
    """Write zeros for the rows that do not train, and the marks, where no write of verl's carries them."""
    silent = np.flatnonzero(~plan.trains_B).tolist()
    marks = {EXCLUSION: stage.marks(told, plan)}
    zeros = nested([torch.zeros(length) for length in told.tokens_B[silent].tolist()])
    fields = dict.fromkeys(_stage_fields(stage.algorithm, written), zeros)
    if stage.rides:  # nobody votes
        return stage.put(silent, {**fields, **marks})
    stage.put(silent, {**fields, **dict.fromkeys(MASKS, zeros.long())})
    return stage.put(range(len(plan.trains_B)), marks)


def _stage_fields(algorithm: Any, written: Any) -> list[str]:
    """Name the fields that verl's advantage stage writes, so that every row has them."""
    fields = ["advantages", "returns"]
    if algorithm.get("use_kl_in_reward", False):
        fields.append("token_level_rewards")
    if written is not None and "rollout_is_weights" in (written.fields or ()):
        fields.append("rollout_is_weights")
    return fields
