"""Charts of the audit as inline SVG: no script, no network, colours from the page's own palette."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any, Final

from samplemask.accounting import Disposition

WIDTH: Final = 720
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 14, 28
_LARGEST: Final = 1e307
_RAN: Final = (Disposition.SCORED, Disposition.MASKED, Disposition.FAILED)

Label = Callable[[float], str]


def dispositions(bins: Sequence[Mapping[str, Any]], label: Label, height: int = 200) -> str:
    """Draw what became of the rollouts over time, one column per bin, each filled to 100 %."""
    plot = height - _TOP - _BOTTOM
    step = (WIDTH - _LEFT - _RIGHT) / max(len(bins), 1)
    parts = [_grid([(share, f"{share:.0%}") for share in (0.0, 0.5, 1.0)], 0.0, 1.0, height)]
    for place, each in enumerate(bins):
        counts, y = each["dispositions"], float(_TOP + plot)
        total = sum(counts.get(name.value, 0) for name in _RAN)
        title = f"{label(each['from'])} to {label(each['to'])}: " + ", ".join(
            f"{counts.get(name.value, 0):,} {name.value}" for name in _RAN
        )
        columns = []
        for name in _RAN:
            size = plot * counts.get(name.value, 0) / total
            y -= size
            columns.append(_rect(_LEFT + place * step + 0.5, y, max(step - 1, 0.5), size, name.value))
        parts.append(f"<g><title>{escape(title)}</title>{''.join(columns)}</g>")
    return _svg(parts + _ends(bins, label, height), height, "Dispositions in the order of the run")


def rewards(bins: Sequence[Mapping[str, Any]], label: Label, height: int = 200) -> str:
    """Draw the mean reward of all rows and of the scored ones over time."""
    known = [
        each[name] for each in bins for name in ("reward_all", "reward_unmasked") if each[name] is not None
    ]
    low, high = _range(known)
    ticks = [(low + (high - low) * part / 2, f"{low + (high - low) * part / 2:.3g}") for part in range(3)]
    parts = [_grid(ticks, low, high, height)]
    step = (WIDTH - _LEFT - _RIGHT) / max(len(bins), 1)
    for name, words in (("reward_all", "all rows"), ("reward_unmasked", "scored only")):
        points = [
            None if each[name] is None else (_LEFT + (place + 0.5) * step, _y(each[name], low, high, height))
            for place, each in enumerate(bins)
        ]
        parts.append(_line(points, name))
        for point, each in zip(points, bins, strict=True):
            if point is not None:
                title = f"{label(each['from'])}: {each[name]:.4g} ({words})"
                parts.append(
                    f'<circle class="dot {name}" cx="{point[0]:.1f}" cy="{point[1]:.1f}" r="3">'
                    f"<title>{escape(title)}</title></circle>"
                )
    return _svg(parts + _ends(bins, label, height), height, "Mean reward in the order of the run")


def rates(bins: Sequence[Mapping[str, Any]], label: Label, height: int = 150) -> str:
    """Draw a failure rate bin by bin, each with its 95 % interval."""
    high = max((each["high"] for each in bins), default=1.0) or 1.0
    parts = [
        _grid([(0.0, "0%"), (high, f"{high:.0%}" if high >= 0.01 else f"{high:.1%}")], 0.0, high, height)
    ]
    step = (WIDTH - _LEFT - _RIGHT) / max(len(bins), 1)
    for place, each in enumerate(bins):
        x = _LEFT + (place + 0.5) * step
        top, low, up = (_y(each[name], 0.0, high, height) for name in ("value", "low", "high"))
        title = f"{label(each['from'])} to {label(each['to'])}: {each['count']:,} of {each['rows']:,}"
        width = max(step * 0.6, 2)
        bar = _rect(x - width / 2, top, width, height - _BOTTOM - top, "rate")
        parts.append(
            f"<g><title>{escape(title)}</title>{bar}"
            f'<line class="interval" x1="{x:.1f}" x2="{x:.1f}" y1="{low:.1f}" y2="{up:.1f}"/></g>'
        )
    return _svg(parts + _ends(bins, label, height), height, "Failure rate with 95 % interval")


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Return an axis that holds 0 and the values, as far as floats can be subtracted."""
    low = max(min(values, default=0.0), -_LARGEST)
    high = min(max(values, default=1.0), _LARGEST)
    low, high = min(low, 0.0), max(high, 0.0)
    return (low, high) if high > low else (low, low + 1.0)


def _y(value: float, low: float, high: float, height: int) -> float:
    share = (min(max(value, low), high) - low) / (high - low)
    return _TOP + (height - _TOP - _BOTTOM) * (1 - share)


def _grid(ticks: Sequence[tuple[float, str]], low: float, high: float, height: int) -> str:
    lines = []
    for value, text in ticks:
        y = _y(value, low, high, height)
        lines.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        lines.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(text)}</text>')
    return "".join(lines)


def _ends(bins: Sequence[Mapping[str, Any]], label: Label, height: int) -> list[str]:
    if not bins:
        return [f'<text x="{WIDTH / 2}" y="{height / 2}" text-anchor="middle">nothing measured</text>']
    y = height - 8
    first, last = escape(label(bins[0]["from"])), escape(label(bins[-1]["to"]))
    return [
        f'<text x="{_LEFT}" y="{y}">{first}</text>',
        f'<text x="{WIDTH - _RIGHT}" y="{y}" text-anchor="end">{last}</text>',
    ]


def _line(points: Sequence[tuple[float, float] | None], name: str) -> str:
    """Draw the points that follow each other; a bin without a value is a gap."""
    pieces: list[list[str]] = [[]]
    for point in points:
        if point is None:
            pieces.append([])
        else:
            pieces[-1].append(f"{point[0]:.1f},{point[1]:.1f}")
    return "".join(
        f'<polyline class="{name}" points="{" ".join(piece)}"/>' for piece in pieces if len(piece) > 1
    )


def _rect(x: float, y: float, width: float, height: float, name: str) -> str:
    return f'<rect class="{name}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.2f}"/>'


def _svg(parts: Sequence[str], height: int, words: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(words)}">{"".join(parts)}</svg>'
    )
