"""The audit's books: every row that was seen, in compact columns, which `resolve` settles."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import numpy as np

from samplemask.accounting import Disposition
from samplemask.columns import (
    COLUMNS,
    DISPOSITIONS,
    EXPECTED,
    LARGEST,
    LARGEST_SMALL,
    NO_INDEX,
    NO_MEASURE,
    OMITTED,
    UNKNOWN,
    Names,
    Rollouts,
    Table,
    unknown_rows,
)
from samplemask.failure_kinds import UNSPECIFIED
from samplemask.resolve import Resolved, resolve
from samplemask.rows import NO_AGENT, Index, RolloutRow

MAIN, FAILURES = "main", "failures"
_SCORED: Final = Disposition.SCORED
_LOST: Final = (Disposition.MASKED, Disposition.FAILED)
_CODES: Final = {disposition: code for code, disposition in enumerate(DISPOSITIONS)}


Seen = tuple[RolloutRow, int, int]
"""A row, its line in the file, for reports, and a digest of its text, from 1; 0: not taken. Of equal rows of
several runs that have one, one is counted."""


class Ledger:
    """Collects rows; `resolve` closes the books, as often as one likes."""

    def __init__(self) -> None:
        self.runs = Names(LARGEST)
        self.agents = Names()
        self.kinds = Names()
        self._indices = Names(LARGEST)
        self._rows = Table(COLUMNS)
        self._expected = Table(EXPECTED)
        self._declared = (0, 0)

    def __len__(self) -> int:
        return len(self._rows.array())

    def add(self, seen: Iterable[Seen], *, run: str = "", role: str = MAIN) -> None:
        """Record rows, many at once where possible: that is faster than each between two lines of a file.

        Args:
            seen: The rows.
            run: The run they belong to; equal indices of different runs are different rollouts.
            role: "main" or "failures", the file that they came from.
        """
        index, agents = self._index, self.agents
        self._rows.add(
            (
                self.runs[run],
                row.task if type(row.task) is int and 0 <= row.task <= LARGEST else index(row.task),
                row.rollout
                if type(row.rollout) is int and 0 <= row.rollout <= LARGEST
                else index(row.rollout),
                0 if row.attempt is None else max(-1, min(row.attempt, LARGEST_SMALL)),
                agents[row.agent],
                -1 if row.kind is None and row.disposition is _SCORED else self._kind(row),
                line,
                role == MAIN,
                _CODES[row.disposition],
                math.nan if row.reward is None else row.reward,
                NO_MEASURE if row.tokens is None else _whole(row.tokens, LARGEST),
                NO_MEASURE if row.turns is None else _whole(row.turns, LARGEST_SMALL),
                NO_MEASURE if row.time is None else int(row.time),
                digest,
            )
            for row, line, digest in seen
        )

    def expect(self, rows: Iterable[RolloutRow], *, run: str = "") -> None:
        """Record that rollouts were expected; a row without indices says nothing."""
        self._expected.add(
            (self.runs[run], self._index(row.task), self._index(row.rollout), self.agents[row.agent])
            for row in rows
            if row.task is not None and row.rollout is not None
        )

    def declare(self, *, expected: int = 0, omitted: int = 0) -> None:
        """State what the rows cannot show.

        Args:
            expected: How many rollouts there should be in all; those that are short are unknown.
            omitted: How many of them are known not to have run.
        """
        self._declared = (expected, omitted)

    def take_in(self, other: Ledger, *, lines_before: int = 0) -> None:
        """Add the rows of another ledger after these.

        Args:
            other: The other ledger.
            lines_before: Lines of the file before the piece that the other one read.
        """
        runs, agents = self.runs.take_in(other.runs), self.agents.take_in(other.agents)
        kinds = np.append(self.kinds.take_in(other.kinds), np.int32(-1))
        index_codes = np.array([self._index(name) for name in other._indices], dtype=np.int32)
        for mine, theirs in ((self._rows, other._rows), (self._expected, other._expected)):
            rows = theirs.array().copy()
            rows["run"], rows["agent"] = runs[rows["run"]], agents[rows["agent"]]
            for name in ("task", "rollout"):
                named = rows[name] < NO_INDEX
                rows[name][named] = index_codes[-2 - rows[name][named]]
            if mine is self._rows:
                rows["kind"] = kinds[rows["kind"]]
                rows["line"] += np.uint32(lines_before)
            mine.extend(rows)

    def index_name(self, code: int) -> Index:
        """Return the task or rollout index that a code stands for."""
        if code >= 0:
            return code
        name: Index = None if code == NO_INDEX else list(self._indices)[-2 - code]
        return name

    def resolve(self) -> Resolved:
        """Return every expected rollout once; see `resolve.resolve`."""
        resolved = resolve(self._rows.array(), self._expected.array())
        expected, _ = self._declared
        too_many = max(len(resolved.rollouts) - expected, 0) if expected else 0
        return replace(
            resolved,
            rollouts=self._with_declared(resolved.rollouts),
            unexpected=max(resolved.unexpected, too_many),
        )

    def _with_declared(self, rollouts: Rollouts) -> Rollouts:
        """Add the rollouts that were only declared, and mark as omitted as many as are known to be."""
        expected, omitted = self._declared
        unknown = int(((rollouts["disposition"] == UNKNOWN) & (rollouts["line"] == 0)).sum())
        short = max(expected - len(rollouts), omitted - unknown, 0)
        if short:
            nameless = np.full(short, NO_INDEX, dtype=EXPECTED)
            nameless["run"], nameless["agent"] = self.runs[""], self.agents[NO_AGENT]
            rollouts = np.concatenate([rollouts, unknown_rows(nameless)])
        if omitted:
            rollouts = rollouts.copy()
            left_no_row = (rollouts["disposition"] == UNKNOWN) & (rollouts["line"] == 0)
            rollouts["disposition"][np.flatnonzero(left_no_row)[::-1][:omitted]] = OMITTED
        return rollouts

    def _index(self, value: Index) -> int:
        if type(value) is int and 0 <= value <= LARGEST:
            return value
        return NO_INDEX if value is None else -2 - self._indices[value]

    def _kind(self, row: RolloutRow) -> int:
        return self.kinds[row.kind or UNSPECIFIED] if row.kind or row.disposition in _LOST else -1


def _whole(value: float, largest: int) -> int:
    return int(value) if value < largest else largest
