"""The audit as a table for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from samplemask.accounting import Disposition
from samplemask.audit import Audit, counted
from samplemask.quality import Summary
from samplemask.reader import Problem

_MAX_TEXT: Final = 80
_MAX_LISTED: Final = 10
_BAR: Final = 30
_COLOURS: Final = {
    "bold": "1",
    "dim": "2",
    "scored": "32",
    "masked": "33",
    "failed": "31",
    "omitted": "90",
    "unknown": "35",
    "alarm": "1;31",
}


class Style:
    """Colours text on a terminal, and leaves it alone elsewhere."""

    def __init__(self, colour: bool = False) -> None:
        self._colour = colour

    def __call__(self, name: str, text: str) -> str:
        """Return `text` in the colour of that name."""
        return f"\x1b[{_COLOURS[name]}m{text}\x1b[0m" if self._colour and text else text


def table(audit: Audit, style: Style | None = None) -> str:
    """Return the audit as text, without colour unless a style asks for it."""
    return "\n".join(_lines(audit, style or Style()))


def visible(text: str, limit: int = _MAX_TEXT) -> str:
    """Return untrusted text fit for a terminal or a page: control characters made visible, and cut."""
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    return "".join(char if char.isprintable() else _code(char) for char in cut)


def number(value: float | None) -> str:
    """Return a reward or an advantage; a dash where nothing was measured."""
    return "-" if value is None else f"{value:.4f}" if abs(value) < 1e6 else f"{value:.4g}"


def unsafe_kinds(safety: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the failure kinds that masking may be teaching, each with the reason."""
    found = []
    for name, kind in safety["kinds"].items():
        reasons = []
        if kind["policy_can_cause"] and kind["always_forgiven"]:
            reasons.append("a policy can cause it, and it is always forgiven")
        if kind["significant"]:
            reasons.append(f"its rate moves with {', '.join(_WORDS[by] for by in kind['significant'])}")
        if reasons:
            found.append((name, "; ".join(reasons)))
    return found


_WORDS: Final = {
    "time": "time (an outage, or training causes it)",
    "position": "the place in the run (an outage, or training causes it)",
    "tokens": "the length of the response",
    "turns": "the number of turns",
    "task_reward": "the reward of the task",
}


def _code(char: str) -> str:
    return f"\\x{ord(char):02x}" if ord(char) < 256 else f"\\u{ord(char):04x}"


def _lines(audit: Audit, style: Style) -> Iterator[str]:
    files = len(audit.reader.files)
    title = f"{audit.total.coverage.expected:,} rollouts in {files} file{'s' if files != 1 else ''}"
    yield style("bold", title)
    yield from _dispositions(audit.total, style)
    if audit.alarm:
        yield style(
            "alarm",
            f"  ALARM: more than {audit.limit.max_lost:.0%} of the rollouts that ran gave no measurement",
        )
    yield from _rewards(audit, style)
    yield from _kinds("lost to", audit.total.kinds, style)
    yield from _kinds("named a failure kind, and scored all the same", audit.total.scored_kinds, style)
    yield from _cost(audit.cost, style)
    yield from _safety(audit.safety, style)
    if len(audit.agents) > 1:
        yield from _agents(audit.agents, style)
    yield from _notes(audit, style)


def _dispositions(total: Summary, style: Style) -> Iterator[str]:
    for name in Disposition:
        count, expected = getattr(total.coverage, name.value), total.coverage.expected
        share = count / expected if expected else 0.0
        bar = style(name.value, "█" * max(round(share * _BAR), count > 0))
        yield f"  {name.value:<8} {count:>12,}  {share:6.1%}  {bar}".rstrip()


def _rewards(audit: Audit, style: Style) -> Iterator[str]:
    reward = audit.total.reward
    yield ""
    yield style("bold", "mean reward")
    yield f"  all rows      {number(reward['all']):>10}  {without_reward(audit.total)}".rstrip()
    yield f"  scored only   {number(reward['unmasked']):>10}"
    if audit.total.coverage.masked or audit.total.coverage.failed:
        bounds = f"{number(reward['failures_as_zero'])} to {number(reward['failures_as_one'])}"
        yield f"  if every failure had been 0, or 1: {bounds}"
    passes = ", ".join(f"@{k} {number(value)}" for k, value in audit.pass_at.items() if value is not None)
    if len(audit.pass_at) > 1 and passes:
        yield f"  pass{passes}"


