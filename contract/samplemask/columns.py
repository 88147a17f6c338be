"""The compact form of rollouts: one structured array, names as small numbers."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from itertools import starmap
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from samplemask.accounting import Disposition

DISPOSITIONS: Final = tuple(Disposition)
SCORED, MASKED, FAILED, OMITTED, UNKNOWN = range(5)
NO_INDEX: Final = -1
NO_MEASURE: Final = -1
LARGEST: Final = 2**31 - 1
LARGEST_SMALL: Final = 2**15 - 1

Rollouts = npt.NDArray[np.void]
"""Structured array of `COLUMNS`, one row per rollout."""

COLUMNS: Final = np.dtype(
    [
        ("run", "i4"),
        ("task", "i4"),
        ("rollout", "i4"),
        ("attempt", "i2"),
        ("agent", "i2"),
        ("kind", "i2"),  # -1: none
        ("line", "u4"),  # 0: the rollout left no row
        ("main", "?"),  # from the main file, not from a failure sidecar
        ("disposition", "i1"),  # index into DISPOSITIONS
        ("reward", "f8"),  # NaN: none
        ("tokens", "i4"),
        ("turns", "i2"),
        ("time", "i8"),  # Unix seconds
        ("digest", "u4"),  # of the row's text; 0: not taken
    ]
)
EXPECTED: Final = np.dtype([("run", "i4"), ("task", "i4"), ("rollout", "i4"), ("agent", "i2")])


class Names(dict[Any, int]):
    """Gives each distinct name a small number; beyond `limit` names, new ones share one."""

    OTHERS: Final = "(other names)"

    def __init__(self, limit: int = 30_000) -> None:
        super().__init__()
        self._limit = limit

    def __missing__(self, name: Any) -> int:
        """Give a new name the next number."""
        return self.setdefault(name if len(self) < self._limit else self.OTHERS, len(self))

    def take_in(self, other: Names) -> npt.NDArray[np.int32]:
        """Add another's names; return the new number of each."""
        return np.array([self[name] for name in other], dtype=np.int32)


class Table:
    """A structured array that grows."""

    def __init__(self, columns: np.dtype[np.void]) -> None:
        self._columns = columns
        self._packed = bytearray()
        formats = "".join(columns[name].char for name in columns.names or ())
        self._format = "=" + formats.replace("l", "q")  # numpy calls int64 a long

    def add(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Add rows, each a tuple of its values."""
        self._append(b"".join(starmap(struct.Struct(self._format).pack, rows)))

    def extend(self, rows: npt.NDArray[np.void]) -> None:
        """Add rows of another table."""
        self._append(rows.tobytes())

    def array(self) -> npt.NDArray[np.void]:
        """Return all rows, a view; the table can grow on."""
        return (
            np.frombuffer(self._packed, dtype=self._columns) if self._packed else np.empty(0, self._columns)
        )

    def _append(self, packed: bytes) -> None:
        try:
            self._packed += packed  # the system moves the pages: no second copy, even for a moment
        except BufferError:  # someone holds a view
            self._packed = self._packed + packed


def chosen(rows: Rollouts, chosen_R: npt.NDArray[np.bool_]) -> Rollouts:
    """Return the chosen rows; all of them without a copy: the usual file has nothing to leave out."""
    return rows if chosen_R.all() else rows[chosen_R]


def keys_of(rows: npt.NDArray[np.void]) -> npt.NDArray[np.int64]:
    """Return task and rollout of each row as one number; both fit into 32 bits."""
    keys: npt.NDArray[np.int64] = (rows["task"].astype(np.int64) << 32) | (
        rows["rollout"].astype(np.int64) & 0xFFFFFFFF
    )
    return keys


class Groups:
    """Numbers the groups of rollouts that share some columns.

    Attributes:
        code_R: The group of each row, 0 to `count` - 1.
        count: Number of groups, G.
        first_G: One row of each group.
        size_G: Rows of each group.
    """

    def __init__(self, rollouts: Rollouts, columns: tuple[str, ...]) -> None:
        order = (
            np.lexsort([rollouts[name] for name in reversed(columns)]) if len(rollouts) else np.zeros(0, int)
        )
        starts = np.zeros(len(order), dtype=bool)
        starts[:1] = True
        for name in columns:
            column = rollouts[name][order]
            starts[1:] |= column[1:] != column[:-1]
        self.code_R: npt.NDArray[np.signedinteger[Any]] = np.empty(len(order), dtype=np.int32)
        self.code_R[order] = np.cumsum(starts, dtype=np.int32) - 1
        self.first_G = order[starts]
        self.count = len(self.first_G)
        self.size_G = np.bincount(self.code_R, minlength=self.count)

    def counts(self, chosen_R: npt.NDArray[np.bool_]) -> npt.NDArray[np.intp]:
        """Count the chosen rows of each group, (G,)."""
        return np.bincount(self.code_R[chosen_R], minlength=self.count)

    def means(
        self, values_R: npt.NDArray[np.float64], chosen_R: npt.NDArray[np.bool_]
    ) -> npt.NDArray[np.float64]:
        """Return the mean of the chosen rows of each group, (G,); NaN for a group without any."""
        counts_G = self.counts(chosen_R)
        totals_G = np.bincount(self.code_R[chosen_R], weights=values_R[chosen_R], minlength=self.count)
        means_G = np.full(self.count, np.nan)
        np.divide(totals_G, counts_G, out=means_G, where=counts_G > 0)
        return means_G


def unknown_rows(expected: npt.NDArray[np.void]) -> Rollouts:
    """Return expected rollouts as rows that left no trace."""
    rows = np.zeros(len(expected), dtype=COLUMNS)
    for name in EXPECTED.names or ():
        rows[name] = expected[name]
    rows["disposition"], rows["reward"], rows["kind"] = UNKNOWN, np.nan, -1
    for name in ("tokens", "turns", "time"):
        rows[name] = NO_MEASURE
    return rows
