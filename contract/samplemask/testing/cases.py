"""Public fault reports as data: what was reported, and the right numbers, for anybody to run.

`public_cases()` are in reach of samplemask and run in its own tests; `out_of_reach()` are not, with
the reason. The numbers come from the reports where `numbers` says so; the words are ours.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt

from samplemask.testing.batches import GrpoBatch, objects, padding_rows
from samplemask.verdict import read_verdict


@dataclass(frozen=True)
class PublicCase:
    """One public report in reach.

    Attributes:
        id: Its number here.
        report: Where it was reported: owner/name#number on GitHub.
        kind: What it is about, and so the form of its examples: "advantages", "invariance", "verdict",
            "dispositions", "plan", "metrics", "loss", "audit", "padding", "odds", "verl" (reward columns),
            or "host" (only the tests named in `also` can show it).
        says: The fault in one sentence.
        numbers: Where the numbers come from.
        examples: Inputs and right answers.
        also: Tests on real hosts that show the same, as pytest ids from the repository's root.
    """

    id: str
    report: str
    kind: str
    says: str
    numbers: str
    examples: list[dict[str, Any]]
    also: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        """Address of the report."""
        return _url(self.report)


@dataclass(frozen=True)
class OutOfReach:
    """One public report that samplemask does not answer, and why."""

    id: str
    report: str
    says: str
    why: str

    @property
    def url(self) -> str:
        """Address of the report."""
        return _url(self.report)


@dataclass(frozen=True)
class AdvantageExample:
    """One batch and the advantages that one estimator should give.

    Attributes:
        case: The report.
        estimator: "group_mean", "group_mean_norm", "leave_one_out", "leave_one_out_norm" (sample standard
            deviation, no epsilon) or "length_weighted".
        batch: The batch.
        expected: float64 (B,).
        wrong: float64 (B,), what the report complains about; None where it gives no numbers.
        policy: Options of the MaskPolicy.
    """

    case: PublicCase
    estimator: str
    batch: GrpoBatch
    expected: npt.NDArray[np.float64]
    wrong: npt.NDArray[np.float64] | None
    policy: dict[str, Any]


def public_cases(kind: str | None = None) -> list[PublicCase]:
    """Return the cases in reach, of one kind or all."""
    cases = [PublicCase(**{**case, "also": tuple(case.get("also", ()))}) for case in _load()["cases"]]
    return [case for case in cases if kind is None or case.kind == kind]


def out_of_reach() -> list[OutOfReach]:
    """Return the reports that are out of reach, with the reason."""
    return [OutOfReach(**case) for case in _load()["out_of_reach"]]


def advantage_examples() -> Iterator[AdvantageExample]:
    """Yield each batch of the cases about advantages, once for each estimator that has numbers."""
    for case in public_cases("advantages"):
        for example in case.examples:
            batch = example_batch(example)
            for name, expected in example["expected"].items():
                wrong = example.get("wrong", {}).get(name)
                yield AdvantageExample(
                    case,
                    name,
                    batch,
                    np.asarray(expected, dtype=np.float64),
                    None if wrong is None else np.asarray(wrong, dtype=np.float64),
                    example.get("policy", {}),
                )


def example_batch(example: dict[str, Any]) -> GrpoBatch:
    """Return the batch that an example describes; a row without a reward is masked, as it is in training."""
    rewards = numbers(example["rewards"])
    flags = example.get("masked", [0] * len(rewards))
    responses = zip(example["rewards"], flags, strict=True)
    masked = [read_verdict({"reward": reward, "mask_sample": flag}).mask_sample for reward, flag in responses]
    batch = GrpoBatch.of(rewards, masked, example.get("groups"), example.get("lengths"))
    if sessions := example.get("sessions"):
        batch.session_B[:] = objects(sessions)
        batch.order_B[:] = [sessions[:row].count(session) for row, session in enumerate(sessions)]
    return batch.append(padding_rows(example["padding"])) if "padding" in example else batch


def numbers(values: Any) -> Any:
    """Return nested lists with None and "NaN" (JSON has neither) as NaN."""
    if isinstance(values, list):
        return [numbers(value) for value in values]
    return float("nan") if values is None else float(values)


def _load() -> dict[str, Any]:
    text = files("samplemask.testing").joinpath("public_cases.json").read_text(encoding="utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def _url(report: str) -> str:
    repository, _, number = report.partition("#")
    return f"https://github.com/{repository}/issues/{number}"
