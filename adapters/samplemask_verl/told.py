"""What is known of a V1 batch's rows before verl computes their advantages: by their tags or their fields."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from samplemask_verl.config import VerlPolicy, is_group_relative, policy_for
from samplemask_verl.decision import Decision, Rows, decide, with_signal
from samplemask_verl.stage_queue import rewards_of
from samplemask_verl.tags import COLUMNS, TAG, places_of, split_key, uid_of, verdicts_of
from samplemask_verl.verdicts import VERDICT_FIELDS, RowVerdicts, read_rows, unwrapped

_PADDING = [0.0, False, False, False, None]
"""What a padding row's tag is taken for: it says nothing, not even that there was a verdict."""


@dataclass(frozen=True)
class Told:
    """What is known of B rows.

    Attributes:
        rows: Groups, rewards, sessions and padding.
        verdicts: Their verdicts.
        tokens_B: int (B,), response tokens.
    """

    rows: Rows
    verdicts: RowVerdicts
    tokens_B: npt.NDArray[Any]


def told_by_tags(batch: Any) -> Told | None:
    """Return what a batch's tags say, or None when one says nothing, or a reward model spoke after them.

    Args:
        batch: A KVBatchMeta.
    """
    read = verdicts_of([_PADDING if _pads(tag) else tag.get(TAG) for tag in batch.tags])
    tokens = [tag.get("response_len") for tag in batch.tags]
    if read is None or None in tokens or len(verdict_fields(batch)) > 1:
        return None
    verdicts, reward_B = read
    uids = np.array([uid_of(key) for key in batch.keys], dtype=object)
    return Told(_rows(batch, uids, reward_B), verdicts, np.array(tokens))


def told_by_fields(batch: Any, stored: Any) -> Told:
    """Return what a batch's fields say.

    Args:
        batch: A KVBatchMeta.
        stored: Its `uid`, `rm_scores` and `verdict_fields`.

    Raises:
        ContractError: A verdict cannot be read; the message names the row.
    """
    extra = [unwrapped(fields) or {} for fields in stored["extra_fields"]]
    columns = {name: list(stored[name]) for name in VERDICT_FIELDS if name in stored.keys()}  # noqa: SIM118
    reward_B, tokens_B = rewards_of(stored["rm_scores"])
    uids = np.array([unwrapped(uid) for uid in stored["uid"]], dtype=object)
    return Told(_rows(batch, uids, reward_B), read_rows([*places_of(extra), columns], reward_B), tokens_B)


def read(host: ModuleType, batch: Any) -> Any:
    """Read what `told_by_fields` needs."""
    fields = ["uid", "rm_scores", *verdict_fields(batch)]
    return host.tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)


def verdict_fields(batch: Any) -> list[str]:
    """Name the fields that may hold verdicts: the rollout's, and those that a reward model wrote."""
    written = {*(batch.fields or ()), *(name for tag in batch.tags for name in tag.get(COLUMNS, ()))}
    return ["extra_fields", *(name for name in VERDICT_FIELDS if name in written)]


def decide_rows(host: ModuleType, algorithm: Any, told: Told, policy: VerlPolicy) -> Decision:
    """Apply the policy, fitted to verl's estimator.

    Args:
        host: The module verl.trainer.ppo.v1.trainer_base.
        algorithm: verl's configuration of that name.
        told: The rows.
        policy: The policy.

    Raises:
        OutageError: The batch is an outage and the policy says to raise.
    """
    name = algorithm.adv_estimator
    fitted = policy_for(policy, name, is_group_relative(host.core_algos.get_adv_estimator_fn(name)))
    return with_signal(decide(told.rows, told.verdicts, fitted), told.tokens_B)


def _rows(batch: Any, uids: npt.NDArray[np.object_], reward_B: npt.NDArray[np.float64]) -> Rows:
    keys = [split_key(key) for key in batch.keys]
    padding_B = np.array([_pads(tag) for tag in batch.tags]) if any(map(_pads, batch.tags)) else None
    if None in keys or len({key[0] for key in keys if key}) == len(keys):  # a row is a session
        return Rows(uids, reward_B, padding_B=padding_B)
    sessions, order = zip(*filter(None, keys), strict=True)
    return Rows(uids, reward_B, sessions, np.array(order), padding_B)


def _pads(tag: dict[str, Any]) -> bool:
    """Tell whether a row was added by verl to fill the batch."""
    return bool(tag.get("is_padding", False))
