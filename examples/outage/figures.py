"""One figure per environment. Every number in a title is computed, so that no title can be out of date."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from outage.arms import ARMS, CEILING, EXCLUDE, MULTIPLIER, OUTAGE, REFILL, SCORED, ZEROS, Arm
from outage.failures import BEHAVIOUR, EXIT, RANDOM, SELECTION, SHARES, STORM, STORMS, Environment
from outage.results import Results, band

_INK, _GRID = "#222222", "#e6e8ec"
_STYLES = {
    CEILING.name: ("#222222", "--"),
    ZEROS.name: ("#c0392b", "-"),
    MULTIPLIER.name: ("#f08c00", "-"),
    EXCLUDE.name: ("#1f5fa8", "-"),
    REFILL.name: ("#2f9e44", "-"),
    SCORED.name: ("#8e44ad", "-"),
    OUTAGE.name: ("#3bafda", ":"),
}
_REWARD = "true reward (no failures)"


def draw_all(results: Results, folder: Path) -> dict[str, str]:
    """Draw every figure of which there are results, and return the titles by file name."""
    folder.mkdir(parents=True, exist_ok=True)
    titles = {}
    for name, title, figure in _figures(results):
        figure.suptitle(title, x=0.01, ha="left", fontsize=12.5, weight="bold", color=_INK, wrap=True)
        figure.savefig(folder / f"{name}.png", dpi=100, facecolor="white")
        titles[f"{name}.png"] = title.replace("\n", " ")
    return titles


def final(results: Results, environment: Environment, arm: Arm, field: str = "reward") -> float:
    """Return the mean over the seeds of what an arm ends with."""
    return float(getattr(results[environment.name, arm.name], field)[-1].mean())


def _figures(results: Results) -> Iterator[tuple[str, str, Figure]]:
    figure, panels = _panels(2, ("share of rollouts lost", "share of rollouts lost"))
    for axes, (credit, environments) in zip(panels, RANDOM.items(), strict=True):
        _draw_shares(axes, results, environments)
        axes.set_title(f"true reward, a wrong answer earns {credit:g}", **_SMALL)
    figure.legend(*panels[0].get_legend_handles_labels(), **_LEGEND)
    yield "random", _random_title(results), figure

    figure, panels = _panels(3, ("step",) * 3)
    said = ("reward minus ceiling, wrong earns 0", "wrong earns 0.5", "only users of the tool lost")
    for axes, environment, words in zip(panels, STORMS, said, strict=True):
        _draw_shortfall(axes, results, environment)
        axes.axvspan(STORM[0] - 0.5, STORM[-1] + 0.5, color="#f3d9d5", zorder=0, linewidth=0)
        axes.text(STORM[0] + 10, -0.148, "storm", ha="center", color="#c0392b", fontsize=9)
        axes.set_xlim(50, None)
        axes.set_ylim(-0.155, 0.02)
        axes.set_title(words, **{**_SMALL, "fontsize": 9.5})
    figure.legend(*panels[0].get_legend_handles_labels(), **_LEGEND)
    yield "storm", _storm_title(results), figure

    for environment, field, said in (
        (BEHAVIOUR, "tool", "share that uses the tool"),
        (SELECTION, "tool", "share that uses the tool"),
        (EXIT, "wait", "share that waits for the timeout"),
    ):
        figure, panels = _panels(2)
        for axes, shown, words in zip(panels, ("reward", field), (_REWARD, said), strict=True):
            _draw_curves(axes, results, environment, shown)
            axes.set_title(words, **_SMALL)
        figure.legend(*panels[0].get_legend_handles_labels(), **_LEGEND)
        yield environment.name, _TITLES[environment.name](results), figure


_SMALL = {"fontsize": 10.5, "color": _INK, "loc": "left"}
_LEGEND = {"loc": "center right", "frameon": False, "fontsize": 9.5, "bbox_to_anchor": (1.0, 0.5)}


def _panels(count: int, below: tuple[str, ...] = ("step", "step")) -> tuple[Figure, list[Any]]:
    figure = Figure(figsize=(10.5, 4.3))
    panels = list(figure.subplots(1, count))
    figure.subplots_adjust(left=0.055, right=0.79, bottom=0.12, top=0.78, wspace=0.16)
    for axes, words in zip(panels, below, strict=True):
        axes.set_xlabel(words, fontsize=10, color=_INK)
        axes.grid(color=_GRID, linewidth=0.8)
        axes.tick_params(length=0, labelsize=9, colors=_INK)
        for side in axes.spines.values():
            side.set_visible(False)
    return figure, panels


def _draw_curves(axes: Any, results: Results, environment: Environment, field: str) -> None:
    for arm in ARMS:
        if (environment.name, arm.name) not in results:
            continue
        mean, low, high = band(getattr(results[environment.name, arm.name], field))
        _line(axes, arm.name, range(1, len(mean) + 1), mean, low, high)


def _draw_shortfall(axes: Any, results: Results, environment: Environment) -> None:
    """Draw the difference to the ceiling seed by seed: most of the spread is the prompts' and cancels."""
    best = results[environment.name, CEILING.name].reward
    for arm in ARMS:
        if (environment.name, arm.name) in results:
            mean, low, high = band(results[environment.name, arm.name].reward - best)
            _line(axes, arm.name, range(1, len(mean) + 1), mean, low, high)


