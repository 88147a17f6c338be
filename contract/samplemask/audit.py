"""The audit: how many rollouts were measured, what the others were lost to, and what that did."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from samplemask.cost import training_cost
from samplemask.errors import ContractError
from samplemask.ledger import Ledger
from samplemask.quality import Counting, Summary, by_agent, gym_coverage, pass_at, summarize, tasks
from samplemask.reader import Progress, Reader, parts_of
from samplemask.resolve import Resolved
from samplemask.rollouts import RunFiles, find_runs
from samplemask.safety import safety
from samplemask.timeline import timeline

MAX_STALE_LISTED: Final = 1000


@dataclass(frozen=True, slots=True)
class Limit:
    """From where on losses are an alarm; the defaults are the example of NeMo Gym's configuration.

    Attributes:
        max_lost: Largest fraction of masked and failed rollouts, 0 to 1, that is no alarm.
        min_rollouts: Fewest rollouts that ran for which there can be one.
    """

    max_lost: float = 0.5
    min_rollouts: int = 50


@dataclass(frozen=True, slots=True)
class Options:
    """How to audit.

    Attributes:
        failures_as_zero: Failure classes that count as a measured zero.
        counting: What else counts as a zero in the counted mean and in pass@k.
        expected: How many rollouts there should be; 0: as many as the files say.
        omitted: How many of them are known not to have run; files do not say.
        limit: From where on losses are an alarm.
        fast: Read lines with fastsimdjson; None: if it is installed. See `rows.make_read_row`.
        jobs: Processes that read.
        one_run: All files are shards of one run: equal indices are the same rollout.
    """

    failures_as_zero: Collection[str] = ()
    counting: Counting = Counting()  # noqa: RUF009 - immutable
    expected: int = 0
    omitted: int = 0
    limit: Limit = Limit()
    fast: bool | None = None
    jobs: int = 1
    one_run: bool = False


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
        coverage: Gym's own coverage metrics.
        timeline: Dispositions and rewards in the order of the run.
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
    coverage: dict[str, int]
    timeline: dict[str, Any]
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
            "coverage": self.coverage,
            "timeline": self.timeline,
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
        runs = list(self.ledger.runs)
        return [
            {
                "run": runs[row["run"]],
                "line": int(row["line"]),
                "task": self.ledger.index_name(int(row["task"])),
                "rollout": self.ledger.index_name(int(row["rollout"])),
            }
            for row in self.resolved.stale[:MAX_STALE_LISTED]
        ]


def audit_files(
    paths: Sequence[str | Path],
    *,
    siblings: bool = True,
    options: Options | None = None,
    progress: Progress | None = None,
) -> Audit:
    """Audit rollout files.

    Args:
        paths: Main files, failure sidecars and materialized inputs of one or many runs.
        siblings: Also use the sidecar and the inputs that lie beside a file.
        options: How.
        progress: Called after each line with its length in bytes.

    Raises:
        ContractError: A path is no file.
    """
    if isinstance(paths, (str, Path)):
        raise ContractError.of("paths", "a sequence of paths", paths, "Put it into a list.")
    return audit_runs(find_runs(paths, siblings=siblings), options, progress)


def audit_runs(
    runs: Sequence[RunFiles], options: Options | None = None, progress: Progress | None = None
) -> Audit:
    """Audit runs whose files are already found; see `audit_files`."""
    options = options or Options()
    ledger = Ledger()
    reader = Reader(ledger, failures_as_zero=options.failures_as_zero, fast=options.fast)
    reader.read_all(parts_of(runs, options.jobs, one_run=options.one_run), options.jobs, progress)
    return close(ledger, reader, options)


def close(ledger: Ledger, reader: Reader, options: Options) -> Audit:
    """Close the books and work out the audit."""
    ledger.declare(expected=options.expected, omitted=options.omitted)
    resolved = ledger.resolve()
    rollouts = resolved.rollouts
    return Audit(
        total=summarize(rollouts, ledger, options.counting),
        agents=by_agent(rollouts, ledger, options.counting),
        pass_at=pass_at(rollouts, options.counting),
        tasks=tasks(rollouts, ledger),
        cost=training_cost(rollouts),
        safety=safety(rollouts, ledger),
        coverage=gym_coverage(rollouts),
        timeline=timeline(rollouts),
        limit=options.limit,
        reader=reader,
        resolved=resolved,
        ledger=ledger,
    )


def broken_rules(audit: Audit) -> list[str]:
    """Return what `--strict` finds wrong, one sentence each."""
    coverage, limit = audit.total.coverage, f"{audit.limit.max_lost:.1%}"
    rules = (
        (coverage.unknown, "rollout[ is|s are] unknown: expected, but left no usable row"),
        (audit.reader.unreadable, "line[ is|s are] unreadable"),
        (
            (coverage.masked + coverage.failed) * audit.alarm,
            f"rollout[ is|s are] masked or failed, more than {limit} of those that ran",
        ),
    )
    return [f"{count:,} {counted(count, text)}" for count, text in rules if count]


def counted(count: int, words: str) -> str:
    """Return the words for a count: in each `[one|more]` the part that fits."""
    return re.sub(r"\[(.*?)\|(.*?)\]", r"\1" if count == 1 else r"\2", words)


def _finite(value: Any) -> Any:
    """Replace what JSON cannot say (NaN, inf) by null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
