"""Group ids to dense codes: the first step of everything that is done per group."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from samplemask.arrays import as_array
from samplemask.errors import ContractError

_TO_DO = "Pass one id per row, such as verl's uid or the index of the prompt."


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
    if ids.dtype.kind in "biu":
        return _codes_of_integers(ids)
    if ids.dtype.kind == "f" and np.isnan(ids).any():
        raise ContractError.of("group_B", "a group id in every row", ids, _TO_DO)
    if ids.dtype.kind in "US":
        return _codes_of_runs(ids)
    return _codes_of_hashables(ids.tolist())


def _as_array(group_B: npt.ArrayLike | Sequence[Any]) -> npt.NDArray[Any]:
    if not isinstance(group_B, (list, tuple)):
        return as_array(group_B)
    # np.asarray would turn [1, "1"] into two equal strings and tuples into a second axis.
    return np.fromiter(group_B, dtype=object, count=len(group_B))


def _codes_of_integers(ids_B: npt.NDArray[Any]) -> tuple[npt.NDArray[np.intp], int]:
    low, high = int(ids_B.min()), int(ids_B.max())
    span = high - low + 1
    if span > 4 * len(ids_B) + 1024:
        unique, codes = np.unique(ids_B, return_inverse=True)
        return codes.reshape(-1).astype(np.intp, copy=False), len(unique)
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


def _codes_of_runs(ids_B: npt.NDArray[Any]) -> tuple[npt.NDArray[np.intp], int]:
    """Look up one id of each run of equal ids: rows of a group mostly lie together, and each id is copied."""
    starts = np.flatnonzero(np.concatenate([[True], ids_B[1:] != ids_B[:-1]]))
    codes_R, count = _codes_of_hashables(ids_B[starts].tolist())
    return np.repeat(codes_R, np.diff(starts, append=len(ids_B))), count


def _codes_of_hashables(ids: list[Any]) -> tuple[npt.NDArray[np.intp], int]:
    try:
        codes_B, groups = numbered(ids)
        if any(getattr(group, "ndim", None) == 0 for group in groups):
            raise TypeError("tensors hash by identity, so each would be its own group")
    except TypeError:
        ids = [group.item() if getattr(group, "ndim", None) == 0 else group for group in ids]
        try:
            codes_B, groups = numbered(ids)
        except TypeError as error:
            raise ContractError.of("group_B", "hashable group ids", ids[0], _TO_DO) from error
    for group in groups:
        if group is None or group != group:  # None or NaN: a row that belongs nowhere
            row = next(row for row, this in enumerate(ids) if this is group)
            raise ContractError.of(f"group_B[{row}]", "a group id", group, _TO_DO)
    return codes_B, len(groups)


def numbered(values: list[Any]) -> tuple[npt.NDArray[np.intp], list[Any]]:
    """Number hashable values in the order in which they occur: code of each, and the value of each code."""
    codes: defaultdict[Any, int] = defaultdict(itertools.count().__next__)  # a new value gets the next number
    return np.fromiter(map(codes.__getitem__, values), np.intp, len(values)), list(codes)
