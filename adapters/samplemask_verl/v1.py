"""The place where verl's V1 trainer computes advantages: verdicts and rows live in TransferQueue."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transfer_queue
from tensordict import TensorDict

from samplemask.policy import RowPlan
from samplemask_verl.advantage import decided, warn_if_silent
from samplemask_verl.config import VerlPolicy, acts, is_group_relative, policy_for, policy_of
from samplemask_verl.decision import Decision, Rows, decide, with_signal
from samplemask_verl.loss import EXCLUSION, MASKS, exclusion_column
from samplemask_verl.refill import GroupVerdict, Judge, judge_groups
from samplemask_verl.stage_queue import marking, reading
from samplemask_verl.steps import state_of
from samplemask_verl.verdicts import VERDICT_FIELDS, RowVerdicts, read_rows, unwrapped
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

            def judge(stored: Any) -> None:
                verdicts = _verdicts(stored)
                warn_if_silent(verdicts)
                decision = _decide(host, self.config.algorithm, batch, stored, verdicts, policy)
                state_of(self).add(batch.keys, decision)
                metrics.update(decision.metrics)
                if not decision.plan.changes_nothing:
                    raise _RowsAreSilentError(decision.plan, stored)

            patched = host.tq is transfer_queue  # else another queue is in its place
            try:
                if not patched:
                    judge(_read(host, batch))
                with reading(_verdict_fields(batch), judge) if patched else nullcontext(), _deciding():
                    return original(self, batch, metrics)
            except _RowsAreSilentError as found:
                plan, stored = found.plan, found.stored
            marks_B = exclusion_column(plan.trains_B, _padding(batch), policy.denominator)
            before = _Before.of(host, self, batch) if policy.verify else None
            with marking(marks_B[torch.from_numpy(plan.votes_B)]):
                written = _estimate(original, self, batch, metrics, plan)
            if before is not None:
                _verify(host, original, before, batch, plan, stored)
            fields = _stage_fields(self.config.algorithm, written)
            silenced = _silence(host, batch, plan, fields, stored, marks_B)
            if not patched:
                return _put_marks(host, batch, marks_B)
            return silenced if written is None else _joined(host, batch, written, silenced)

        return _compute_advantage

    return make


class _RowsAreSilentError(Exception):
    """Ends verl's stage as soon as it has read its rows: it has to run on fewer."""

    def __init__(self, plan: RowPlan, stored: Any) -> None:
        super().__init__()
        self.plan, self.stored = plan, stored


@contextmanager
def _deciding() -> Iterator[None]:
    """Tell the wrapper around `compute_advantage` that its rows are decided."""
    token = decided.set(True)
    try:
        yield
    finally:
        decided.reset(token)


def split_key(key: str) -> tuple[str, int] | None:
    """Split verl's row key `{uid}_{session}_{index}` into session and index; None for another form."""
    session, _, index = key.rpartition("_")
    return (session, int(index)) if index.isdigit() and "_" in session else None


def _read(host: ModuleType, batch: Any) -> Any:
    fields = ["uid", "rm_scores", *_verdict_fields(batch)]
    return host.tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)


def _verdict_fields(batch: Any) -> list[str]:
    written_by_reward_model = [name for name in VERDICT_FIELDS if name in (batch.fields or ())]
    return ["extra_fields", *written_by_reward_model]


def make_judge(
    host: ModuleType,
) -> Callable[[Any, VerlPolicy], Callable[[list[str]], dict[str, GroupVerdict]]]:
    """Return what reads finished groups for the refill; see `refill.Refill.judge`."""

    def of(trainer: Any, policy: VerlPolicy) -> Judge:
        # A single group cannot be an outage; the batch is judged when its advantages are computed.
        grouped = policy.model_copy(update={"max_masked_fraction": None})

        def judge(keys: list[str]) -> dict[str, GroupVerdict]:
            groups = host.KVBatchMeta(partition_id="train", keys=keys, tags=[{} for _ in keys])
            stored = _read(host, groups)
            verdicts = _verdicts(stored)
            decision = _decide(host, trainer.config.algorithm, groups, stored, verdicts, grouped)
            return judge_groups(keys, decision, verdicts.kinds_B)

        return judge

    return of


def _verdicts(stored: Any) -> RowVerdicts:
    extra = [unwrapped(fields) or {} for fields in stored["extra_fields"]]
    columns = {name: list(stored[name]) for name in VERDICT_FIELDS if name in stored.keys()}  # noqa: SIM118
    return read_rows(
        [[fields.get("reward_extra_info") for fields in extra], extra, columns], _rewards(stored)
    )


def _rewards(stored: Any) -> npt.NDArray[np.float64]:
    scores = stored["rm_scores"]
    sums = torch.segment_reduce(scores.values().double(), "sum", offsets=scores.offsets())
    return np.asarray(sums.numpy())


def _decide(
    host: ModuleType, algorithm: Any, batch: Any, stored: Any, verdicts: RowVerdicts, policy: VerlPolicy
) -> Decision:
    padding = _padding(batch)
    keys = [split_key(key) for key in batch.keys]
    sessions = None if None in keys else [key[0] for key in keys if key]
    order = None if sessions is None else np.array([key[1] for key in keys if key])
    uids = np.array([unwrapped(uid) for uid in stored["uid"]], dtype=object)
    estimator = host.core_algos.get_adv_estimator_fn(algorithm.adv_estimator)
    fitted = policy_for(policy, algorithm.adv_estimator, is_group_relative(estimator))
    decision = decide(Rows(uids, _rewards(stored), sessions, order, padding), verdicts, fitted)
    return with_signal(decision, stored["rm_scores"].offsets().diff().numpy())