def _draw_shares(axes: Any, results: Results, environments: tuple[Environment, ...]) -> None:
    for arm in ARMS:
        if (environments[0].name, arm.name) not in results:
            continue
        ends = [band(results[each.name, arm.name].reward[-1]) for each in environments]
        _line(axes, arm.name, SHARES, *zip(*ends, strict=True), marker="o", markersize=4)
    axes.set_xticks(SHARES, [f"{share:.0%}" for share in SHARES])


def _line(axes: Any, name: str, across: Any, mean: Any, low: Any, high: Any, **style: Any) -> None:
    color, dashes = _STYLES[name]
    axes.plot(across, mean, dashes, color=color, label=name, linewidth=2, **style)
    axes.fill_between(across, low, high, color=color, alpha=0.15, linewidth=0)


def _random_title(results: Results) -> str:
    at = [environments[SHARES.index(0.4)] for environments in RANDOM.values()]
    ends = _ends(results, at, (ZEROS, EXCLUDE, CEILING))
    return f"Random losses are noise; how loud it is depends on the rewards\nAt 40 % (left / right): {ends}"


def _storm_title(results: Results) -> str:
    ends = _ends(results, STORMS, (ZEROS, MULTIPLIER, EXCLUDE))
    return f"This storm costs time; most of it is made up 60 steps later\nEnds at: {ends}"


def _ends(results: Results, environments: Sequence[Environment], arms: tuple[Arm, ...]) -> str:
    return ", ".join(
        f"{arm.name} " + " / ".join(f"{final(results, each, arm):.2f}" for each in environments)
        for arm in arms
    )


def _shares_title(cause: str, environment: Environment, field: str, arms: tuple[Arm, ...]) -> Any:
    word = {"tool": "tool", "wait": "waits"}[field]

    def title(results: Results) -> str:
        ends = [
            f"{arm.name} {final(results, environment, arm):.2f}"
            f" ({word} {final(results, environment, arm, field):.0%})"
            for arm in arms
        ]
        return f"{cause}\n" + ", ".join(ends)

    return title


_TITLES = {
    BEHAVIOUR.name: _shares_title(
        "Where the tool that wins loses sessions, zeros unlearn the tool",
        BEHAVIOUR,
        "tool",
        (ZEROS, MULTIPLIER, EXCLUDE, CEILING),
    ),
    SELECTION.name: _shares_title(
        "Where winning itself loses the session, no choice helps",
        SELECTION,
        "tool",
        (ZEROS, EXCLUDE, CEILING),
    ),
    EXIT.name: _shares_title(
        "A timeout that is always forgiven is an exit", EXIT, "wait", (EXCLUDE, SCORED, ZEROS)
    ),
}
