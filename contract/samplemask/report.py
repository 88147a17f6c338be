"""The audit as a table for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from samplemask.accounting import Disposition
from samplemask.audit import Audit
from samplemask.quality import Summary

_MAX_TEXT = 80
_MAX_LINES = 10


def table(audit: Audit) -> str:
    """Return the audit as text, without colour."""
    return "\n".join(_lines(audit))


def visible(text: str, limit: int = _MAX_TEXT) -> str:
    """Return untrusted text fit for a terminal: control characters made visible, cut to `limit`."""
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in cut)


def _lines(audit: Audit) -> Iterator[str]:
    yield from _dispositions(audit.total)
    yield ""
    yield f"mean reward, all rows      {_number(audit.total.reward['all'])}"
    yield f"mean reward, scored only   {_number(audit.total.reward['unmasked'])}"
    for title, kinds in (
        ("failure kinds", audit.total.kinds),
        ("named a kind but stayed scored", audit.total.scored_kinds),
    ):
        if kinds:
            yield ""
            yield title
            yield from (f"  {count:>8,}  {visible(name)}" for name, count in kinds.items())
    if len(audit.agents) > 1:
        yield from _agents(audit.agents)
    yield from _oddities(audit)


def _dispositions(total: Summary) -> Iterator[str]:
    yield f"{total.coverage.expected:,} rollouts"
    for name in Disposition:
        count = getattr(total.coverage, name.value)
        share = f"{count / total.coverage.expected:6.1%}" if total.coverage.expected else "     -"
        yield f"  {name.value:<8} {count:>10,}  {share}"


def _agents(by_agent: Mapping[str, Summary]) -> Iterator[str]:
    """Yield the agents that lost most."""
    yield ""
    yield "    scored    masked    failed   omitted   unknown   reward  unmasked  agent"
    for name, summary in list(by_agent.items())[:_MAX_LINES]:
        counts = "".join(f"{getattr(summary.coverage, kind.value):>10,}" for kind in Disposition)
        rewards = f"{_number(summary.reward['all']):>9}{_number(summary.reward['unmasked']):>10}"
        yield f"{counts}{rewards}  {visible(name)}"
    if len(by_agent) > _MAX_LINES:
        yield f"  … and {len(by_agent) - _MAX_LINES:,} more agents, which lost no more; --json lists them"


def _oddities(audit: Audit) -> Iterator[str]:
    resolved = audit.resolved
    notes = (
        (audit.reader.unreadable, "unreadable lines"),
        (resolved.unattributed, "rows without task and rollout index, each counted as a rollout"),
        (len(resolved.superseded), "rows superseded by another attempt"),
        (len(resolved.duplicates), "duplicate rows, counted once"),
        (len(resolved.stale), "stale rows in a failure sidecar: the main file has the rollout"),
        (resolved.unexpected, "rollouts that the materialized inputs do not know"),
        (audit.reader.conflicts, "rows whose two mask_sample flags disagree; either one masks"),
    )
    said = [f"  {count:>8,}  {text}" for count, text in notes if count]
    if said:
        yield from ("", "notes", *said)
    for problem in audit.reader.problems[:_MAX_LINES]:
        yield f"  {visible(problem.file, 200)}:{problem.line}: {visible(problem.reason, 200)}"
    if audit.reader.unreadable > _MAX_LINES:
        yield f"  … and {audit.reader.unreadable - _MAX_LINES:,} more; --json lists them"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
