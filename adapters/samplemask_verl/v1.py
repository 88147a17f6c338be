"""The place where verl's V1 trainer computes advantages: verdicts and rows live in TransferQueue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict

from samplemask_verl.advantage import decided, warn_if_silent
from samplemask_verl.config import acts, is_group_relative, policy_for, policy_of
from samplemask_verl.decision import Decision, Rows, decide
from samplemask_verl.loss import EXCLUSION, MASKS, exclusion_column
from samplemask_verl.verdicts import VERDICT_FIELDS, columns_as_mappings, read_rows, unwrapped


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
            stored = _read(host, batch)
            decision = _decide(host, self.config.algorithm, batch, stored, policy)
            metrics.update(decision.metrics)
            if decision.plan.changes_nothing:
                return original(self, batch, metrics)
            batch = _estimate(host, original, self, batch, metrics, decision, stored)
            return _excluding(host, batch, decision, policy.denominator, stored)

        return _compute_advantage

    return make


def split_key(key: str) -> tuple[str, int] | None:
    """Split verl's row key `{uid}_{session}_{index}` into session and index; None for another form."""
    session, _, index = key.rpartition("_")
    return (session, int(index)) if index.isdigit() and "_" in session else None


def _read(host: ModuleType, batch: Any) -> Any:
    written_by_reward_model = [name for name in VERDICT_FIELDS if name in (batch.fields or ())]
    fields = ["uid", "extra_fields", "rm_scores", *written_by_reward_model]
    return host.tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)


def _decide(host: ModuleType, algorithm: Any, batch: Any, stored: Any, policy: Any) -> Decision:
    rewards = np.array([float(row.sum()) for row in stored["rm_scores"].unbind()])
    extra = [unwrapped(fields) or {} for fields in stored["extra_fields"]]
    columns = {name: list(stored[name]) for name in VERDICT_FIELDS if name in stored.keys()}  # noqa: SIM118
    places: list[Sequence[Any]] = [[fields.get("reward_extra_info") for fields in extra], extra]
    places.append(columns_as_mappings(columns, len(batch.keys)))
    verdicts = read_rows(places, rewards)
    warn_if_silent(verdicts)

    padding = np.array([bool(tag.get("is_padding", False)) for tag in batch.tags])
    keys = [split_key(key) for key in batch.keys]
    sessions = None if None in keys else [key[0] for key in keys if key]
    order = None if sessions is None else np.array([key[1] for key in keys if key])
    uids = np.array([unwrapped(uid) for uid in stored["uid"]], dtype=object)
    estimator = host.core_algos.get_adv_estimator_fn(algorithm.adv_estimator)
    fitted = policy_for(policy, algorithm.adv_estimator, is_group_relative(estimator))
    return decide(Rows(uids, rewards, sessions, order, padding), verdicts, fitted)


def _estimate(
    host: ModuleType,
    original: Callable[..., Any],
    trainer: Any,
    batch: Any,
    metrics: dict[str, Any],
    decision: Decision,
    stored: Any,
) -> Any:
    """Let verl do its whole advantage stage on the voting rows; write zeros for rows that do not train."""
    plan = decision.plan
    voters = [key for key, votes in zip(batch.keys, plan.votes_B, strict=True) if votes]
    written = None
    if voters:
        token = decided.set(True)
        try:
            written = original(
                trainer, batch if len(voters) == len(batch.keys) else batch.select_keys(voters), metrics
            )
        finally:
            decided.reset(token)
    silent = np.flatnonzero(~plan.trains_B)
    lengths = stored["rm_scores"].offsets().diff()
    fields = _stage_fields(trainer.config.algorithm, written)
    zeros = {name: _zeros([int(lengths[row]) for row in silent]) for name in fields}
    put = host.tq.kv_batch_put(
        keys=[batch.keys[row] for row in silent],
        partition_id=batch.partition_id,
        fields=TensorDict(zeros, batch_size=len(silent)),
    )
    return type(batch)(
        keys=list(batch.keys),
        tags=list(batch.tags),
        partition_id=batch.partition_id,
        fields=(written or put).fields,
        extra_info=(written or put).extra_info,
    )


def _excluding(host: ModuleType, batch: Any, decision: Decision, denominator: str, stored: Any) -> Any:
    """Take the rows that do not train out of the loss: a mark for the engine, and zero masks."""
    padding = np.array([bool(tag.get("is_padding", False)) for tag in batch.tags])
    lengths = stored["rm_scores"].offsets().diff()
    silent = np.flatnonzero(~decision.plan.trains_B)
    nothing = _zeros([int(lengths[row]) for row in silent], torch.int64)
    host.tq.kv_batch_put(
        keys=[batch.keys[row] for row in silent],
        partition_id=batch.partition_id,
        fields=TensorDict(dict.fromkeys(MASKS, nothing), batch_size=len(silent)),
    )
    column = exclusion_column(decision.plan.trains_B, padding, denominator)
    put = host.tq.kv_batch_put(
        keys=list(batch.keys),
        partition_id=batch.partition_id,
        fields=TensorDict({EXCLUSION: column}, batch_size=len(column)),
    )
    batch.fields = put.fields  # verl's workers fetch what is named here
    return batch


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