def _estimate(
    original: Callable[..., Any], trainer: Any, batch: Any, metrics: dict[str, Any], plan: RowPlan
) -> Any:
    """Let verl do its whole advantage stage on the voting rows; None when there are none."""
    voters = [key for key, votes in zip(batch.keys, plan.votes_B, strict=True) if votes]
    if not voters:
        return None
    with _deciding():
        voting = batch if len(voters) == len(batch.keys) else batch.select_keys(voters)
        return original(trainer, voting, metrics)


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
    def of(cls, host: ModuleType, trainer: Any, batch: Any) -> _Before:
        copied = copy(trainer)
        if hasattr(trainer, "kl_ctrl_in_reward"):
            copied.kl_ctrl_in_reward = copy(trainer.kl_ctrl_in_reward)
        return cls(copied, _field(host, batch, "response_mask"))


def _verify(
    host: ModuleType, original: Callable[..., Any], before: _Before, batch: Any, plan: RowPlan, stored: Any
) -> None:
    """Run the stage again with other rewards in the rows that do not vote, then put theirs back."""
    if not plan.trains_B.any() or plan.votes_B.all():
        return
    silent = [row for row, votes in enumerate(plan.votes_B) if not votes]
    every_row = range(len(plan.votes_B))
    scores = stored["rm_scores"].unbind()
    advantages = _advantages(host, batch, plan)
    _put(host, batch, silent, "rm_scores", [other_content(scores[row]) for row in silent])
    _put(host, batch, every_row, "response_mask", before.masks)
    try:
        again = _read(host, batch)
        algorithm = before.trainer.config.algorithm
        decision = _decide(host, algorithm, batch, again, _verdicts(again), policy_of(algorithm))
        _estimate(original, before.trainer, batch, {}, decision.plan)
        after = _advantages(host, batch, plan)
    finally:
        _put(host, batch, silent, "rm_scores", [scores[row] for row in silent])
    check_unmoved((plan, advantages), (decision.plan, after), batch.keys.__getitem__)


def _field(host: ModuleType, batch: Any, name: str) -> Any:
    stored = host.tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=[name])
    return [row.clone() for row in stored[name].unbind()]


def _advantages(host: ModuleType, batch: Any, plan: RowPlan) -> torch.Tensor:
    """Return the advantages of all rows, padded; zeros for rows that do not train."""
    rows = np.flatnonzero(plan.trains_B)
    keys = [batch.keys[row] for row in rows]
    stored = host.tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=["advantages"])
    values = stored["advantages"].to_padded_tensor(padding=0.0)
    advantages = values.new_zeros((len(plan.trains_B), values.shape[1]))
    advantages[torch.from_numpy(rows)] = values
    return advantages


def _put(
    host: ModuleType, batch: Any, rows: Sequence[int], name: str, values: Sequence[torch.Tensor]
) -> None:
    host.tq.kv_batch_put(
        keys=[batch.keys[row] for row in rows],
        partition_id=batch.partition_id,
        fields=TensorDict(
            {name: torch.nested.as_nested_tensor(list(values), layout=torch.jagged)}, len(rows)
        ),
    )


def _silence(
    host: ModuleType, batch: Any, plan: RowPlan, fields: list[str], stored: Any, marks_B: torch.Tensor
) -> Any:
    """Write zeros for the rows that do not train, and the mark that takes them out of the loss."""
    silent = np.flatnonzero(~plan.trains_B)
    rows = torch.from_numpy(silent)
    lengths = stored["rm_scores"].offsets().diff()[rows].tolist()
    zeros = {name: _zeros(lengths) for name in fields}
    zeros.update(dict.fromkeys(MASKS, _zeros(lengths, torch.int64)))
    zeros[EXCLUSION] = marks_B[rows]
    return host.tq.kv_batch_put(
        keys=[batch.keys[row] for row in silent],
        partition_id=batch.partition_id,
        fields=TensorDict(zeros, batch_size=len(silent)),
    )


def _put_marks(host: ModuleType, batch: Any, marks_B: torch.Tensor) -> Any:
    return host.tq.kv_batch_put(
        keys=list(batch.keys),
        partition_id=batch.partition_id,
        fields=TensorDict({EXCLUSION: marks_B}, batch_size=len(marks_B)),
    )


def _joined(host: ModuleType, batch: Any, written: Any, silenced: Any) -> Any:
    """Return the whole batch as TransferQueue describes it, from what was written for its two parts."""
    tags = {key: tag for part in (written, silenced) for key, tag in zip(part.keys, part.tags, strict=True)}
    return host.KVBatchMeta(
        keys=list(batch.keys),
        tags=[tags[key] for key in batch.keys],
        partition_id=batch.partition_id,
        fields=[name for name in silenced.fields if name in written.fields],
    )


def _padding(batch: Any) -> npt.NDArray[np.bool_]:
    return np.array([bool(tag.get("is_padding", False)) for tag in batch.tags])


def _stage_fields(algorithm: Any, written: Any) -> list[str]:
    """Name the fields that verl's advantage stage writes, so that every row has them."""
    fields = ["advantages", "returns"]
    if algorithm.get("use_kl_in_reward", False):
        fields.append("token_level_rewards")
    if written is not None and "rollout_is_weights" in (written.fields or ()):
        fields.append("rollout_is_weights")
    return fields


def _zeros(lengths: list[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    rows = [torch.zeros(length, dtype=dtype) for length in lengths]
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)
