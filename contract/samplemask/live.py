"""The audit's accounting for a trainer that is still running: rollouts counted step by step."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from samplemask.accounting import Coverage, Disposition
from samplemask.policy import Kinds, count_kinds
from samplemask.verdict import read_verdict

RUN_PREFIX = "mask_sample_run/"
"""Beside the step's own `mask_sample/`: dashboards show each as a section."""

_UNITS: Final = 2**40
_LARGEST_SUM: Final = 2.0**62


@dataclass(frozen=True)
class RunCounts:
    """Rollouts by what their verdicts say, before any policy; those of several steps add up exactly.

    The numbers are those of `samplemask audit` on the files of the same rollouts, to the last bit of
    the means: sums are kept as fractions. Count each rollout once; of a retried one, its last attempt.

    Attributes:
        scored: Rollouts whose reward is a measurement.
        masked: Rollouts whose reward is not.
        failed: Rollouts that ended in a recorded failure.
        kinds: Masked and failed rollouts per failure kind.
        rewards: Finite rewards, whatever the verdict.
        reward_sum: Their sum.
        scored_sum: Sum of the rewards of scored rollouts.
    """

    scored: int = 0
    masked: int = 0
    failed: int = 0
    kinds: Mapping[str, int] = field(default_factory=dict)
    rewards: int = 0
    reward_sum: Fraction = Fraction()
    scored_sum: Fraction = Fraction()

    @classmethod
    def of(
        cls,
        masked_B: npt.NDArray[np.bool_],
        reward_B: npt.NDArray[np.float64],
        kinds_B: Kinds | None = None,
        failed_B: npt.NDArray[np.bool_] | None = None,
    ) -> RunCounts:
        """Count one batch.

        Args:
            masked_B: bool (B,), `Verdict.mask_sample` of each rollout.
            reward_B: float (B,) rewards, NaN where there is none; a row that is not masked has one.
            kinds_B: (B,) failure kinds, None where there is none.
            failed_B: bool (B,), masked rollouts that are recorded failures (`Disposition.FAILED`).

        Raises:
            ContractError: `kinds_B` does not have one value per row.
        """
        lost, failed = int(masked_B.sum()), 0 if failed_B is None else int(failed_B.sum())
        finite_B = np.isfinite(reward_B)
        scored_sum = _exact_sum(reward_B[finite_B & ~masked_B])
        return cls(
            scored=len(masked_B) - lost,
            masked=lost - failed,
            failed=failed,
            kinds=count_kinds(masked_B, kinds_B),
            rewards=int(finite_B.sum()),
            reward_sum=scored_sum + _exact_sum(reward_B[finite_B & masked_B]),
            scored_sum=scored_sum,
        )

    @classmethod
    def of_responses(cls, responses: Sequence[Mapping[str, Any]]) -> RunCounts:
        """Count rollouts by their verify responses.

        Raises:
            ContractError: A field cannot be read.
        """
        verdicts = [read_verdict(response) for response in responses]
        failed = [
            Disposition.of(verdict, response) is Disposition.FAILED
            for verdict, response in zip(verdicts, responses, strict=True)
        ]
        return cls.of(
            np.array([verdict.mask_sample for verdict in verdicts], dtype=bool),
            np.array([verdict.reward for verdict in verdicts], dtype=np.float64),  # of None it makes NaN
            [verdict.failure_kind for verdict in verdicts],
            np.array(failed),
        )

    def __add__(self, other: RunCounts) -> RunCounts:
        return RunCounts(
            self.scored + other.scored,
            self.masked + other.masked,
            self.failed + other.failed,
            Counter(self.kinds) + Counter(other.kinds),
            self.rewards + other.rewards,
            self.reward_sum + other.reward_sum,
            self.scored_sum + other.scored_sum,
        )

    @property
    def reward(self) -> float | None:
        """Mean of all finite rewards; None where there is none."""
        return _mean(self.reward_sum, self.rewards)

    @property
    def reward_unmasked(self) -> float | None:
        """Mean reward of the scored rollouts; None where there is none."""
        return _mean(self.scored_sum, self.scored)

    def coverage(self, expected: int | None = None, *, omitted: int = 0) -> Coverage:
        """Return the five dispositions.

        Args:
            expected: How many rollouts there should be by now; None: as many as were counted.
            omitted: How many are known not to have run.

        Raises:
            ContractError: More rollouts were counted than expected.
        """
        if expected is None:
            return Coverage(self.scored, self.masked, self.failed, omitted)
        return Coverage(self.scored, self.masked, self.failed, omitted, expected=expected)

    def metrics(self) -> dict[str, float]:
        """Return the run so far under `mask_sample_run/`; none of what was not measured.

        `scored`, `masked` and `failed` (rollouts), `reward` and `reward_unmasked` (means) and
        `kind/<failure_kind>` (rollouts). Empty as long as no rollout was lost.
        """
        if not self.masked + self.failed:
            return {}
        values: dict[str, float | None] = {
            name: getattr(self, name) for name in ("scored", "masked", "failed")
        }
        values["reward"], values["reward_unmasked"] = self.reward, self.reward_unmasked
        values.update({f"kind/{kind}": count for kind, count in self.kinds.items()})
        return {RUN_PREFIX + name: float(value) for name, value in values.items() if value is not None}


def _exact_sum(values: npt.NDArray[np.float64]) -> Fraction:
    """Sum finite floats without any rounding."""
    with np.errstate(over="ignore"):
        units = np.multiply(values, float(_UNITS), dtype=np.float64)  # exact, or infinite
    if np.abs(units).max(initial=0.0) < _LARGEST_SUM / (len(units) + 1):
        whole = units.astype(np.int64)
        if (whole == units).all():  # as with 32-bit rewards that are not tiny
            return Fraction(int(whole.sum()), _UNITS)
    return _sum_of_any(values.tolist())


def _sum_of_any(values: list[float]) -> Fraction:
    """Sum them the slow way: what `fsum` rounded off is summed until nothing is left."""
    total, rest = Fraction(), values.copy()
    try:
        while part := math.fsum(rest):
            total += Fraction(part)
            rest.append(-part)
    except OverflowError:  # rewards near the largest float
        return sum(map(Fraction, values), Fraction())
    return total


def _mean(total: Fraction, count: int) -> float | None:
    if not count:
        return None
    try:
        return float(total) / count
    except OverflowError:
        return float(total / count)
