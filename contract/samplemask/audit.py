"""The audit: how many rollouts were measured, what the others were lost to, and what that did."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from samplemask.cost import training_cost
from samplemask.errors import ContractError
from samplemask.ledger import FAILURES, MAIN, Ledger, Resolved
from samplemask.quality import Counting, Summary, by_agent, pass_at, summarize, tasks
from samplemask.rollouts import Line, RunFiles, find_runs, read_lines
from samplemask.rows import UnreadableLineError, make_decode, row_of
from samplemask.safety import safety

MAX_LISTED: Final = 100_000
"""Most unreadable lines that are kept with their reasons, over all files; all are counted."""

MAX_STALE_LISTED: Final = 1000

Progress = Callable[[RunFiles, Line], None]


@dataclass(frozen=True, slots=True)
class Problem:
    """One line that could not be read."""

    file: str
    line: int
    reason: str


@dataclass(slots=True)
class FileCount:
    """What one file held, in lines that are not blank.

    Attributes:
        path: The file.
        role: "main", "failures" or "inputs".
        rows: Lines that were read.
        unreadable: Lines that were not.
    """

    path: str
    role: str
    rows: int = 0
    unreadable: int = 0


@dataclass(frozen=True, slots=True)
class Limit:
    """From where on losses are an alarm; the defaults are the example of NeMo Gym's configuration.

    Attributes:
        max_lost: Largest fraction of masked and failed rollouts, 0 to 1, that is no alarm.
        min_rollouts: Fewest rollouts that ran for which there can be one.
    """

    max_lost: float = 0.5
    min_rollouts: int = 50


@dataclass(slots=True)
class Audit:
    """The audit of some files.

    Attributes:
        total: All rollouts.
        agents: Each agent's rollouts, those that lost most first.
        pass_at: pass@k by str(k).
        tasks: Task counts and the worst tasks.
        cost: What the failures did to training.
        safety: What the failures depend on.
        limit: From where on losses are an alarm.
        reader: The files and what could not be read in them.
        resolved: The rollouts.
        ledger: The names that their codes stand for.
    """

    total: Summary
    agents: dict[str, Summary]
    pass_at: dict[str, float | None]
    tasks: dict[str, Any]
    cost: dict[str, Any]
    safety: dict[str, Any]
    limit: Limit
    reader: Reader = field(repr=False)
    resolved: Resolved = field(repr=False)
    ledger: Ledger = field(repr=False)

    @property
    def alarm(self) -> bool:
        """True when so much is lost that the mean of the rest says little about the policy."""
        coverage = self.total.coverage
        lost = coverage.masked + coverage.failed
        ran = lost + coverage.scored
        return ran >= self.limit.min_rollouts and lost / ran > self.limit.max_lost

    def to_json(self) -> dict[str, Any]:
        """Return the document that `samplemask audit --json` prints; docs/audit.md describes it."""
        problems, resolved = self.reader.problems, self.resolved
        document = {
            **self.total.to_json(),
            "unreadable_lines": [problem.line for problem in problems],
            "unreadable": {
                "count": self.reader.unreadable,
                "lines": [asdict(problem) for problem in problems],
            },
            "alarm": {"raised": self.alarm, **asdict(self.limit)},
            "pass_at": self.pass_at,
            "by_agent": {name: summary.to_json() for name, summary in self.agents.items()},
            "tasks": self.tasks,
            "cost": self.cost,
            "safety": self.safety,
            "rows": {
                "unattributed": resolved.unattributed,
                "superseded_attempts": len(resolved.superseded),
                "duplicates": len(resolved.duplicates),
                "stale_failures": len(resolved.stale),
                "unexpected": resolved.unexpected,
                "conflicts": self.reader.conflicts,
            },
            "stale_failures": self._stale(),
            "files": [asdict(file) for file in self.reader.files],
        }
        finite: dict[str, Any] = _finite(document)
        return finite

    def _stale(self) -> list[dict[str, Any]]:
        runs = self.ledger.runs.all()
        return [
            {
                "run": runs[row["run"]],
                "line": int(row["line"]),
                "task": self.ledger.index_name(int(row["task"])),
                "rollout": self.ledger.index_name(int(row["rollout"])),
            }
            for row in self.resolved.stale[:MAX_STALE_LISTED]
        ]


class Reader:
    """Reads files into a ledger and keeps what it could not read."""

    def __init__(
        self, ledger: Ledger, *, failures_as_zero: Collection[str] = (), fast: bool | None = None
    ) -> None:
        self.files: list[FileCount] = []
        self.problems: list[Problem] = []
        self.conflicts = 0
        self._ledger = ledger
        self._decode = make_decode(fast)
        self._failures_as_zero = failures_as_zero

    @property
    def unreadable(self) -> int:
        """Lines that could not be read."""
        return sum(file.unreadable for file in self.files)

    def read(self, run: RunFiles, progress: Progress | None = None) -> None:
        """Read the files of one run."""
        for role, path in run:
            file = FileCount(str(path), role)
            self.files.append(file)
            for line in read_lines(path):
                if line.problem is not None:
                    self._report(file, line.number, line.problem)
                    continue
                try:
                    self._book(line, file, run.name)
                except UnreadableLineError as error:
                    self._report(file, line.number, str(error))
                if progress is not None:
                    progress(run, line)

    def _book(self, line: Line, file: FileCount, run: str) -> None:
        row = row_of(self._decode(line.text), failures_as_zero=self._failures_as_zero)
        if file.role not in (MAIN, FAILURES):
            self._ledger.expect(row, run=run)
        elif row.problem is None or (row.task is not None and row.rollout is not None):
            # A row whose verdict cannot be read still says that its rollout existed: it is unknown.
            self._ledger.add(row, run=run, role=file.role, line=line.number)
        if row.problem is not None and file.role in (MAIN, FAILURES):
            self._report(file, line.number, row.problem)
            return
        file.rows += 1
        self.conflicts += row.verdict is not None and row.verdict.conflict

    def _report(self, file: FileCount, number: int, reason: str) -> None:
        file.unreadable += 1
        if len(self.problems) < MAX_LISTED:
            self.problems.append(Problem(file.path, number, reason))


def audit_files(
    paths: Sequence[str | Path],
    *,
    siblings: bool = True,
    failures_as_zero: Collection[str] = (),
    counting: Counting | None = None,
    expected: int = 0,
    omitted: int = 0,
    limit: Limit | None = None,
    fast: bool | None = None,
    progress: Progress | None = None,
) -> Audit:
    """Audit rollout files.

    Args:
        paths: Main files, failure sidecars and materialized inputs of one or many runs.
        siblings: Also use the sidecar and the inputs that lie beside a file.
        failures_as_zero: Failure classes that count as a measured zero.
        counting: What else counts as a zero in `reward["counted"]` and pass@k.
        expected: How many rollouts there should be; 0: as many as the files say.
        omitted: How many of them are known not to have run (files do not say).
        limit: From where on losses are an alarm.
        fast: Decode with msgspec; None: if it is installed. The result is the same.
        progress: Called with the run and the line after each line.

    Raises:
        ContractError: A path is no file.
    """
    if isinstance(paths, (str, Path)):
        raise ContractError.of("paths", "a sequence of paths", paths, "Put it into a list.")
    ledger = Ledger()
    ledger.declare(expected=expected, omitted=omitted)
    reader = Reader(ledger, failures_as_zero=failures_as_zero, fast=fast)
    for run in find_runs(paths, siblings=siblings):
        reader.read(run, progress)
    return close(ledger, reader, counting or Counting(), limit or Limit())


def close(ledger: Ledger, reader: Reader, counting: Counting, limit: Limit) -> Audit:
    """Close the books and work out the audit."""
    resolved = ledger.resolve()
    rollouts = resolved.rollouts
    return Audit(
        total=summarize(rollouts, ledger, counting),
        agents=by_agent(rollouts, ledger, counting),
        pass_at=pass_at(rollouts, counting),
        tasks=tasks(rollouts, ledger),
        cost=training_cost(rollouts),
        safety=safety(rollouts, ledger),
        limit=limit,
        reader=reader,
        resolved=resolved,
        ledger=ledger,
    )


def _finite(value: Any) -> Any:
    """Replace what JSON cannot say (NaN, inf) by null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
