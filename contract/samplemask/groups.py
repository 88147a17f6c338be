"""Group ids to dense codes: the first step of everything that is done per group."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from samplemask.arrays import as_array
from samplemask.errors import ContractError

Codes = npt.NDArray[np.intp]
_TO_DO = "Pass one id per row, such as verl's uid or the index of the prompt."
# So many rows, runs or ids at a time need little memory, most of it in the processor's cache.
_PIECE = 1 << 16


class Groups(NamedTuple):
    """The groups of a batch of B rows, as R runs: neighbouring rows of one group.

    Rows of a group lie together until ranks are balanced. What is done for each run is then a fraction of
    what is done for each row, and no array of B integers is made.

    Attributes:
        edges: intp (R + 1,), where each run begins, and B at the end. None: each row is a run.
        codes_R: intp (R,), the group of each run, from 0 to G - 1. None: each run is a group of its own.
        number: G.
    """

    edges: Codes | None
    codes_R: Codes | None
    number: int

    def codes(self) -> Codes:
        """Give each row the number of its group."""
        return self._per_row(np.arange(self.number) if self.codes_R is None else self.codes_R)

    def per_row(self, value_G: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Give each row the value of its group."""
        return self._per_row(value_G if self.codes_R is None else value_G[self.codes_R])

    def sizes(self) -> Codes:
        """Count the rows of each group."""
        if self.edges is None:
            return np.bincount(self.codes())
        return self._sum(self.edges[1:] - self.edges[:-1])

    def count_rows(self, flags_B: npt.NDArray[np.bool_]) -> Codes:
        """Count the rows of each group that have a flag."""
        if self.edges is None:
            return np.bincount(self.codes()[flags_B.nonzero()[0]], minlength=self.number)
        flagged_R = np.empty(len(self.edges) - 1, dtype=np.intp)
        for first in range(0, len(flagged_R), _PIECE):  # numpy makes an integer of each flag
            edges = self.edges[first : first + _PIECE + 1]
            starts, flags = edges[:-1] - edges[0], flags_B[edges[0] : edges[-1]]
            flagged_R[first : first + _PIECE] = np.add.reduceat(flags, starts)
        return self._sum(flagged_R)

    def _per_row(self, value_R: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return value_R if self.edges is None else np.repeat(value_R, self.edges[1:] - self.edges[:-1])

    def _sum(self, value_R: Codes) -> Codes:
        return value_R if self.codes_R is None else np.bincount(self.codes_R, value_R).astype(np.intp)


def group_codes(group_B: npt.ArrayLike | Sequence[Any], rows: int) -> tuple[Codes, int]:
    """Number the groups of a batch.

    Args:
        group_B: (B,) group ids: integers, strings, or any hashable values.
        rows: B, the number of rows expected.

    Returns:
        Codes from 0 to G - 1, intp (B,), in an order that is not specified, and G.

    Raises:
        ContractError: Wrong shape, or a missing id (None, NaN).
    """
    ids = _checked(group_B, rows)
    if ids.dtype.kind in "biu" and rows:  # integers are numbered faster than their runs are found
        return _number_integers(ids)
    groups = _found(ids)
    return groups.codes(), groups.number


def find_groups(group_B: npt.ArrayLike | Sequence[Any], rows: int) -> Groups:
    """Find the groups of a batch; arguments and errors are those of `group_codes`."""
    return _found(_checked(group_B, rows))


def _checked(group_B: npt.ArrayLike | Sequence[Any], rows: int) -> npt.NDArray[Any]:
    ids = _as_array(group_B)
    if ids.shape != (rows,):
        raise ContractError.of("group_B", f"one group id per row, shape ({rows},)", ids.shape, _TO_DO)
    return ids


def _found(ids_B: npt.NDArray[Any]) -> Groups:
    if not len(ids_B):
        return Groups(None, np.zeros(0, dtype=np.intp), 0)
    addresses = _addresses(ids_B)
    edges = None if addresses is None else _edges(addresses)
    if edges is None:
        edges = _edges(ids_B)
        if ids_B.dtype == object and edges is not None and not _are_plain(ids_B.tolist()):
            edges = None  # equal ids may yet have different hashes, as np.float32(0.1) and 0.1 do
    if edges is None:
        return Groups(None, *_number(ids_B))
    codes_R, number = _number(ids_B[edges[:-1]], edges)
    return Groups(edges, None if number == len(codes_R) else codes_R, number)


def _as_array(group_B: npt.ArrayLike | Sequence[Any]) -> npt.NDArray[Any]:
    if not isinstance(group_B, (list, tuple)):
        return as_array(group_B)
    # np.asarray would turn [1, "1"] into two equal strings and tuples into a second axis.
    return np.fromiter(group_B, dtype=object, count=len(group_B))


def _addresses(ids_B: npt.NDArray[Any]) -> Codes | None:
    """Return where the objects lie in memory.

    Whoever repeats ids, as verl does, repeats the object, and the same object is the same id. So neighbours
    are compared without a look at the objects themselves, which lie anywhere in memory.
    """
    return np.frombuffer(ids_B, np.intp) if ids_B.dtype == object and ids_B.flags.c_contiguous else None


def _edges(ids_B: npt.NDArray[Any]) -> Codes | None:
    """Return where each run of equal ids begins, and B; None where most neighbours differ."""
    starts = [np.zeros(1, dtype=np.intp)]
    try:
        for first in range(1, len(ids_B), _PIECE):
            last = min(first + _PIECE, len(ids_B))
            differs = ids_B[first:last] != ids_B[first - 1 : last - 1]
            if 2 * np.count_nonzero(differs) > last - first:
                return None
            starts.append(differs.nonzero()[0] + first)
    except Exception:  # noqa: BLE001 - ids that cannot be compared may raise anything
        return None
    return np.concatenate([*starts, [len(ids_B)]])


def _number(ids_R: npt.NDArray[Any], rows_R: Codes | None = None) -> tuple[Codes, int]:
    """Number ids: those of all rows, or those of the runs that begin at `rows_R`."""
    if ids_R.dtype.kind in "biu":
        counts_up = rows_R is not None and np.count_nonzero(ids_R[1:] > ids_R[:-1]) == len(ids_R) - 1
        return (np.arange(len(ids_R)), len(ids_R)) if counts_up else _number_integers(ids_R)
    if ids_R.dtype.kind == "f" and np.isnan(ids_R).any():
        raise ContractError.of("group_B", "a group id in every row", ids_R, _TO_DO)
    try:
        codes_R, groups = _look_up(ids_R, runs=rows_R is not None)
        if _are_plain(groups):  # as in all but the oddest batches
            return codes_R, len(groups)
        if any(hasattr(group, "tolist") for group in groups):
            raise TypeError("tensors hash by identity, so each would be its own group")
    except TypeError:
        ids_R = _as_array([group.tolist() if hasattr(group, "tolist") else group for group in ids_R])
        try:
            codes_R, groups = _look_up(ids_R, runs=rows_R is not None)
        except TypeError as error:
            raise ContractError.of("group_B", "hashable group ids", ids_R[0], _TO_DO) from error
    for code, group in enumerate(groups):
        if _is_missing(group):
            run = int(np.argmax(codes_R == code))
            row = run if rows_R is None else rows_R[run]
            raise ContractError.of(f"group_B[{row}]", "a group id", group, _TO_DO)
    return codes_R, len(groups)


def _is_missing(group: Any) -> bool:
    """Tell whether an id is None, NaN or pandas' NA: a row that belongs nowhere."""
    try:
        return group is None or bool(group != group)
    except TypeError:  # of NA nothing is true or false
        return True


def _are_plain(ids: Iterable[Any]) -> bool:
    return set(map(type, ids)) <= {str, bytes, int}


def _number_integers(ids_R: npt.NDArray[Any]) -> tuple[Codes, int]:
    low, high = int(ids_R.min()), int(ids_R.max())
    span = high - low + 1
    if span > 4 * len(ids_R) + 1024:
        unique, codes_R = np.unique(ids_R, return_inverse=True)
        return codes_R.reshape(-1).astype(np.intp, copy=False), len(unique)
    if ids_R.dtype.kind == "u" and low:
        ids_R = ids_R - ids_R.min()  # in its own type: ids above 2**63 fit nowhere else
        low = 0
    offset_R = ids_R.astype(np.intp, copy=False)
    if low:
        offset_R = offset_R - low
    present = np.bincount(offset_R, minlength=span) > 0
    count = int(np.count_nonzero(present))
    if count == span:
        return offset_R, span
    return (np.cumsum(present) - 1).astype(np.intp, copy=False)[offset_R], count


def _look_up(ids_R: npt.NDArray[Any], runs: bool) -> tuple[Codes, list[Any]]:
    """Number ids; return the code of each and the id of each code."""
    if runs and _all_differ(ids_R):
        return np.arange(len(ids_R)), ids_R.tolist()
    return numbered(_objects(ids_R), len(ids_R))


def _all_differ(ids_R: npt.NDArray[Any]) -> bool:
    """Tell whether no two runs have the same id, as where all rows of each group lie together."""
    first = ids_R[:_PIECE].tolist()
    differ = len(set(first)) == len(first)
    if not differ or len(ids_R) <= _PIECE:
        return differ
    # A set of more would not stay in the cache. What is equal has equal hashes, and these can be sorted.
    hashes = np.fromiter(map(hash, _objects(ids_R)), np.intp, len(ids_R))
    hashes.sort()
    return bool((hashes[1:] != hashes[:-1]).all())


def _objects(ids_B: npt.NDArray[Any]) -> Iterator[Any]:
    """Make objects of the ids, a piece at a time: those of a fixed-width array take much memory."""
    pieces = (ids_B[start : start + _PIECE].tolist() for start in range(0, len(ids_B), _PIECE))
    return itertools.chain.from_iterable(pieces)


def numbered(values: Iterable[Any], count: int) -> tuple[Codes, list[Any]]:
    """Number `count` hashable values as they occur: code of each, and the value of each code."""
    codes: defaultdict[Any, int] = defaultdict(itertools.count().__next__)  # a new value gets the next number
    return np.fromiter(map(codes.__getitem__, values), np.intp, count), list(codes)
