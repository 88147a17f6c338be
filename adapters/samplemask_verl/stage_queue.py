"""What verl's V1 advantage stage reads from TransferQueue and writes back; samplemask's columns ride along.

So a healthy step makes no call that verl does not make, and a masked step writes its marks with verl's own
results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch

from samplemask.errors import SeamError
from samplemask_verl.loss import EXCLUSION

Wrapper = Callable[..., Any]

_reading: ContextVar[tuple[Sequence[str], Callable[[Any], None]] | None] = ContextVar(
    "samplemask_reading", default=None
)
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
        return stored.exclude(*more)

    return kv_batch_get


def wrap_put(original: Wrapper) -> Wrapper:
    """Make the wrapper around `transfer_queue.kv_batch_put`."""

    def kv_batch_put(keys: Any, partition_id: str, fields: Any = None, *args: Any, **kwargs: Any) -> Any:
        marks_B = _marks.get()
        if marks_B is not None:
            fields = fields.copy().set(EXCLUSION, marks_B)
        return original(keys, partition_id, fields, *args, **kwargs)

    return kv_batch_put
