"""The books: every row that was seen, in compact columns, and what they say once attempts are resolved.

The command reads files into a ledger; a trainer's adapter can fill one step by step. Both get their
numbers from the same `resolve`, so a run's own metrics and the audit of its files agree.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from samplemask.accounting import Disposition
from samplemask.failure_kinds import UNSPECIFIED
from samplemask.rows import NO_AGENT, Index, RolloutRow

DISPOSITIONS: Final = tuple(Disposition)
SCORED, MASKED, FAILED, OMITTED, UNKNOWN = range(5)
MAIN, FAILURES = "main", "failures"
NO_INDEX: Final = -1
NO_MEASURE: Final = -1

Rollouts = npt.NDArray[np.void]
"""Structured array of `COLUMNS`, one row per rollout."""

COLUMNS: Final = np.dtype(
    [
        ("run", "i4"),
        ("task", "i4"),
        ("rollout", "i4"),
        ("attempt", "i4"),
        ("agent", "i4"),
        ("kind", "i4"),
        ("line", "u4"),
        ("main", "?"),
        ("disposition", "i1"),
        ("reward", "f8"),
        ("tokens", "i4"),
        ("turns", "i4"),
        ("time", "i8"),
        ("step", "i4"),
    ]
)
_EXPECTED: Final = np.dtype([("run", "i4"), ("task", "i4"), ("rollout", "i4"), ("agent", "i4")])
_CODES: Final = {disposition: code for code, disposition in enumerate(DISPOSITIONS)}
_LARGEST: Final = 2**31 - 1
_CHUNK: Final = 4096


class Names:
    """Gives each distinct name a small number; so many at most, then they share one."""

    OTHERS: Final = "(other names)"

    def __init__(self, limit: int = 50_000) -> None:
        self._codes: dict[Any, int] = {}
        self._limit = limit

    def code(self, name: Any) -> int:
        """Return the number of `name`; a new name gets the next one."""
        code = self._codes.get(name)
        if code is None:
            name = name if len(self._codes) < self._limit else self.OTHERS
            code = self._codes.setdefault(name, len(self._codes))
        return code

    def all(self) -> list[Any]:
        """Return the names in the order of their numbers."""
        return list(self._codes)


class _Table:
    """Grows a structured array from tuples."""

    def __init__(self, columns: np.dtype[np.void]) -> None:
        self._columns = columns
        self._chunks: list[npt.NDArray[np.void]] = []
        self._waiting: list[tuple[Any, ...]] = []

    def append(self, values: tuple[Any, ...]) -> None:
        self._waiting.append(values)
        if len(self._waiting) >= _CHUNK:
            self._pack()

    def _pack(self) -> None:
        self._chunks.append(np.array(self._waiting, dtype=self._columns))
        self._waiting = []

    def array(self) -> npt.NDArray[np.void]:
        """Return all rows; they are kept, so the table can grow on."""
        self._pack()
        self._chunks = [np.concatenate(self._chunks)] if len(self._chunks) > 1 else self._chunks
        return self._chunks[0]

    def extend(self, rows: npt.NDArray[np.void]) -> None:
        self._chunks.append(rows)

    def __len__(self) -> int:
        return sum(map(len, self._chunks)) + len(self._waiting)


@dataclass(frozen=True, slots=True, eq=False)
class Resolved:
    """The books closed: one row per rollout, and the rows that lost to a newer or better one.

    Attributes:
        rollouts: One row per expected rollout, sorted by run, task and rollout.
        unattributed: Rows without task or rollout index, each counted as a rollout of its own.
        superseded: Rows that lost to another attempt.
        duplicates: Rows that lost to a row of the same attempt.
        stale: Sidecar failures of a rollout whose main row is no newer attempt: leftovers.
        unexpected: Rollouts that the materialized inputs of their run do not know.
    """

    rollouts: Rollouts
    unattributed: int
    superseded: Rollouts
    duplicates: Rollouts
    stale: Rollouts
    unexpected: int


class Ledger:
    """Collects rows; `resolve` closes the books, as often as one likes."""

    def __init__(self) -> None:
        self.runs = Names()
        self.agents = Names()
        self.kinds = Names()
        self._indices = Names(_LARGEST)
        self._rows = _Table(COLUMNS)
        self._expected = _Table(_EXPECTED)
        self._declared = (0, 0)

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, row: RolloutRow, *, run: str = "", role: str = MAIN, line: int = 0) -> None:
        """Record one row.

        Args:
            row: The row.
            run: The run it belongs to; equal indices of different runs are different rollouts.
            role: "main" or "failures", the file that it came from.
            line: Its line there, for reports.
        """
        reward = row.verdict.reward if row.verdict is not None else None
        self._rows.append(
            (
                self.runs.code(run),
                self._index(row.task),
                self._index(row.rollout),
                min(row.attempt or 0, _LARGEST),
                self.agents.code(row.agent),
                self._kind(row),
                line,
                role == MAIN,
                _CODES[row.disposition],
                math.nan if reward is None else reward,
                _measure(row.tokens),
                _measure(row.turns),
                NO_MEASURE if row.time is None else int(row.time),
                _measure(row.step),
            )
        )

    def expect(self, row: RolloutRow, *, run: str = "") -> None:
        """Record that a rollout was expected; a row without indices says nothing."""
        if row.task is not None and row.rollout is not None:
            agent = self.agents.code(row.agent)
            self._expected.append(
                (self.runs.code(run), self._index(row.task), self._index(row.rollout), agent)
            )

    def declare(self, *, expected: int = 0, omitted: int = 0) -> None:
        """State what the rows cannot show.

        Args:
            expected: How many rollouts there should be in all; those that are short are unknown.
            omitted: How many of them are known not to have run.
        """
        self._declared = (expected, omitted)

    def index_name(self, code: int) -> Index:
        """Return the task or rollout index that a code stands for."""
        if code >= 0:
            return code
        name: Index = None if code == NO_INDEX else self._indices.all()[-2 - code]
        return name

    def resolve(self) -> Resolved:
        """Return every expected rollout once; rows of one rollout are settled among themselves.

        A row of the main file beats the sidecar, as in Gym's own resume. Within a file the newest
        attempt wins; within an attempt a result beats a failure, then the later line wins.
        """
        rows = self._rows.array()
        indexed_N = (rows["task"] != NO_INDEX) & (rows["rollout"] != NO_INDEX)
        keyed, loose = rows[indexed_N], rows[~indexed_N]
        order_N, winner_N = _winners(keyed)
        winners = keyed[order_N[winner_N]]
        losers, victors = keyed[order_N[~winner_N]], keyed[order_N[_next_winner(winner_N)]]
        older_L = losers["attempt"] < victors["attempt"]
        stale_L = ~losers["main"] & victors["main"] & ~older_L & (losers["disposition"] == FAILED)
        superseded_L = ~stale_L & (losers["attempt"] != victors["attempt"])
        missing, unexpected = self._missing(winners, loose)
        rollouts = np.concatenate([winners, loose, missing])
        return Resolved(
            rollouts=self._with_declared(rollouts),
            unattributed=len(loose),
            superseded=losers[superseded_L],
            duplicates=losers[~stale_L & ~superseded_L],
            stale=losers[stale_L],
            unexpected=unexpected,
        )

    def _with_declared(self, rollouts: Rollouts) -> Rollouts:
        """Add the rollouts that were only declared, and mark as omitted as many as are known to be."""
        expected, omitted = self._declared
        unknown = int((rollouts["disposition"] == UNKNOWN).sum())
        short = max(expected - len(rollouts), omitted - unknown, 0)
        nameless = np.full(short, NO_INDEX, dtype=_EXPECTED)
        if short:
            nameless["run"], nameless["agent"] = self.runs.code(""), self.agents.code(NO_AGENT)
        rollouts = np.concatenate([rollouts, _unknown(nameless)])
        rollouts["disposition"][np.flatnonzero(rollouts["disposition"] == UNKNOWN)[::-1][:omitted]] = OMITTED
        return rollouts

    def _index(self, value: Index) -> int:
        if value is None:
            return NO_INDEX
        if isinstance(value, int) and 0 <= value <= _LARGEST:
            return value
        return -2 - self._indices.code(value)

    def _kind(self, row: RolloutRow) -> int:
        kind = row.verdict.failure_kind if row.verdict is not None else None
        if kind is not None:
            return self.kinds.code(kind)
        lost = row.disposition is Disposition.MASKED or row.disposition is Disposition.FAILED
        return self.kinds.code(UNSPECIFIED) if lost else -1

    def _missing(self, winners: Rollouts, loose: Rollouts) -> tuple[Rollouts, int]:
        """Return the expected rollouts that left no row, and how many rollouts nobody expected."""
        expected = self._expected.array()
        gone, unexpected = [_unknown(expected[:0])], 0
        for run in np.unique(expected["run"]).tolist():
            wanted = expected[expected["run"] == run]
            keys, first = np.unique(_keys(wanted), return_index=True)
            seen = _keys(winners[winners["run"] == run])
            missing = wanted[first[~np.isin(keys, seen)]]
            unexpected += int((~np.isin(seen, keys)).sum())
            gone.append(_unknown(_without_loose(missing, loose[loose["run"] == run])))
        return np.concatenate(gone), unexpected


def _measure(value: float | None) -> int:
    return NO_MEASURE if value is None else min(int(value), _LARGEST)


def _keys(rows: npt.NDArray[np.void]) -> npt.NDArray[np.int64]:
    """Return task and rollout of each row as one number; both fit into 32 bits."""
    keys: npt.NDArray[np.int64] = (rows["task"].astype(np.int64) << 32) | (
        rows["rollout"].astype(np.int64) & 0xFFFFFFFF
    )
    return keys


def _winners(rows: Rollouts) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
    """Return an order that puts the rows of a rollout together, best last, and where each best one is."""
    has_result_N = (rows["disposition"] != FAILED) & (rows["disposition"] != OMITTED)
    key_N = _keys(rows)
    # Stable: among equals the later line comes last.
    order_N = np.lexsort((has_result_N, rows["attempt"], rows["main"], key_N, rows["run"]))
    key_N, run_N = key_N[order_N], rows["run"][order_N]
    winner_N = np.ones(len(order_N), dtype=bool)
    winner_N[:-1] = (key_N[1:] != key_N[:-1]) | (run_N[1:] != run_N[:-1])
    return order_N, winner_N


def _next_winner(winner_N: npt.NDArray[np.bool_]) -> npt.NDArray[np.intp]:
    """Return for each loser the place of the winner of its rollout."""
    places = np.flatnonzero(winner_N)
    return places[np.searchsorted(places, np.flatnonzero(~winner_N))]


def _without_loose(missing: npt.NDArray[np.void], loose: Rollouts) -> npt.NDArray[np.void]:
    """Let each row without indices stand for one missing rollout, of its own agent where possible.

    Otherwise a run whose rows carry no indices would be counted twice: as rows and as missing.
    """
    stays = np.ones(len(missing), dtype=bool)
    agents, counts = np.unique(loose["agent"], return_counts=True)
    left = len(loose)
    for agent, count in zip(agents.tolist(), counts.tolist(), strict=True):
        own = np.flatnonzero(missing["agent"] == agent)[:count]
        stays[own] = False
        left -= len(own)
    stays[np.flatnonzero(stays)[:left]] = False
    return missing[stays]


def _unknown(missing: npt.NDArray[np.void]) -> Rollouts:
    rows = np.zeros(len(missing), dtype=COLUMNS)
    for name in _EXPECTED.names or ():
        rows[name] = missing[name]
    rows["disposition"], rows["reward"] = UNKNOWN, math.nan
    for name in ("kind", "tokens", "turns", "time", "step"):
        rows[name] = NO_MEASURE
    return rows