def _kinds(title: str, kinds: Mapping[str, int], style: Style) -> Iterator[str]:
    if not kinds:
        return
    yield ""
    yield style("bold", title)
    for name, count in list(kinds.items())[:_MAX_LISTED]:
        yield f"  {count:>10,}  {visible(name)}"
    if len(kinds) > _MAX_LISTED:
        yield f"  … and {len(kinds) - _MAX_LISTED:,} more kinds; --json lists them"


def _cost(cost: Mapping[str, Any], style: Style) -> Iterator[str]:
    if not cost["groups_affected"]:
        return
    yield ""
    yield style("bold", "what training sees if failures count as zeros")
    for words, value in cost_lines(cost):
        yield f"  {words:<52}  {value}"


def cost_lines(cost: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what the failures did to training, each figure with its words."""
    shift = cost["advantage_shift"]
    return [
        ("groups that hold a failure", f"{cost['groups_affected']:,} of {cost['groups']:,}"),
        ("groups that differ only by a failure: noise", f"{cost['groups_with_signal_only_from_failures']:,}"),
        ("groups without two measured rows left", f"{cost['groups_lost']:,}"),
        ("failures with an advantage of their own", f"{cost['rows_trained_on_nothing']:,}"),
        ("measured rows whose advantage has the wrong sign", f"{cost['sign_flips']:,}"),
        ("mean shift of a measured row's advantage", number(shift["mean"])),
        ("largest shift", number(shift["largest"])),
    ]


def without_reward(total: Summary) -> str:
    """Return what the mean of all rows leaves out, or nothing."""
    count = total.without_reward
    words = "lost rollout[ carries|s carry] no reward and [is|are] not in it"
    return f"{count:,} {counted(count, words)}" if count else ""


def _safety(safety: Mapping[str, Any], style: Style) -> Iterator[str]:
    if found := unsafe_kinds(safety):
        yield ""
        yield style("bold", "masking may not be safe")
        for name, why in found[:_MAX_LISTED]:
            yield f"  {visible(name)}: {why}"


def _agents(agents: Mapping[str, Summary], style: Style) -> Iterator[str]:
    """Yield the agents that lost most."""
    yield ""
    yield style("bold", "    scored    masked    failed   omitted   unknown   reward  unmasked  agent")
    for name, summary in list(agents.items())[:_MAX_LISTED]:
        counts = "".join(f"{getattr(summary.coverage, kind.value):>10,}" for kind in Disposition)
        rewards = f"{number(summary.reward['all']):>9}{number(summary.reward['unmasked']):>10}"
        yield f"{counts}{rewards}  {visible(name)}"
    if len(agents) > _MAX_LISTED:
        yield f"  … and {len(agents) - _MAX_LISTED:,} more agents, which lost no more; --json lists them"


def notes(audit: Audit) -> list[tuple[int, str]]:
    """Return what was odd in the files, each with its count."""
    resolved = audit.resolved
    found = (
        (audit.reader.unreadable, "unreadable line[|s]"),
        (resolved.unattributed, "row[|s] without task and rollout index, [|each ]counted as a rollout"),
        (len(resolved.superseded), "row[|s] superseded by another attempt"),
        (len(resolved.duplicates), "duplicate row[|s], counted once"),
        (len(resolved.stale), "stale row[|s] in a failure sidecar: the main file has the rollout[|s]"),
        (resolved.unexpected, "rollout[|s] that nobody expected"),
        (audit.reader.conflicts, "row[|s] whose two mask_sample flags disagree; either one masks"),
    )
    return [(count, counted(count, text)) for count, text in found if count]


def _notes(audit: Audit, style: Style) -> Iterator[str]:
    found = notes(audit)
    if found:
        yield ""
        yield style("bold", "notes")
        yield from (f"  {count:>10,}  {text}" for count, text in found)
    yield from (f"  {problem_text(problem)}" for problem in audit.reader.problems[:_MAX_LISTED])
    if audit.reader.unreadable > _MAX_LISTED:
        yield f"  … and {audit.reader.unreadable - _MAX_LISTED:,} more; --json lists them"


def problem_text(problem: Problem) -> str:
    """Return one unreadable line in the form FILE:LINE: reason."""
    return f"{visible(problem.file, 300)}:{problem.line}: {visible(problem.reason, 200)}"
