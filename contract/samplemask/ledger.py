"""The audit's books: every row that was seen, in compact columns, which `resolve` settles."""

from __future__ import annotations

import math
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
    SCORED,
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
_CODES: Final = {disposition: code for code, disposition in enumerate(DISPOSITIONS)}


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
        return len(self._rows)

    def add(
        self, row: RolloutRow, *, run: str = "", role: str = MAIN, line: int = 0, digest: int = 0
    ) -> None:
        """Record one row.

        Args:
            row: The row.
            run: The run it belongs to; equal indices of different runs are different rollouts.
            role: "main" or "failures", the file that it came from.
            line: Its line there, for reports.
            digest: Of the row's text, from 1; equal rows of several runs are then counted once.
        """
        disposition = row.disposition
        self._rows.append(
            self.runs.code(run),
            self._index(row.task),
            self._index(row.rollout),
            0 if row.attempt is None else max(-1, min(row.attempt, LARGEST_SMALL)),
            self.agents.code(row.agent),
            self._kind(row),
            line,
            role == MAIN,
            SCORED if disposition is Disposition.SCORED else _CODES[disposition],
            math.nan if row.reward is None else row.reward,
            _measure(row.tokens, LARGEST),
            _measure(row.turns, LARGEST_SMALL),
            NO_MEASURE if row.time is None else int(row.time),
            digest,
        )

    def expect(self, row: RolloutRow, *, run: str = "") -> None:
        """Record that a rollout was expected; a row without indices says nothing."""
        if row.task is not None and row.rollout is not None:
            agent = self.agents.code(row.agent)
            self._expected.append(self.runs.code(run), self._index(row.task), self._index(row.rollout), agent)

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
        index_codes = np.array([self._index(name) for name in other._indices.all()], dtype=np.int32)
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
        name: Index = None if code == NO_INDEX else self._indices.all()[-2 - code]
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
            nameless["run"], nameless["agent"] = self.runs.code(""), self.agents.code(NO_AGENT)
            rollouts = np.concatenate([rollouts, unknown_rows(nameless)])
        if omitted:
            rollouts = rollouts.copy()
            left_no_row = (rollouts["disposition"] == UNKNOWN) & (rollouts["line"] == 0)
            rollouts["disposition"][np.flatnonzero(left_no_row)[::-1][:omitted]] = OMITTED
        return rollouts

    def _index(self, value: Index) -> int:
        if value is None:
            return NO_INDEX
        if isinstance(value, int) and 0 <= value <= LARGEST:
            return value
        return -2 - self._indices.code(value)

    def _kind(self, row: RolloutRow) -> int:
        if row.kind is not None:
            return self.kinds.code(row.kind)
        lost = row.disposition is Disposition.MASKED or row.disposition is Disposition.FAILED
        return self.kinds.code(UNSPECIFIED) if lost else -1


def _measure(value: float | None, largest: int) -> int:
    return NO_MEASURE if value is None else int(value) if value < largest else largest
