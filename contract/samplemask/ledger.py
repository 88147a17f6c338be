"""The books: every row that was seen, in compact columns, and what they say once attempts are resolved.

The command reads files into a ledger; an adapter can fill one step by step. Both get their numbers
from the same `resolve`, so a run's metrics and the audit of its files agree.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field, fields
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from samplemask.accounting import Disposition
from samplemask.failure_kinds import UNSPECIFIED
from samplemask.rows import Index, RolloutRow

DISPOSITIONS: Final = tuple(Disposition)
SCORED, MASKED, FAILED, OMITTED, UNKNOWN = range(5)
MAIN, FAILURES = "main", "failures"
_NO_INDEX: Final = -1
_LARGEST_PLAIN_INDEX: Final = 2**31 - 1

IntArray = npt.NDArray[np.int64]


class Names:
    """Gives each distinct name a small number."""

    def __init__(self) -> None:
        self._codes: dict[Any, int] = {}

    def code(self, name: Any) -> int:
        """Return the number of `name`; a new name gets the next one."""
        return self._codes.setdefault(name, len(self._codes))

    def __getitem__(self, code: int) -> Any:
        return self.all()[code]

    def all(self) -> list[Any]:
        """Return the names in the order of their numbers."""
        return list(self._codes)

    def __len__(self) -> int:
        return len(self._codes)


@dataclass(slots=True)
class _Rows:
    """Columns of the rows that were seen, about 50 bytes a row."""

    run: array[int] = field(default_factory=lambda: array("i"))
    main: array[int] = field(default_factory=lambda: array("b"))
    line: array[int] = field(default_factory=lambda: array("q"))
    task: array[int] = field(default_factory=lambda: array("i"))
    rollout: array[int] = field(default_factory=lambda: array("i"))
    attempt: array[int] = field(default_factory=lambda: array("i"))
    agent: array[int] = field(default_factory=lambda: array("i"))
    disposition: array[int] = field(default_factory=lambda: array("b"))
    kind: array[int] = field(default_factory=lambda: array("i"))
    reward: array[float] = field(default_factory=lambda: array("d"))


@dataclass(frozen=True, slots=True, eq=False)
class Rollouts:
    """Every expected rollout once, R rows.

    Attributes:
        run_R, task_R, rollout_R, agent_R, kind_R: Codes into the ledger's names; -1 where there is none.
        disposition_R: Index into `DISPOSITIONS`.
        reward_R: The reward; NaN where there is none.
        main_R: The row came from the main file.
        line_R: Its line; 0 for a rollout that left no row.
    """

    run_R: IntArray
    main_R: npt.NDArray[np.bool_]
    line_R: IntArray
    task_R: IntArray
    rollout_R: IntArray
    attempt_R: IntArray
    agent_R: IntArray
    disposition_R: IntArray
    kind_R: IntArray
    reward_R: npt.NDArray[np.float64]

    def take(self, rows: npt.NDArray[Any]) -> Rollouts:
        """Return the chosen rows."""
        return Rollouts(*(getattr(self, column.name)[rows] for column in fields(self)))

    def __len__(self) -> int:
        return len(self.run_R)


@dataclass(frozen=True, slots=True, eq=False)
class Resolved:
    """The books closed: one row per rollout, and the rows that lost to a newer or better one.

    Attributes:
        rollouts: One row per expected rollout.
        unattributed: Rows without task and rollout index, each counted as a rollout of its own.
        superseded: Rows that lost to another attempt.
        duplicates: Rows that lost to a row of the same attempt.
        stale: Sidecar failures of a rollout whose main row is no newer attempt: leftovers.
        unexpected: Rollouts that the materialized inputs do not know.
    """

    rollouts: Rollouts
    unattributed: int
    superseded: Rollouts
    duplicates: Rollouts
    stale: Rollouts
    unexpected: int


class Ledger:
    """Collects rows; `resolve` closes the books."""

    def __init__(self) -> None:
        self.runs = Names()
        self.agents = Names()
        self.kinds = Names()
        self._indices = Names()
        self._rows = _Rows()
        self._expected = _Rows()

    def __len__(self) -> int:
        return len(self._rows.run)

    def add(self, row: RolloutRow, *, run: str = "", role: str = MAIN, line: int = 0) -> None:
        """Record one row.

        Args:
            row: The row.
            run: The run it belongs to; equal indices of different runs are different rollouts.
            role: "main" or "failures", the file that it came from.
            line: Its line there, for reports.
        """
        verdict = row.verdict
        self._append(self._rows, row, run, line)
        self._rows.main.append(role == MAIN)
        self._rows.attempt.append(min(row.attempt or 0, _LARGEST_PLAIN_INDEX))
        self._rows.disposition.append(DISPOSITIONS.index(row.disposition))
        self._rows.kind.append(self._kind(row))
        reward = verdict.reward if verdict is not None else None
        self._rows.reward.append(math.nan if reward is None else reward)

    def expect(self, row: RolloutRow, *, run: str = "") -> None:
        """Record that a rollout was expected; one without indices says nothing."""
        if row.task is not None and row.rollout is not None:
            self._append(self._expected, row, run, 0)

    def index_name(self, code: int) -> Index:
        """Return the task or rollout index that a code stands for."""
        if code >= 0:
            return code
        name: Index = None if code == _NO_INDEX else self._indices[-2 - code]
        return name

    def resolve(self) -> Resolved:
        """Return every expected rollout once; rows of one rollout are settled among themselves.

        A row of the main file beats the sidecar, as in Gym's own resume. Within a file the newest
        attempt wins; within an attempt a result beats a failure, then the later line wins.
        """
        rows = self._seen()
        indexed_N = (rows.task_R != _NO_INDEX) & (rows.rollout_R != _NO_INDEX)
        keyed = rows.take(indexed_N)
        order_N, winner_N = _winners(keyed)
        winners, losers = keyed.take(order_N[winner_N]), keyed.take(order_N[~winner_N])
        victors = keyed.take(order_N[_next_winner(winner_N)][~winner_N])
        older_L = losers.attempt_R < victors.attempt_R
        stale_L = ~losers.main_R & victors.main_R & ~older_L & (losers.disposition_R == FAILED)
        superseded_L = ~stale_L & (losers.attempt_R != victors.attempt_R)
        loose = rows.take(~indexed_N)
        missing, unexpected = self._missing(winners, loose)
        return Resolved(
            _joined(winners, loose, missing),
            len(loose),
            losers.take(superseded_L),
            losers.take(~stale_L & ~superseded_L),
            losers.take(stale_L),
            unexpected,
        )

    def _append(self, rows: _Rows, row: RolloutRow, run: str, line: int) -> None:
        rows.run.append(self.runs.code(run))
        rows.line.append(line)
        rows.task.append(self._index(row.task))
        rows.rollout.append(self._index(row.rollout))
        rows.agent.append(self.agents.code(row.agent))

    def _index(self, value: Index) -> int:
        if value is None:
            return _NO_INDEX
        if isinstance(value, int) and 0 <= value <= _LARGEST_PLAIN_INDEX:
            return value
        return -2 - self._indices.code(value)

    def _kind(self, row: RolloutRow) -> int:
        kind = row.verdict.failure_kind if row.verdict is not None else None
        if kind is None:
            return self.kinds.code(UNSPECIFIED) if row.disposition in _LOST else -1
        return self.kinds.code(kind)

    def _seen(self) -> Rollouts:
        columns = (np.asarray(getattr(self._rows, column.name)) for column in fields(_Rows))
        run, main, line, task, rollout, attempt, agent, disposition, kind, reward = columns
        return Rollouts(
            run, main.astype(bool), line, task, rollout, attempt, agent, disposition, kind, reward
        )

    def _missing(self, winners: Rollouts, loose: Rollouts) -> tuple[Rollouts, int]:
        """Return the expected rollouts that left no row, and how many rollouts nobody expected."""
        if not len(self._expected.run):
            return winners.take(np.zeros(0, dtype=np.intp)), 0
        expected = {
            key: agent
            for *key_parts, agent in zip(
                self._expected.run,
                self._expected.task,
                self._expected.rollout,
                self._expected.agent,
                strict=True,
            )
            for key in (tuple(key_parts),)
        }
        covered = set(self._expected.run)
        seen = zip(winners.run_R.tolist(), winners.task_R.tolist(), winners.rollout_R.tolist(), strict=True)
        unexpected = sum(1 for key in seen if expected.pop(key, None) is None and key[0] in covered)
        return _unknown(_without_loose(expected, loose)), unexpected


_LOST: Final = (Disposition.MASKED, Disposition.FAILED)
_Key = tuple[int, ...]


def _winners(rows: Rollouts) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
    """Return an order that puts the rows of a rollout together, best last, and where each best one is."""
    has_result_N = (rows.disposition_R != FAILED) & (rows.disposition_R != OMITTED)
    order_N = np.lexsort(
        (has_result_N, rows.attempt_R, rows.main_R, rows.rollout_R, rows.task_R, rows.run_R)
    )  # stable: among equals the later line comes last
    keys = (rows.run_R[order_N], rows.task_R[order_N], rows.rollout_R[order_N])
    winner_N = np.ones(len(order_N), dtype=bool)
    if len(order_N):
        winner_N[:-1] = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])
    return order_N, winner_N


def _next_winner(winner_N: npt.NDArray[np.bool_]) -> npt.NDArray[np.intp]:
    """Return for each place the place of the winner of its rollout."""
    places = np.flatnonzero(winner_N)
    return places[np.searchsorted(places, np.arange(len(winner_N)))]


def _without_loose(expected: dict[_Key, int], loose: Rollouts) -> dict[_Key, int]:
    """Let each row without indices stand for one missing rollout of its run, of its own agent if possible.

    Otherwise a run whose rows carry no indices would be counted twice: as rows and as missing.
    """
    waiting: dict[tuple[int, int], list[_Key]] = {}
    for key, agent in expected.items():
        waiting.setdefault((key[0], agent), []).append(key)
    for run, agent in zip(loose.run_R.tolist(), loose.agent_R.tolist(), strict=True):
        homes = [(run, agent), *(home for home in waiting if home[0] == run)]
        home = next((home for home in homes if waiting.get(home)), None)
        if home is not None:
            del expected[waiting[home].pop()]
    return expected


def _unknown(missing: dict[_Key, int]) -> Rollouts:
    count = len(missing)
    run, task, rollout = np.array(list(missing), dtype=np.int64).reshape(count, 3).T
    zeros = np.zeros(count, dtype=np.int64)
    return Rollouts(
        run_R=run,
        main_R=np.zeros(count, dtype=bool),
        line_R=zeros,
        task_R=task,
        rollout_R=rollout,
        attempt_R=zeros,
        agent_R=np.fromiter(missing.values(), np.int64, count),
        disposition_R=zeros + UNKNOWN,
        kind_R=zeros - 1,
        reward_R=np.full(count, math.nan),
    )


def _joined(*parts: Rollouts) -> Rollouts:
    return Rollouts(
        *(np.concatenate([getattr(part, column.name) for part in parts]) for column in fields(Rollouts))
    )
