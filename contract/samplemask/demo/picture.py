"""The demo as a picture: where each group's baseline goes when failures count as zeros."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np

from samplemask.demo.estimates import Estimates
from samplemask.demo.story import Group, groups_of, turned
from samplemask.testing.batches import GrpoBatch

_INK, _FAINT, _RED, _BLUE = "#222222", "#9aa0aa", "#c0392b", "#1f5fa8"
_ORANGE, _DARK_ORANGE = "#f08c00", "#b35f00"  # dots, and text that must be readable
_DOT = 42
_STEP = 0.019  # between the dots of equal rewards
_LOST_FROM = -0.06
_NOTES_AT = 1.07


def draw(batch: GrpoBatch, estimates: Estimates, path: Path) -> str:
    """Draw to `path` and return a line about it; without matplotlib, the line says so."""
    try:
        figures = importlib.import_module("matplotlib.figure")
    except ModuleNotFoundError:
        return "No picture: matplotlib is not installed. Run `pip install matplotlib`."
    groups = [group for group in groups_of(batch) if batch.masked_B[group.rows].any()]
    groups.sort(key=_shift)
    figure = figures.Figure(figsize=(10, 0.42 * len(groups) + 2.4))
    axes = figure.add_axes((0.09, 0.09, 0.89, 0.74))
    for height, group in enumerate(groups):
        _draw_group(axes, batch, estimates, group, height)
    _label(axes, groups)
    _title(figure, batch, estimates)
    figure.savefig(path, dpi=150, facecolor="white")
    return f"Picture: {path}"


def _shift(group: Group) -> float:
    return 0.0 if np.isnan(group.measured) else group.measured - group.baseline


def _draw_group(axes: Any, batch: GrpoBatch, estimates: Estimates, group: Group, height: int) -> None:
    """Draw one line: the lost rollouts, the measured ones by reward, and both baselines."""
    lost, wrong = batch.masked_B[group.rows], turned(estimates)[group.rows]
    axes.plot([_LOST_FROM - 8 * _STEP, 1.05], [height, height], color="#eceef1", linewidth=1, zorder=0)
    places = _LOST_FROM - _STEP * np.arange(int(lost.sum()))
    axes.scatter(places, np.full(len(places), height), marker="x", s=0.8 * _DOT, color=_RED, linewidth=1.6)
    _draw_measured(axes, batch.reward_B[group.rows][~lost], wrong[~lost], height)
    ends = {"arrowstyle": "-|>", "color": _RED, "shrinkA": 0, "shrinkB": 0, "linewidth": 1.4}
    axes.annotate("", (group.baseline, height), (group.measured, height), arrowprops=ends, zorder=2)
    for place, color in ((group.measured, _BLUE), (group.baseline, _RED)):
        axes.plot([place, place], [height - 0.36, height + 0.36], color=color, linewidth=2.6, zorder=4)
    color = _DARK_ORANGE if wrong.any() else _INK
    axes.text(_NOTES_AT, height, _note(batch, group, int(wrong.sum())), va="center", color=color, fontsize=10)


def _draw_measured(axes: Any, reward: Any, wrong: Any, height: int) -> None:
    """Draw a dot for each measured rollout; equal rewards stand side by side, above two in two rows."""
    for value in np.unique(reward):
        of_value = np.flatnonzero(reward == value)
        layers = 1 if len(of_value) < 3 else 2
        place, layer = np.divmod(np.arange(len(of_value)), layers)
        across = value + _STEP * (place - place.mean())
        up = height + 0.38 * ((layers - 1) / 2 - layer)
        axes.scatter(
            across, up, s=_DOT, color=[_ORANGE if wrong[row] else _FAINT for row in of_value], zorder=3
        )


def _note(batch: GrpoBatch, group: Group, wrong: int) -> str:
    scored = batch.reward_B[group.rows][~batch.masked_B[group.rows]]
    if len(scored) < 2:
        return "nothing to compare with"
    if wrong:
        return f"{wrong} of {len(scored)} pushed the wrong way"
    return "all equal: nothing to learn" if np.ptp(scored) == 0 else ""


def _label(axes: Any, groups: list[Group]) -> None:
    """Name the marks at the top group, whose two means lie farthest apart."""
    top = len(groups) - 1
    style = {"fontsize": 10.5, "weight": "bold"}
    above = top + 0.62
    axes.text(_LOST_FROM + 0.01, above, "lost", color=_RED, ha="right", **style)
    axes.text(groups[-1].baseline - 0.005, above, "mean with lost = 0", color=_RED, **style)
    axes.text(groups[-1].measured - 0.005, above, "mean of what was measured", color=_BLUE, **style)
    axes.set_yticks(range(len(groups)), [f"task {group.name}" for group in groups])
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "0.25", "0.5", "0.75", "1"])
    axes.text(0.5, -1.45, "reward of a rollout", ha="center", color=_INK, fontsize=10.5)
    axes.set_xlim(-0.2, 1.42)
    axes.set_ylim(-0.6, top + 1.1)
    axes.tick_params(length=0, colors=_INK)
    for side in axes.spines.values():
        side.set_visible(False)


def _title(figure: Any, batch: GrpoBatch, estimates: Estimates) -> None:
    wrong, trained = int(turned(estimates).sum()), int(estimates.trains_B.sum())
    title = "Lost rollouts that count as zeros drag the baseline down"
    figure.text(0.03, 0.945, title, fontsize=17, weight="bold", color=_INK, va="center")
    lines = (
        f"{int(batch.masked_B.sum())} of {len(batch)} rollouts were lost. {wrong} of the {trained} "
        "that train lie between the two means (orange):",
        "worse than their group, yet pushed up. samplemask leaves the lost ones out of loss and mean.",
    )
    for place, line in zip((0.897, 0.863), lines, strict=True):
        figure.text(0.03, place, line, fontsize=11.5, color=_INK, va="center")
