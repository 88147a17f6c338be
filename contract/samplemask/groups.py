"""Group ids to dense codes: the first step of everything that is done per group."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from samplemask.arrays import as_array
from samplemask.errors import ContractError

_TO_DO = "Pass one id per row, such as verl's uid or the index of the prompt."
_PIECE = 1 << 16  # ids that are objects at the same time: a fixed-width array makes each anew


def group_codes(group_B: npt.ArrayLike | Sequence[Any], rows: int) -> tuple[npt.NDArray[np.intp], int]:
    """Number the groups of a batch.

    Args:
        group_B: (B,) group ids: integers, strings, or any hashable values.
        rows: B, the number of rows expected.

    Returns:
        Codes from 0 to G - 1, intp (B,), in an order that is not specified, and G.

    Raises:
        ContractError: Wrong shape, or a missing id (None, NaN).
    """
    ids = _as_array(group_B)
    if ids.shape != (rows,):
        raise ContractError.of("group_B", f"one group id per row, shape ({rows},)", ids.shape, _TO_DO)
    if rows == 0:
        return np.zeros(0, dtype=np.intp), 0
    if ids.dtype.kind in "biu" and (dense := _codes_of_dense(ids)) is not None:
        return dense
    if ids.dtype.kind == "f" and np.isnan(ids).any():
        raise ContractError.of("group_B", "a group id in every row", ids, _TO_DO)
    starts_B = _run_starts(ids)
    if starts_B is None:
        return _look_up(ids, range(rows))
    starts = starts_B.nonzero()[0]
    codes_R, count = _look_up(ids[starts], starts)
    return codes_R[starts_B.cumsum() - 1], count


def _as_array(group_B: npt.ArrayLike | Sequence[Any]) -> npt.NDArray[Any]:
    if not isinstance(group_B, (list, tuple)):
        return as_array(group_B)
    # np.asarray would turn [1, "1"] into two equal strings and tuples into a second axis.
    return np.fromiter(group_B, dtype=object, count=len(group_B))


def _codes_of_dense(ids_B: npt.NDArray[Any]) -> tuple[npt.NDArray[np.intp], int] | None:
    """Number integers by their distance from the least; None where they lie too far apart."""
    low, high = int(ids_B.min()), int(ids_B.max())
    span = high - low + 1
    if span > 4 * len(ids_B) + 1024:
        return None
    if ids_B.dtype.kind == "u" and low:
        ids_B = ids_B - ids_B.min()  # in its own type: ids above 2**63 fit nowhere else
        low = 0
    offset_B = ids_B.astype(np.intp, copy=False)
    if low:
        offset_B = offset_B - low
    present = np.bincount(offset_B, minlength=span) > 0
    if present.all():
        return offset_B, span
    return (np.cumsum(present) - 1).astype(np.intp, copy=False)[offset_B], int(present.sum())


def _run_starts(ids_B: npt.NDArray[Any]) -> npt.NDArray[np.bool_] | None:
    """Mark where each run of equal ids begins; None where the rows of a group do not lie together.

    Comparing neighbours is cheaper than looking ids up, and groups lie together until ranks are balanced.
    """
    starts_B = np.ones(len(ids_B), dtype=bool)
    try:
        for first in range(1, len(ids_B), _PIECE):
            last = min(first + _PIECE, len(ids_B))
            differs = ids_B[first:last] != ids_B[first - 1 : last - 1]
            if 2 * np.count_nonzero(differs) > last - first:
                return None
            starts_B[first:last] = differs
    except Exception:  # noqa: BLE001 - ids that cannot be compared may raise anything
        return None
    return starts_B


def _look_up(
    ids_B: npt.NDArray[Any], rows_B: Sequence[int] | npt.NDArray[np.intp]
) -> tuple[npt.NDArray[np.intp], int]:
    """Number ids; `rows_B` is what errors call them."""
    if ids_B.dtype.kind in "biu":
        unique, codes_B = np.unique(ids_B, return_inverse=True)
        return codes_B.reshape(-1).astype(np.intp, copy=False), len(unique)
    try:
        codes_B, groups = _numbered(ids_B)
        if set(map(type, groups)) <= {str, bytes, int}:  # as in all but the oddest batches
            return codes_B, len(groups)
        if any(hasattr(group, "tolist") for group in groups):
            raise TypeError("tensors hash by identity, so each would be its own group")
    except TypeError:
        ids_B = _as_array([group.tolist() if hasattr(group, "tolist") else group for group in ids_B])
        try:
            codes_B, groups = _numbered(ids_B)
        except TypeError as error:
            raise ContractError.of("group_B", "hashable group ids", ids_B[0], _TO_DO) from error
    for code, group in enumerate(groups):
        if group is None or group != group:  # None or NaN: a row that belongs nowhere
            row = rows_B[int(np.argmax(codes_B == code))]
            raise ContractError.of(f"group_B[{row}]", "a group id", group, _TO_DO)
    return codes_B, len(groups)


def _numbered(ids_B: npt.NDArray[Any]) -> tuple[npt.NDArray[np.intp], list[Any]]:
    pieces = (ids_B[start : start + _PIECE].tolist() for start in range(0, len(ids_B), _PIECE))
    return numbered(itertools.chain.from_iterable(pieces), len(ids_B))


def numbered(values: Iterable[Any], count: int) -> tuple[npt.NDArray[np.intp], list[Any]]:
    """Number `count` hashable values as they occur: code of each, and the value of each code."""
    codes: defaultdict[Any, int] = defaultdict(itertools.count().__next__)  # a new value gets the next number
    return np.fromiter(map(codes.__getitem__, values), np.intp, count), list(codes)
