"""The audit as one self-contained HTML page: no script, nothing loaded from anywhere.

Everything that comes from a rollout is untrusted: it is made visible, cut and escaped.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any, Final

import samplemask
from samplemask import charts
from samplemask.accounting import Disposition
from samplemask.audit import Audit
from samplemask.errors import ContractError
from samplemask.report import cost_lines, notes, number, problem_text, unsafe_kinds, visible

_MAX_ROWS: Final = 20


def write_page(audit: Audit, path: Path) -> None:
    """Write the page; `path` holds the whole page or what it held before."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    try:
        unfinished.write_text(page(audit), encoding="utf-8")
        unfinished.replace(path)
    except OSError as error:
        raise ContractError(f"{path}: expected a place to write the page, found: {error}.") from error
    finally:
        unfinished.unlink(missing_ok=True)


def page(audit: Audit) -> str:
    """Return the audit as a page."""
    style = resources.files("samplemask").joinpath("report.css").read_text(encoding="utf-8")
    body = "".join(_sections(audit))
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>Rollout audit</title><style>{style}</style></head><body><main>{body}</main></body></html>\n"
    )


def _sections(audit: Audit) -> Iterable[str]:
    document = audit.to_json()
    yield _header(audit)
    yield _tiles(document)
    yield _legend(document)
    yield _over_time(document["timeline"])
    yield _section("What the others were lost to", _kinds(document))
    yield _section("What training sees if failures count as zeros", _cost(document["cost"]))
    yield _section("Is masking safe here?", _safety(document["safety"]))
    yield _section("Tasks that lost most", _tasks(document["tasks"]["worst"]))
    yield _section("Agents", _agents(document["by_agent"]))
    yield _section("Notes on the files", _notes(audit))


def _header(audit: Audit) -> str:
    files = [file.path for file in audit.reader.files]
    names = ", ".join(_text(name, 120) for name in files[:3])
    more = f" and {len(files) - 3:,} more files" if len(files) > 3 else ""
    alarm = ""
    if audit.alarm:
        share = f"{audit.limit.max_lost:.0%}"
        alarm = f'<p class="alarm">More than {share} of the rollouts that ran gave no measurement.</p>'
    return f"<header><h1>Rollout audit</h1><p>{names}{more}</p>{alarm}</header>"


def _tiles(document: Mapping[str, Any]) -> str:
    counts, reward = document["dispositions"], document["reward"]
    expected = document["expected"]
    lost = expected - counts["scored"]
    bounds, without = document["reward_bounds"], document["without_reward"]
    tiles = (
        ("rollouts", f"{expected:,}", "every one counted once"),
        ("measured", _share(counts["scored"], expected), f"{counts['scored']:,} scored"),
        ("lost", _share(lost, expected), f"{lost:,} without a measurement"),
        ("mean reward, scored", number(reward["unmasked"]), _between(bounds)),
        (
            "mean reward, all rows",
            number(reward["all"]),
            f"failures as they stand; {without:,} without reward",
        ),
    )
    return (
        '<section class="tiles">'
        + "".join(
            f'<div class="tile"><span>{name}</span><strong>{value}</strong><small>{note}</small></div>'
            for name, value, note in tiles
        )
        + "</section>"
    )


def _between(bounds: Mapping[str, float | None]) -> str:
    return (
        f"{number(bounds['failures_as_zero'])} to {number(bounds['failures_as_one'])} with failures as 0 or 1"
    )


def _legend(document: Mapping[str, Any]) -> str:
    counts, expected = document["dispositions"], document["expected"]
    bars = "".join(
        f'<i class="{name.value}" style="flex:{counts[name.value]}"></i>'
        for name in Disposition
        if counts[name.value]
    )
    words = "".join(
        f'<li><b class="{name.value}"></b>{name.value} <strong>{counts[name.value]:,}</strong> '
        f"<small>{_share(counts[name.value], expected)}</small></li>"
        for name in Disposition
    )
    return f'<section><div class="bar">{bars}</div><ul class="legend">{words}</ul></section>'


def _over_time(timeline: Mapping[str, Any]) -> str:
    label = _label(timeline["by"])
    note = "" if timeline["by"] == "time" else "<p>The rows carry no times: in the order of the files.</p>"
    keys = (
        '<ul class="legend"><li><b class="reward_unmasked"></b>scored only</li>'
        '<li><b class="reward_all"></b>all rows</li></ul>'
    )
    return _section("Over time", note + charts.dispositions(timeline["bins"], label)) + _section(
        "Mean reward over time", keys + charts.rewards(timeline["bins"], label)
    )


