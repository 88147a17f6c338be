"""What verl's V1 trainer reads from TransferQueue and writes to it; what samplemask needs rides along.

A rollout is stored with its verdict in its tag. A healthy step makes no call that verl does not make, and a
masked step writes its marks with verl's own results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from samplemask.errors import SeamError
from samplemask_verl.loss import EXCLUSION
from samplemask_verl.tags import COLUMNS, TAG, tag_of, uid_of
from samplemask_verl.verdicts import VERDICT_FIELDS, unwrapped

Wrapper = Callable[..., Any]

_reading: ContextVar[tuple[Sequence[str], Callable[[Any], None]] | None] = ContextVar(
    "samplemask_reading", default=None
)
_scoring: ContextVar[set[str] | None] = ContextVar("samplemask_scoring", default=None)
_marks: ContextVar[torch.Tensor | None] = ContextVar("samplemask_marks", default=None)


@contextmanager
def reading(fields: Sequence[str], judge: Callable[[Any], None]) -> Iterator[None]:
    """Let the next read of this context bring more fields, and show it to `judge` before the reader sees it.

    Args:
        fields: The fields, `select_fields` of the reader not repeated.
        judge: Takes all that was read; an error that it raises is the reader's.

    Raises:
        SeamError: Nothing was read.
    """
    token = _reading.set((fields, judge))
    try:
        yield
        if _reading.get() is not None:
            raise SeamError(
                "PPOTrainer._compute_advantage: expected it to read its rows by transfer_queue.kv_batch_get, "
                "found no such read, so no verdict was seen. Install a version of verl that "
                "docs/compatibility.md lists."
            )
    finally:
        _reading.reset(token)


@contextmanager
def marking(marks_B: torch.Tensor | None) -> Iterator[None]:
    """Let what this context writes carry the marks of its rows, int64 (B,); None: no marks."""
    token = _marks.set(marks_B)
    try:
        yield
    finally:
        _marks.reset(token)


def wrap_get(original: Wrapper) -> Wrapper:
    """Make the wrapper around `transfer_queue.kv_batch_get`."""

    def kv_batch_get(keys: Any, partition_id: str, select_fields: Any = None) -> Any:
        waiting = _reading.get()
        if waiting is None:
            return original(keys, partition_id, select_fields)
        _reading.set(None)
        more, judge = waiting
        stored = original(keys, partition_id, [*select_fields, *more])
        judge(stored)
        return stored.exclude(*more) if more else stored

    return kv_batch_get


def wrap_put(original: Wrapper) -> Wrapper:
    """Make the wrapper around `transfer_queue.kv_batch_put`."""

    def kv_batch_put(
        keys: Any, partition_id: str, fields: Any = None, tags: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        marks_B, written = _marks.get(), _scoring.get()
        if marks_B is not None:
            fields = fields.copy().set(EXCLUSION, marks_B)
        if written is not None and fields is not None:
            written.update(fields.keys())
        return original(keys, partition_id, fields, tagged(keys, fields, tags), *args, **kwargs)

    return kv_batch_put


def wrap_reward(original: Wrapper) -> Wrapper:
    """Make the wrapper around `PPOTrainer._compute_reward_colocate`.

    verl's batch does not say which fields its reward model wrote, until something else is put.
    """

    def _compute_reward_colocate(self: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        written: set[str] = set()
        token = _scoring.set(written)
        try:
            scored = original(self, batch, *args, **kwargs)
        finally:
            _scoring.reset(token)
        if columns := sorted(written.intersection(VERDICT_FIELDS)):
            for tag in scored.tags:
                tag[COLUMNS] = columns
        return scored

    return _compute_reward_colocate


def wrap_async_put(original: Wrapper) -> Wrapper:
    """Make the wrapper around `transfer_queue.async_kv_batch_put`."""

    async def async_kv_batch_put(
        keys: Any, partition_id: str, fields: Any = None, tags: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        return await original(keys, partition_id, fields, tagged(keys, fields, tags), *args, **kwargs)

    return async_kv_batch_put


def tagged(keys: Sequence[str], fields: Any, tags: Sequence[dict[str, Any]] | None) -> Any:
    """Return the tags of rows that are stored, with their verdicts if the fields hold any.

    Args:
        keys: Keys of B rows.
        fields: Their fields, a TensorDict, or None.
        tags: Their tags, or None.
    """
    if fields is None or "extra_fields" not in fields.keys():  # noqa: SIM118 - a TensorDict, not a dict
        return tags
    tags = [{} for _ in keys] if tags is None else tags
    try:
        values = _tag_values(keys, fields, tags)
    except Exception:  # noqa: BLE001 - fields of any kind; the trainer reads them, a rollout must not fail of it
        values = [None] * len(keys)
    return [{**tag, TAG: value} for tag, value in zip(tags, values, strict=True)]


def _tag_values(keys: Sequence[str], fields: Any, tags: Sequence[dict[str, Any]]) -> list[Any]:
    """Say in a tag only what verl's stage would find: the rewards, the group of the key, the token count."""
    scores, names = fields.get("rm_scores", None), set(fields.keys())
    told = isinstance(scores, torch.Tensor) and scores.dim() == 2
    if not told or "uid" not in names or not names.isdisjoint(VERDICT_FIELDS):
        return [None] * len(keys)
    rewards, tokens = rewards_of(scores)
    columns = (keys, tags, fields["uid"], fields["extra_fields"], rewards.tolist(), tokens.tolist())
    if len({len(column) for column in columns}) > 1:
        return [None] * len(keys)
    return [_tag_value(*row) for row in zip(*columns, strict=True)]


def _tag_value(key: str, tag: dict[str, Any], uid: Any, extra: Any, reward: float, tokens: int) -> Any:
    extra = unwrapped(extra) or {}
    if uid_of(key) != unwrapped(uid) or tag.get("response_len") != tokens or not isinstance(extra, Mapping):
        return None
    return tag_of(extra, reward)


def rewards_of(scores: torch.Tensor) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Return the sum of each row's token scores, float64 (B,), and its tokens, int64 (B,).

    Args:
        scores: (B, T), nested or, when all rows are of one length, not.
    """
    if scores.is_nested:
        values, offsets = scores.values(), scores.offsets()
    else:
        rows, length = scores.shape
        values, offsets = scores.flatten(), torch.arange(rows + 1) * length
    sums = torch.segment_reduce(values.double(), "sum", offsets=offsets)
    return sums.numpy(), offsets.diff().numpy()
