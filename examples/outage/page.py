"""docs/experiment.md, written by the command."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path

from outage.arms import ARMS, CEILING
from outage.failures import BEHAVIOUR, EXIT, RANDOM, SELECTION, STORMS, Environment
from outage.results import Floats, Results, band
from outage.training import GROUP, LEARNING_RATE, PROMPTS

_TEMPLATE = Path(__file__).with_name("page.md")


def page(results: Results, titles: Mapping[str, str], seeds: int, steps: int, command: str) -> str:
    """Return the page."""
    parts = []
    for figure, heading, environments in (
        ("random", "Lost at random", [each for group in RANDOM.values() for each in group]),
        ("storm", "A storm", list(STORMS)),
        ("behaviour", "Lost because of what wins", [BEHAVIOUR]),
        ("selection", "Lost because it wins", [SELECTION]),
        ("exit", "A way out", [EXIT]),
    ):
        title = titles[f"{figure}.png"]
        parts += [f"## {heading}\n", f"![{title}](experiment/{figure}.png)\n"]
        for environment in environments:
            said = environment.title[0].upper() + environment.title[1:]
            parts += [f"**{said}.**\n", table(results, environment), ""]
    return _TEMPLATE.read_text(encoding="utf-8").format(
        sections="\n".join(parts).strip(),
        verl=version("verl"),
        prompts=PROMPTS,
        group=GROUP,
        rate=LEARNING_RATE,
        steps=steps,
        seeds=seeds,
        last=seeds - 1,
        command=command,
    )


def table(results: Results, environment: Environment) -> str:
    """Return the table of one environment."""
    head = ("Arm", "Final reward", "To the ceiling", "Distance", "Steps lost", "Extra")
    best = results[environment.name, CEILING.name].reward[-1]
    rows = []
    for arm in ARMS:
        if (environment.name, arm.name) not in results:
            continue
        result = results[environment.name, arm.name]
        rows.append(
            (
                arm.name,
                _interval(result.reward[-1]),
                "" if arm is CEILING else _interval(result.reward[-1] - best, "+.3f"),
                "" if arm is CEILING else _interval(result.distance[-1]),
                f"{result.lost.mean():.1f}",
                f"{result.extra.mean():.1f}" if arm.refills else "",
            )
        )
    return "\n".join([_row(head), "|" + " --- |" * len(head), *map(_row, rows)])


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _interval(values_S: Floats, form: str = ".3f") -> str:
    mean, low, high = band(values_S)
    return f"{mean:{form}} [{low:{form}}, {high:{form}}]"