def _kinds(document: Mapping[str, Any]) -> str:
    kinds, lost = document["kinds"], sum(document["kinds"].values())
    rows = [
        (_text(name), f"{count:,}", _share(count, lost), _meter(count / lost))
        for name, count in kinds.items()
    ]
    scored = [(_text(name), f"{count:,}", "", "") for name, count in document["scored_kinds"].items()]
    text = _table(("failure kind", "rollouts", "share", ""), rows)
    if scored:
        text += "<h3>Named a failure kind, and scored all the same</h3>"
        text += _table(("failure kind", "rollouts", "", ""), scored)
    return text


def _cost(cost: Mapping[str, Any]) -> str:
    note = "<p>Advantage: reward minus its group's mean, as failures-as-zeros against exclusion.</p>"
    return note + _table(("", ""), cost_lines(cost))


def _safety(safety: Mapping[str, Any]) -> str:
    found = unsafe_kinds(safety)
    words = "".join(
        f"<li><strong>{_text(name)}</strong>: {escape(why)}</li>" for name, why in found[:_MAX_ROWS]
    )
    text = f'<ul class="warn">{words}</ul>' if words else "<p>No failure kind stands out.</p>"
    titles = {
        "tokens": "Failure rate by response length, tokens",
        "turns": "Failure rate by number of turns",
        "task_reward": "Failure rate by mean reward of the task",
    }
    for name, title in titles.items():
        if len(bins := safety[f"by_{name}"]) > 1:
            text += f"<h3>{title}</h3>{charts.rates(bins, _label(name))}"
    return text


def _tasks(tasks: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        (
            _text(str(task["task"])),
            _text(task["agent"]),
            _text(Path(task["run"]).name),
            *(f"{task['dispositions'][name.value]:,}" for name in Disposition),
            number(task["reward_unmasked"]),
        )
        for task in tasks[:_MAX_ROWS]
    ]
    return _table(
        ("task", "agent", "run", *(name.value for name in Disposition), "reward, scored"), rows, words=3
    )


def _agents(agents: Mapping[str, Mapping[str, Any]]) -> str:
    rows = [
        (
            _text(name),
            *(f"{agent['dispositions'][kind.value]:,}" for kind in Disposition),
            number(agent["reward"]["all"]),
            number(agent["reward"]["unmasked"]),
        )
        for name, agent in list(agents.items())[:_MAX_ROWS]
    ]
    more = (
        f"<p>… and {len(agents) - _MAX_ROWS:,} more, which lost no more.</p>"
        if len(agents) > _MAX_ROWS
        else ""
    )
    heads = ("agent", *(name.value for name in Disposition), "reward, all", "reward, scored")
    return _table(heads, rows) + more


def _notes(audit: Audit) -> str:
    found = "".join(f"<li>{count:,} {escape(text)}</li>" for count, text in notes(audit))
    lines = "".join(
        f"<li><code>{escape(problem_text(each))}</code></li>" for each in audit.reader.problems[:_MAX_ROWS]
    )
    made = f"<p><small>samplemask {samplemask.__version__}</small></p>"
    return (f"<ul>{found}{lines}</ul>" if found or lines else "<p>Nothing odd.</p>") + made


def _section(title: str, content: str) -> str:
    return f"<section><h2>{title}</h2>{content}</section>"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> str:
    """Return a table of ready HTML; the first `words` columns are text, the others numbers."""
    if not rows:
        return "<p>None.</p>"
    head = "".join(f"<th>{name}</th>" for name in heads) if any(heads) else ""
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    table = f'<table class="words{words}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="wide">{table}</div>'


def _label(name: str) -> charts.Label:
    if name == "time":
        return _date
    if name == "position":
        return lambda value: f"row {value + 1:,.0f}"
    return lambda value: f"{value:,.4g}" if abs(value) < 1e5 else f"{value:,.0f}"


def _date(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):  # no date: milliseconds, or whatever else was written there
        return f"{seconds:,.0f}"


def _meter(share: float) -> str:
    return f'<div class="meter"><i style="width:{share:.1%}"></i></div>'


def _share(count: int, total: int) -> str:
    return f"{count / total:.1%}" if total else "-"


def _text(text: str, limit: int = 80) -> str:
    return escape(visible(text, limit))
