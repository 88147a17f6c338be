"""What verl's V1 trainer reads from TransferQueue and writes to it; what samplemask needs rides along.

A rollout is stored with its verdict in its tag. No step makes a call that verl does not make: in a masked one
verl's own write of the rows that vote carries the others, and the marks of all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from samplemask.errors import SeamError
from samplemask.policy import RowPlan
from samplemask_verl.loss import EXCLUSION
from samplemask_verl.tags import COLUMNS, TAG, tag_of, uid_of
from samplemask_verl.verdicts import VERDICT_FIELDS, unwrapped

if TYPE_CHECKING:
    from tensordict import TensorDict

Wrapper = Callable[..., Any]

_reading: ContextVar[tuple[Sequence[str], Callable[[Any], None], Any] | None] = ContextVar(
    "samplemask_reading", default=None
)
_scoring: ContextVar[set[str] | None] = ContextVar("samplemask_scoring", default=None)
_writing: ContextVar[AllRows | None] = ContextVar("samplemask_writing", default=None)


@dataclass(frozen=True)
class AllRows:
    """The B rows of a batch, of which verl's advantage stage is given those that vote.

    Attributes:
        keys: Their keys.
        plan: Who trains and who votes.
        tokens_B: int (B,), response tokens.
        marks_B: int64 (B,), see `loss.EXCLUSION`.
    """

    keys: list[str]
    plan: RowPlan
    tokens_B: npt.NDArray[Any]
    marks_B: torch.Tensor

    def are_voters(self, keys: Sequence[str]) -> bool:
        """Tell whether the keys are those of the V rows that vote."""
        return list(keys) == [self.keys[row] for row in np.flatnonzero(self.plan.votes_B)]

    def of(self, fields: TensorDict) -> TensorDict:
        """Return the fields of all rows, with their marks where there are any: padding of verl's has none.

        Args:
            fields: Those of the rows that vote, each (V, T*) of response tokens.

        Returns:
            Each (B, T*), zeros for the rows that do not train.
        """
        from tensordict import TensorDict  # the legacy trainer loads this module, too, and needs no queue

        spread = {name: self._spread(value) for name, value in fields.items()}
        marks = {EXCLUSION: self.marks_B} if self.marks_B.any() else {}
        return TensorDict({**spread, **marks}, batch_size=len(self.keys))

    def _spread(self, value: torch.Tensor) -> torch.Tensor:
        """Copy runs of rows, not rows: between two rows that do not train lie the others as they are."""
        given, votes_B = value.values(), self.plan.votes_B
        lengths_B = self.tokens_B.copy()
        lengths_B[votes_B] = value.offsets().diff().numpy()
        given_B = np.where(votes_B, lengths_B, 0)
        ends_B = given_B.cumsum()
        longest = int(lengths_B.max())
        zeros = given.new_zeros(longest)
        pieces, start = [], 0
        for row in np.flatnonzero(~self.plan.trains_B).tolist():
            pieces += [given[start : ends_B[row] - given_B[row]], zeros[: lengths_B[row]]]
            start = ends_B[row]
        offsets = torch.from_numpy(np.append(0, lengths_B.cumsum()))
        values = torch.cat([*pieces, given[start:]])
        return torch.nested.nested_tensor_from_jagged(values, offsets, max_seqlen=longest)


@contextmanager
def reading(fields: Sequence[str], judge: Callable[[Any], None], ready: Any = None) -> Iterator[None]:
    """Let the next read of this context bring more fields, and show it to `judge` before the reader sees it.

    Args:
        fields: The fields, `select_fields` of the reader not repeated.
        judge: Takes all that was read, and may change it; an error that it raises is the reader's.
        ready: What the reader asks for, if that was read already; then nothing is read.

    Raises:
        SeamError: Nothing was read.
    """
    with _once(_reading, (fields, judge, ready), "read", "get"):
        yield


@contextmanager
def writing(rows: AllRows) -> Iterator[None]:
    """Let the write of the rows that vote, in this context, write all rows.

    Args:
        rows: All rows.

    Raises:
        SeamError: The rows that vote were not written.
    """
    with _once(_writing, rows, "write", "put"):
        yield


@contextmanager
def _once(waiting: ContextVar[Any], what: Any, verb: str, call: str) -> Iterator[None]:
    """Set what waits for a call of TransferQueue, and see that the call came and took it."""
    token = waiting.set(what)
    try:
        yield
        if waiting.get() is not None:
            raise SeamError(
                f"verl's V1 trainer: expected it to {verb} its rows by transfer_queue.kv_batch_{call}, found "
                f"no such {verb}, so its rows cannot be masked. Install a version of verl that "
                "docs/compatibility.md lists."
            )
    finally:
        waiting.reset(token)


def wrap_get(original: Wrapper) -> Wrapper:
    """Make the wrapper around `transfer_queue.kv_batch_get`."""

    def kv_batch_get(keys: Any, partition_id: str, select_fields: Any = None) -> Any:
        waiting = _reading.get()
        if waiting is None:
            return original(keys, partition_id, select_fields)
        more, judge, ready = waiting
        stored = original(keys, partition_id, [*select_fields, *more]) if ready is None else ready
        _reading.set(None)  # not before: a reader may try again
        judge(stored)
        return stored.exclude(*more) if more else stored

    return kv_batch_get


def wrap_put(original: Wrapper) -> Wrapper:
    """Make the wrapper around `transfer_queue.kv_batch_put`."""

    def kv_batch_put(
        keys: Any, partition_id: str, fields: Any = None, tags: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        rows, written = _writing.get(), _scoring.get()
        if rows is not None and tags is None and rows.are_voters(keys):
            _writing.set(None)
            keys, fields = rows.keys, rows.of(fields)
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
