"""Every rollout counted once: dispositions, coverage, and the metrics of one training step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from samplemask.arrays import as_array
from samplemask.errors import ContractError
from samplemask.policy import Kinds, RowPlan, count_kinds
from samplemask.verdict import FAILURE_CLASS, Verdict

PREFIX = "mask_sample/"


class Disposition(str, Enum):
    """What became of one expected rollout. The five exclude each other."""

    SCORED = "scored"
    """Its reward is a measurement; a true zero is one."""
    MASKED = "masked"
    """It ran to its end, but its reward is not a measurement."""
    FAILED = "failed"
    """Its attempt ended in a recorded failure (`_ng_failure_class`, or an error instead of a reward)."""
    OMITTED = "omitted"
    """It was expected and known not to have run (a killed attempt leaves no row)."""
    UNKNOWN = "unknown"
    """It was expected and left no trace: the residual."""

    @classmethod
    def of(cls, verdict: Verdict, response: Mapping[str, Any] | None = None) -> Disposition:
        """Return the disposition of a rollout that left a row.

        Args:
            verdict: The row's reading.
            response: The row; one that carries `error` instead of a reward is a failed attempt.
        """
        if not verdict.mask_sample:
            return cls.SCORED
        reports_error = response is not None and response.get("error") is not None
        if FAILURE_CLASS in verdict.sources or (reports_error and verdict.sources == ("reward",)):
            return cls.FAILED
        return cls.MASKED


@dataclass(frozen=True)
class Coverage:
    """How many rollouts were expected and what became of them; the five always add up.

    Give `expected` and the unknown ones are the residual, or give `unknown`, or both.

    Attributes:
        scored: Rollouts whose reward is a measurement.
        masked: Rollouts whose reward is not.
        failed: Rollouts that ended in a recorded failure.
        omitted: Rollouts known not to have run.
        unknown: Rollouts that left no trace.
        expected: All of them.

    Raises:
        ContractError: A count is negative, or more rollouts are accounted for than were expected.
    """

    scored: int = 0
    masked: int = 0
    failed: int = 0
    omitted: int = 0
    unknown: int = None  # type: ignore[assignment]  # resolved in __post_init__
    expected: int = None  # type: ignore[assignment]  # resolved in __post_init__

    def __post_init__(self) -> None:
        known = self.scored + self.masked + self.failed + self.omitted
        if self.unknown is None:
            object.__setattr__(self, "unknown", 0 if self.expected is None else self.expected - known)
        if self.expected is None:
            object.__setattr__(self, "expected", known + self.unknown)
        counts = {name.value: getattr(self, name.value) for name in Disposition}
        whole = all(isinstance(count, (int, np.integer)) for count in (*counts.values(), self.expected))
        if not whole or min(counts.values()) < 0 or sum(counts.values()) != self.expected:
            expected = f"counts of at least 0 that add up to expected={self.expected}"
            to_do = "Count each rollout once, and expect every rollout that left a row."
            raise ContractError.of("Coverage", expected, counts, to_do)

    def __add__(self, other: Coverage) -> Coverage:
        names = [name.value for name in Disposition]
        return Coverage(**{name: getattr(self, name) + getattr(other, name) for name in names})


@dataclass(frozen=True)
class StepCounts:
    """What happened to the rows of one step; those of several batches add up.

    Attributes:
        rows: Rows of the batch.
        masked: Masked rows.
        trained: Rows that carry loss.
        groups_dropped: Groups that `drop_group` removed.
        groups_thin: Other groups with fewer than `min_valid` voters.
        changed: True when samplemask changed anything or a row is masked.
        reward: Mean over the rows with a finite reward, and their number.
        reward_unmasked: The same over unmasked rows.
        kinds: Masked rows per failure kind.
    """

    rows: int = 0
    masked: int = 0
    trained: int = 0
    groups_dropped: int = 0
    groups_thin: int = 0
    changed: bool = False
    reward: tuple[float, int] = (0.0, 0)
    reward_unmasked: tuple[float, int] = (0.0, 0)
    kinds: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: RowPlan, reward_B: npt.ArrayLike, kinds_B: Kinds | None = None) -> StepCounts:
        """Count one batch.

        Args:
            plan: Its plan.
            reward_B: float (B,) rewards; those of masked rows may hold anything.
            kinds_B: (B,) failure kinds, None where there is none.

        Raises:
            ContractError: `reward_B` or `kinds_B` does not have one value per row.
        """
        rows = len(plan.masked_B)
        rewards = _rewards(reward_B, rows)
        finite = np.isfinite(rewards)
        return cls(
            rows=rows,
            masked=int(plan.masked_B.sum()),
            trained=int(plan.trains_B.sum()),
            groups_dropped=plan.dropped_groups,
            groups_thin=plan.thin_groups,
            changed=_changed(plan),
            reward=_mean(rewards[finite]),
            reward_unmasked=_mean(rewards[finite & ~plan.masked_B]),
            kinds=count_kinds(plan.masked_B, kinds_B),
        )

    def __add__(self, other: StepCounts) -> StepCounts:
        kinds = Counter(self.kinds)
        kinds.update(other.kinds)
        return StepCounts(
            rows=self.rows + other.rows,
            masked=self.masked + other.masked,
            trained=self.trained + other.trained,
            groups_dropped=self.groups_dropped + other.groups_dropped,
            groups_thin=self.groups_thin + other.groups_thin,
            changed=self.changed or other.changed,
            reward=_pooled(self.reward, other.reward),
            reward_unmasked=_pooled(self.reward_unmasked, other.reward_unmasked),
            kinds=dict(kinds),
        )

    def metrics(self) -> dict[str, float]:
        """Return `mask_sample/*`; see `step_metrics`."""
        if not self.changed:
            return {}
        metrics: dict[str, float] = {"masked_pct": 100.0 * self.masked / self.rows if self.rows else 0.0}
        for name, (mean, count) in (("reward", self.reward), ("reward_unmasked", self.reward_unmasked)):
            if count:
                metrics[name] = mean
        metrics["rows_trained"] = float(self.trained)
        metrics["groups_dropped"] = float(self.groups_dropped)
        metrics["groups_thin"] = float(self.groups_thin)
        metrics["no_signal_step"] = float(not self.trained)
        for kind, count in self.kinds.items():
            metrics[f"kind/{kind}"] = float(count)
        return {PREFIX + name: value for name, value in metrics.items()}


def step_metrics(
    plan: RowPlan,
    reward_B: npt.ArrayLike,
    kinds_B: Kinds | None = None,
) -> dict[str, float]:
    """Return the `mask_sample/*` metrics of one training step.

    Args:
        plan: The step's plan.
        reward_B: float (B,) rewards; those of masked rows may hold anything.
        kinds_B: (B,) failure kinds, None where there is none.

    Returns:
        `masked_pct` (0 to 100), `reward` and `reward_unmasked` (means over finite rewards; left out
        when nothing was measured), `rows_trained`, `groups_dropped`, `groups_thin`,
        `no_signal_step` (0 or 1) and `kind/<failure_kind>` (rows). Empty when nothing is masked
        and nothing was dropped: a healthy step publishes what it always did.

    Raises:
        ContractError: `reward_B` or `kinds_B` does not have one value per row.
    """
    return StepCounts.of(plan, reward_B, kinds_B).metrics() if _changed(plan) else {}


def _changed(plan: RowPlan) -> bool:
    return bool(plan.masked_B.any()) or not plan.changes_nothing


def _pooled(one: tuple[float, int], other: tuple[float, int]) -> tuple[float, int]:
    """Pool two means, each with the number of values behind it."""
    count = one[1] + other[1]
    share = other[1] / count if count else 0.0
    return one[0] * (1.0 - share) + other[0] * share, count


def _mean(rewards: npt.NDArray[np.float64]) -> tuple[float, int]:
    if not len(rewards):
        return 0.0, 0
    with np.errstate(over="ignore"):
        mean = float(rewards.mean())
        if not np.isfinite(mean):
            # The sum of rewards near the largest float overflows; that of their parts may by a last rounding.
            mean = float(np.clip((rewards / len(rewards)).sum(), rewards.min(), rewards.max()))
    return mean, len(rewards)


def _rewards(reward_B: npt.ArrayLike, rows: int) -> npt.NDArray[np.float64]:
    expected = f"one reward per row, shape ({rows},)"
    try:
        rewards: npt.NDArray[np.float64] = as_array(reward_B, np.float64)
    except (TypeError, ValueError) as error:
        raise ContractError.of(
            "reward_B", expected, reward_B, "Pass numbers; None where there is none."
        ) from error
    if rewards.shape != (rows,):
        raise ContractError.of("reward_B", expected, rewards.shape, "Sum over tokens first.")
    return rewards
