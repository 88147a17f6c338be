"""Zeroes rows of a batch's mask, without a copy where nobody could tell the difference.

A copy of a mask of (rows, tokens) costs about as much as verl's fastest estimator does. verl 0.9.1's own
loop keeps a name on the mask (`response_masks` in `RayPPOTrainer.fit`) unless old log-probs are bypassed.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import torch
from tensordict import TensorDict

from samplemask_verl.loss import zero_rows


def zero_rows_of(batch: Any, name: str, excluded_B: torch.Tensor) -> None:
    """Make the excluded rows of a column zero.

    In place when the batch alone holds the column and its memory; else the batch gets a copy, and
    whoever holds the old one, or a view of it, finds it unchanged.

    Args:
        batch: The tensors of a DataProto.
        name: The column, jagged (B, T*) or dense (B, T).
        excluded_B: bool (B,).
    """
    if _seen_of(batch, name) == _seen_when_alone():
        batch[name].index_fill_(0, excluded_B.nonzero()[:, 0], 0)
    else:
        batch[name] = zero_rows(batch[name], excluded_B)


@cache
def _seen_when_alone() -> tuple[Any, ...]:
    """Look at a column that a new batch alone holds: what is counted depends on the version of Python."""
    with torch.inference_mode(False):  # whatever the caller is in: this is remembered
        return _seen_of(TensorDict({"mask": torch.zeros((2, 2), dtype=torch.int64)}, batch_size=2), "mask")


def _seen_of(batch: Any, name: str) -> tuple[Any, ...]:
    """Say what a column is, and how many hold it (Python, torch) or its memory (views, numpy, processes)."""
    column = batch[name]
    if type(column) is not torch.Tensor or column.is_nested:
        return ()
    memory = column.untyped_storage()
    kind = (type(batch), column.device, column.is_contiguous(), column.is_inference(), column.requires_grad)
    from_elsewhere = (memory.is_shared(), not memory.resizable())
    holders = (column._use_count(), torch._C._storage_Use_Count(memory._cdata))
    names = (sys.getrefcount(column), sys.getrefcount(memory))
    return (*kind, *from_elsewhere, *holders, *names)
