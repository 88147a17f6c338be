"""The audit: how many rollouts were measured, what the others were lost to, and the reward without them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from samplemask.accounting import Coverage, Disposition
from samplemask.ledger import DISPOSITIONS, FAILED, FAILURES, MAIN, MASKED, SCORED, Ledger, Resolved, Rollouts
from samplemask.rollouts import RunFiles, find_runs, read_lines
from samplemask.rows import UnreadableLineError, decode, read_row, row_of

MAX_LISTED: Final = 100_000
"""Most unreadable lines that are kept with their reasons, over all files; all are counted."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One line that could not be read."""

    file: str
    line: int
    reason: str


@dataclass(slots=True)
class FileCount:
    """What one file held."""

    path: str
    role: str
    rows: int = 0
    unreadable: int = 0


@dataclass(frozen=True, slots=True)
class Summary:
    """The numbers of a set of rollouts.

    Attributes:
        coverage: The five dispositions.
        reward_all: Mean over every rollout that has a reward, or None.
        reward_unmasked: Mean over the scored ones, or None.
        kinds: Masked and failed rollouts per failure kind, most frequent first.
        scored_kinds: Scored rollouts that name a failure kind all the same.
    """

    coverage: Coverage
    reward_all: float | None
    reward_unmasked: float | None
    kinds: dict[str, int]
    scored_kinds: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        """Return the summary in the form of `--json`."""
        dispositions = {name.value: getattr(self.coverage, name.value) for name in Disposition}
        return {
            "dispositions": dispositions,
            "expected": self.coverage.expected,
            "reward": {"all": self.reward_all, "unmasked": self.reward_unmasked},
            "kinds": self.kinds,
            "scored_kinds": self.scored_kinds,
        }


@dataclass(slots=True)
class Audit:
    """The audit of some files.

    Attributes:
        total: All rollouts.
        by_agent: Each agent's rollouts.
        files: What each file held.
        problems: Unreadable lines, at most `MAX_LISTED`.
        unreadable: How many there were.
        conflicts: Rows whose two flags disagree.
        resolved: The rollouts themselves.
    """

    total: Summary
    by_agent: dict[str, Summary]
    files: list[FileCount]
    problems: list[Problem]
    unreadable: int
    conflicts: int
    resolved: Resolved = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        """Return the document that `samplemask audit --json` prints; docs/audit.md describes it."""
        resolved = self.resolved
        return {
            **self.total.to_json(),
            "unreadable_lines": [problem.line for problem in self.problems],
            "unreadable": {
                "count": self.unreadable,
                "lines": [
                    {"file": problem.file, "line": problem.line, "reason": problem.reason}
                    for problem in self.problems
                ],
            },
            "by_agent": {name: summary.to_json() for name, summary in self.by_agent.items()},
            "rows": {
                "unattributed": resolved.unattributed,
                "superseded_attempts": len(resolved.superseded),
                "duplicates": len(resolved.duplicates),
                "stale_failures": len(resolved.stale),
                "unexpected": resolved.unexpected,
                "conflicts": self.conflicts,
            },
            "files": [
                {"path": file.path, "role": file.role, "rows": file.rows, "unreadable": file.unreadable}
                for file in self.files
            ],
        }


class _Auditor:
    def __init__(self, failures_as_zero: Collection[str]) -> None:
        self.ledger = Ledger()
        self.files: list[FileCount] = []
        self.problems: list[Problem] = []
        self.conflicts = 0
        self._failures_as_zero = failures_as_zero

    def read(self, run: RunFiles) -> None:
        for role, path in run:
            count = FileCount(str(path), role)
            self.files.append(count)
            for line in read_lines(path):
                try:
                    if line.problem is not None:
                        raise UnreadableLineError(line.problem)
                    self._book(line.text, line.number, role, run.name, count)
                except UnreadableLineError as error:
                    self._report(count, line.number, str(error))

    def _book(self, text: bytes, number: int, role: str, run: str, count: FileCount) -> None:
        if role not in (MAIN, FAILURES):
            self.ledger.expect(row_of(decode(text)), run=run)
            count.rows += 1
            return
        row = read_row(text, failures_as_zero=self._failures_as_zero)
        if row.problem is not None:
            self._report(count, number, row.problem)
            if row.task is None or row.rollout is None:
                return
        else:
            count.rows += 1
        self.conflicts += row.verdict is not None and row.verdict.conflict
        self.ledger.add(row, run=run, role=role, line=number)

    def _report(self, count: FileCount, number: int, reason: str) -> None:
        count.unreadable += 1
        if len(self.problems) < MAX_LISTED:
            self.problems.append(Problem(count.path, number, reason))

    def close(self) -> Audit:
        resolved = self.ledger.resolve()
        rollouts = resolved.rollouts
        unreadable = sum(file.unreadable for file in self.files)
        total = summarize(rollouts, self.ledger)
        return Audit(
            total,
            _by_agent(rollouts, self.ledger),
            self.files,
            self.problems,
            unreadable,
            self.conflicts,
            resolved,
        )


def audit_files(
    paths: Sequence[str | Path],
    *,
    siblings: bool = True,
    failures_as_zero: Collection[str] = (),
) -> Audit:
    """Audit rollout files.

    Args:
        paths: Main files, failure sidecars and materialized inputs of one or many runs.
        siblings: Also use the sidecar and the inputs that lie beside a file.
        failures_as_zero: Failure classes that count as a measured zero.

    Raises:
        ContractError: A path is no file.
    """
    auditor = _Auditor(failures_as_zero)
    for run in find_runs(paths, siblings=siblings):
        auditor.read(run)
    return auditor.close()


def summarize(rollouts: Rollouts, ledger: Ledger) -> Summary:
    """Summarize rollouts of a ledger."""
    counts = np.bincount(rollouts.disposition_R, minlength=len(DISPOSITIONS)).tolist()
    coverage = Coverage(**dict(zip((name.value for name in DISPOSITIONS), counts, strict=True)))
    scored_R = rollouts.disposition_R == SCORED
    lost_R = (rollouts.disposition_R == MASKED) | (rollouts.disposition_R == FAILED)
    return Summary(
        coverage,
        _mean(rollouts.reward_R),
        _mean(rollouts.reward_R[scored_R]),
        _counted(rollouts.kind_R[lost_R], ledger),
        _counted(rollouts.kind_R[scored_R], ledger),
    )


def _by_agent(rollouts: Rollouts, ledger: Ledger) -> dict[str, Summary]:
    """Summarize each agent, the ones that lost most rollouts first."""
    names = ledger.agents.all()
    summaries = {
        names[agent]: summarize(rollouts.take(rollouts.agent_R == agent), ledger)
        for agent in np.unique(rollouts.agent_R).tolist()
    }
    return dict(
        sorted(
            summaries.items(), key=lambda item: (item[1].coverage.scored - item[1].coverage.expected, item[0])
        )
    )


def _mean(reward_R: npt.NDArray[np.float64]) -> float | None:
    measured = reward_R[np.isfinite(reward_R)]
    return float(measured.mean()) if len(measured) else None


def _counted(kind_R: npt.NDArray[np.int64], ledger: Ledger) -> dict[str, int]:
    names = ledger.kinds.all()
    counts = np.bincount(kind_R[kind_R >= 0], minlength=len(names)).tolist()
    named = sorted(
        ((name, count) for name, count in zip(names, counts, strict=True) if count),
        key=lambda item: (-item[1], item[0]),
    )
    return dict(named)
