"""The table of what stock verl gets wrong: every estimator against every property, as Markdown."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import version

from samplemask.testing.conformance import Finding, Report, check_estimator
from samplemask.testing.properties import PROPERTIES
from samplemask.testing.verl_host import TWINS, Treatment, is_group_relative, verl_estimator, verl_estimators

NOT_HERE = {
    "padding_inert": "only V1 marks padding rows, in TransferQueue: see integration/verl",
    "sessions_vote_once": "only V1 knows sessions: see integration/verl",
}
_TITLES: dict[Treatment, str] = {
    "stock": "Stock verl: the verdict is in the batch, and nobody reads it",
    "response_mask_zeroed": "Stock verl with the response mask of masked rows set to zero",
    "installed": "verl with the samplemask plugin",
}


def verl_reports(treatment: Treatment, names: Iterable[str] | None = None) -> list[Report]:
    """Check verl's estimators under one treatment; under "installed", bit for bit."""
    reports = []
    for name in verl_estimators() if names is None else names:
        installed = treatment == "installed"
        report = check_estimator(
            verl_estimator(name, treatment),
            name=name,
            stock=verl_estimator(name) if installed else None,
            twin=verl_estimator(TWINS[name], treatment) if name in TWINS else None,
            group_relative=is_group_relative(name),
            exact=installed,
            atol=1e-5,
            skip=NOT_HERE,
        )
        reports.append(report)
    return reports


def install_plugin() -> bool:
    """Install the verl adapter in this process; False when it is not there."""
    try:
        adapter = import_module("samplemask_verl")
    except ModuleNotFoundError:
        return False
    adapter.install()
    return bool(adapter.is_active())


def as_markdown(reports: dict[Treatment, list[Report]]) -> str:
    """Return the reports as one document."""
    head = [
        "# Conformance of verl's estimators",
        "",
        "Written by `python -m samplemask.testing verl --write docs/conformance.md`, with verl "
        f"{version('verl')} and torch {version('torch')}. Each estimator ran through verl's own "
        "`compute_advantage` on the built-in batches of the test kit; ✗ means that a batch was found on "
        "which the property does not hold.",
        "",
        "The properties:",
        "",
        *(f"- `{each.name}`: {each.says}" for each in PROPERTIES.values() if each.name not in NOT_HERE),
        "",
        "Not tried at this level: " + "; ".join(f"`{name}` ({why})" for name, why in NOT_HERE.items()) + ".",
    ]
    sections = [_section(_TITLES[treatment], found) for treatment, found in reports.items()]
    return "\n".join(head) + "\n" + "\n".join(sections)


def _section(title: str, reports: list[Report]) -> str:
    names = [name for name in PROPERTIES if name not in NOT_HERE]
    lines = ["", f"## {title}", "", "| estimator | " + " | ".join(f"`{name}`" for name in names) + " |"]
    lines.append("|" + " --- |" * (len(names) + 1))
    for report in reports:
        lines.append(f"| {report.estimator} | " + " | ".join(_mark(report, name) for name in names) + " |")
    examples: dict[str, tuple[str, Finding]] = {}
    for report in reports:
        for finding in report.findings:
            if finding.problem is not None:
                examples.setdefault(finding.name, (report.estimator, finding))
    for name, (estimator, finding) in examples.items():
        lines += [
            "",
            f"Smallest batch on which {estimator} fails `{name}`: {finding.problem}.",
            "",
            "```text",
        ]
        lines += [finding.batch.table() if finding.batch else "", "```"]
    return "\n".join(lines) + "\n"


def _mark(report: Report, name: str) -> str:
    finding = report[name]
    return "–" if finding.skipped else ("✓" if finding.holds else "✗")
