"""Try an advantage estimator against every property, and show the smallest batch on which one fails."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from samplemask.errors import ContractError, SampleMaskError
from samplemask.testing.batches import GrpoBatch
from samplemask.testing.properties import PROPERTIES, Estimator, Named, Trial
from samplemask.testing.synthetic import grpo_batch


@dataclass(frozen=True)
class Finding:
    """What became of one property.

    Attributes:
        name: The property.
        says: What it asks for.
        problem: What was found instead, or None where it holds.
        batch: The smallest failing batch, or None.
        skipped: Why it was not tried, or None.
    """

    name: str
    says: str
    problem: str | None = None
    batch: GrpoBatch | None = None
    skipped: str | None = None

    @property
    def holds(self) -> bool:
        """True when the property was tried and holds."""
        return self.problem is None and self.skipped is None

    def __str__(self) -> str:
        if self.skipped:
            return f"-     {self.name}: not tried ({self.skipped})"
        if self.problem is None or self.batch is None:
            return f"ok    {self.name}"
        table = "\n".join("      " + line for line in self.batch.table().splitlines())
        return f"FAIL  {self.name}: {self.problem}\n      {self.says}\n{table}"


class ConformanceError(SampleMaskError, AssertionError):
    """An estimator does not honour the verdict; the message is the report."""


@dataclass(frozen=True)
class Report:
    """The findings on one estimator; true when every property that was tried holds."""

    estimator: str
    findings: tuple[Finding, ...]

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the properties that do not hold."""
        return tuple(finding.name for finding in self.findings if finding.problem is not None)

    def __bool__(self) -> bool:
        return not self.failed

    def __getitem__(self, name: str) -> Finding:
        return next(finding for finding in self.findings if finding.name == name)

    def __str__(self) -> str:
        tried = sum(finding.skipped is None for finding in self.findings)
        head = f"{self.estimator}: {tried - len(self.failed)} of {tried} properties hold"
        return "\n".join([head, *map(str, self.findings)])

    def raise_if_failed(self) -> None:
        """Raise a ConformanceError that shows every failure.

        Raises:
            ConformanceError: A property does not hold.
        """
        if self.failed:
            raise ConformanceError(str(self))


def check_estimator(
    estimator: Estimator,
    *,
    name: str | None = None,
    stock: Estimator | None = None,
    twin: Estimator | None = None,
    group_relative: bool = True,
    sessions: bool = False,
    min_valid: int = 2,
    atol: float = 1e-6,
    exact: bool = False,
    skip: Collection[str] | Mapping[str, str] = (),
    batches: Iterable[GrpoBatch] | None = None,
) -> Report:
    """Try an advantage estimator against the properties of `samplemask.testing.properties`.

    Args:
        estimator: A function of a `GrpoBatch` that returns advantages (B,) or (B, T): an array, or
            anything numpy reads.
        name: Name in the report; the function's own by default.
        stock: The estimator without masking; asks that healthy batches give the same, bit for bit.
        twin: A second implementation that must agree, such as the vectorised one.
        group_relative: False for an estimator without group statistics.
        sessions: True for an estimator that reads `session_B`: rollouts of several rows.
        min_valid: Smallest group that gives a signal, in voters.
        atol: Largest difference accepted; relative to the value where that is above 1.
        exact: True to ask for equality bit for bit where the same rows are estimated in the same order.
        skip: Properties not to try, or a mapping to the reason why not.
        batches: Batches to try instead of the built-in ones (`conformance_batches`).

    Raises:
        ContractError: `skip` names a property that does not exist.
    """
    if unknown := set(skip) - PROPERTIES.keys():
        raise ContractError.of("skip", f"some of {list(PROPERTIES)}", sorted(unknown), "Correct the name.")
    trial = Trial(estimator, atol, exact, min_valid, group_relative, stock, twin)
    tried = list(conformance_batches() if batches is None else batches)
    left_out = dict(skip) if isinstance(skip, Mapping) else dict.fromkeys(skip, "skipped by the caller")
    for missing, property_name, why in (
        (twin is None, "twins_agree", "no twin was given"),
        (stock is None, "healthy_batch_unchanged", "no stock estimator was given"),
        (not group_relative, "thin_group_silent", "the estimator has no groups"),
        (not sessions, "sessions_vote_once", "the estimator does not read sessions"),
    ):
        if missing:
            left_out.setdefault(property_name, why)
    return run_properties(
        name or str(getattr(estimator, "__name__", estimator)), PROPERTIES, trial, tried, left_out
    )


def run_properties(
    name: str,
    properties: Mapping[str, Named],
    trial: Any,
    batches: Sequence[GrpoBatch],
    left_out: Mapping[str, str],
) -> Report:
    """Try each property on each batch until one fails, and shrink that one.

    Args:
        name: What is under test.
        properties: The properties.
        trial: First argument of their checks.
        batches: The batches.
        left_out: Properties that are not tried, with the reason.
    """
    findings = []
    for each in properties.values():
        reason = left_out.get(each.name)
        skipped = Finding(each.name, each.says, skipped=reason)
        findings.append(skipped if reason else _finding(each, trial, batches))
    return Report(name, tuple(findings))


def conformance_batches() -> Iterator[GrpoBatch]:
    """Yield the batches that `check_estimator` tries, small ones first; the same on every platform."""
    yield GrpoBatch.of([1.0, 1.0, 0.0, 0.0], [0, 1, 0, 0])
    yield GrpoBatch.of([1.0, 0.0, 0.5, 0.0], [0, 0, 0, 1], lengths=[1, 3, 2, 2])
    yield GrpoBatch.of([1.0, 0.0, 1.0, 0.25], [0, 0, 1, 0], ["a", "a", "b", "b"])
    for seed in range(12):
        yield grpo_batch(
            groups=2 + seed % 4,
            group_size=(2, 5) if seed % 2 else 4,
            rewards=("uniform", "binary", "normal")[seed % 3],
            failures=("random", "low_reward", "long")[seed % 3],
            failure_rate=0.3,
            response_length=(1, 6),
            shuffle=seed % 2 == 1,
            seed=seed,
        )


def _finding(each: Named, trial: Any, batches: Sequence[GrpoBatch]) -> Finding:
    for batch in batches:
        if _problem(each, trial, batch) is not None:
            smallest = _smallest(each, trial, batch)
            return Finding(each.name, each.says, _problem(each, trial, smallest), smallest)
    return Finding(each.name, each.says)


def _problem(each: Named, trial: Any, batch: GrpoBatch) -> str | None:
    """Return what is wrong; an estimator that raises breaks whatever was asked of it."""
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return each.check(trial, batch)
    except Exception as error:  # noqa: BLE001 - any error of the estimator is a finding
        return f"raised {type(error).__name__}: {error}"


def _smallest(each: Named, trial: Any, batch: GrpoBatch) -> GrpoBatch:
    """Delete rows one by one for as long as the property still fails, in the same way."""
    raised = _has_raised(_problem(each, trial, batch))
    row = 0
    while row < len(batch):
        smaller = batch.select(np.arange(len(batch)) != row)
        problem = _problem(each, trial, smaller) if len(smaller) else None
        if problem is not None and _has_raised(problem) == raised:
            batch = smaller
        else:
            row += 1
    return batch


def _has_raised(problem: str | None) -> bool:
    return problem is not None and problem.startswith("raised ")
