"""Reward with and without the failures: means, bounds, pass@k, per agent and per task.

Means are null where nothing was measured, never 0, and the mask flag itself is never averaged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from samplemask.accounting import Coverage, Disposition
from samplemask.columns import DISPOSITIONS, FAILED, MASKED, NO_INDEX, OMITTED, SCORED, Rollouts
from samplemask.ledger import Ledger

FloatArray = npt.NDArray[np.float64]
WORST_TASKS: Final = 20
GROUP: Final = ("run", "agent", "task")
"""What makes a prompt group: Gym fans one task out to several agents, which do not share a baseline."""


@dataclass(frozen=True, slots=True)
class Counting:
    """What counts as a zero besides what the environment scored.

    Attributes:
        failed: "zero": a failed rollout is an attempt that did not pass, in `counted` and pass@k;
            "exclude": it is no attempt. A masked rollout never counts.
        missing_as_zero: Unknown and omitted rollouts count as zeros too.
    """

    failed: Literal["zero", "exclude"] = "zero"
    missing_as_zero: bool = False


@dataclass(frozen=True, slots=True)
class Summary:
    """The numbers of a set of rollouts.

    Attributes:
        coverage: The five dispositions.
        reward: Means, bounds and extremes by name; None where nothing was measured.
        kinds: Masked and failed rollouts per failure kind, most frequent first.
        scored_kinds: Scored rollouts that name a failure kind all the same.
    """

    coverage: Coverage
    reward: dict[str, float | None]
    kinds: dict[str, int] = field(default_factory=dict)
    scored_kinds: dict[str, int] = field(default_factory=dict)

    @property
    def lost(self) -> int:
        """Expected rollouts that gave no measurement."""
        return self.coverage.expected - self.coverage.scored

    def to_json(self) -> dict[str, Any]:
        """Return the summary in the form of `--json`."""
        return {
            "dispositions": {name.value: getattr(self.coverage, name.value) for name in Disposition},
            "expected": self.coverage.expected,
            "reward": {name: self.reward[name] for name in ("all", "unmasked")},
            "reward_bounds": {name: self.reward[name] for name in ("failures_as_zero", "failures_as_one")},
            "reward_counted": self.reward["counted"],
            "reward_range": {name: self.reward[name] for name in ("min", "max")},
            "kinds": self.kinds,
            "scored_kinds": self.scored_kinds,
        }


def summarize(rollouts: Rollouts, ledger: Ledger, counting: Counting) -> Summary:
    """Summarize rollouts of a ledger."""
    scored_R = rollouts["disposition"] == SCORED
    lost_R = is_lost(rollouts)
    return Summary(
        coverage_of(rollouts),
        _rewards(rollouts, counting),
        _counted(rollouts["kind"][lost_R], ledger),
        _counted(rollouts["kind"][scored_R], ledger),
    )


def is_lost(rollouts: Rollouts) -> npt.NDArray[np.bool_]:
    """Return which rollouts ran but gave no measurement: the masked and the failed ones."""
    lost_R: npt.NDArray[np.bool_] = (rollouts["disposition"] == MASKED) | (rollouts["disposition"] == FAILED)
    return lost_R


def that_ran(rollouts: Rollouts) -> Rollouts:
    """Return the scored, masked and failed rollouts."""
    return rollouts[rollouts["disposition"] < OMITTED]


def coverage_of(rollouts: Rollouts) -> Coverage:
    """Count the dispositions."""
    counts = np.bincount(rollouts["disposition"], minlength=len(DISPOSITIONS)).tolist()
    return Coverage(**{name.value: count for name, count in zip(DISPOSITIONS, counts, strict=True)})


def by_agent(rollouts: Rollouts, ledger: Ledger, counting: Counting) -> dict[str, Summary]:
    """Summarize each agent, the ones that lost most rollouts first."""
    names = ledger.agents.all()
    summaries = [
        (names[part["agent"][0]], summarize(part, ledger, counting)) for part in groups(rollouts, ("agent",))
    ]
    return dict(sorted(summaries, key=lambda item: (-item[1].lost, item[0])))


def tasks(rollouts: Rollouts, ledger: Ledger) -> dict[str, Any]:
    """Count tasks and describe the ones that lost most, in the form of `--json`."""
    parts = [part for part in groups(rollouts, GROUP) if part["task"][0] != NO_INDEX]
    measured = sum(bool((part["disposition"] == SCORED).any()) for part in parts)
    losses = [(len(part) - int((part["disposition"] == SCORED).sum()), part) for part in parts]
    worst = sorted((loss for loss in losses if loss[0]), key=lambda loss: (-loss[0] / len(loss[1]), -loss[0]))
    return {
        "count": len(parts),
        "measured": measured,
        "without_measurement": len(parts) - measured,
        "worst": [_task(part, ledger) for _, part in worst[:WORST_TASKS]],
    }


def gym_coverage(rollouts: Rollouts) -> dict[str, int]:
    """Return Gym's own coverage metrics under their own names; like there, none where nothing is masked.

    Source: NeMo Gym 0.7.0, `reward_profile.py::_coverage_metrics`. Failed rollouts take no part.
    """
    present = rollouts[(rollouts["disposition"] == SCORED) | (rollouts["disposition"] == MASKED)]
    scored_R = present["disposition"] == SCORED
    if scored_R.all():
        return {}
    tasks_measured = [bool(scored_R[rows].any()) for rows in group_rows(present, ("run", "task"))]
    return {
        "coverage/measured_rollouts": int(scored_R.sum()),
        "coverage/masked_rollouts": int((~scored_R).sum()),
        "coverage/measured_tasks": sum(tasks_measured),
        "coverage/fully_masked_tasks": len(tasks_measured) - sum(tasks_measured),
    }


def pass_at(rollouts: Rollouts, counting: Counting) -> dict[str, float | None]:
    """Return pass@k: the expected best reward of k attempts at a task, averaged over tasks.

    For rewards of 0 and 1 this is the usual estimator, 1 - C(n - c, k) / C(n, k). A task with fewer
    than k counted attempts does not enter; None where no task has that many.

    Returns:
        The value for k = 1, 2, 4, ... and for the largest group, by str(k).
    """
    attempts = rollouts[(rollouts["task"] != NO_INDEX) & (rollouts["disposition"] != MASKED)]
    counted_R, reward_R = _counted_rewards(attempts, counting)
    sorted_rewards = [
        np.sort(reward_R[rows][counted_R[rows]]) for rows in group_rows(attempts, GROUP) if len(rows)
    ]
    largest = max((len(part) for part in groups(rollouts, GROUP)), default=0)
    return {str(k): _pass_at(k, sorted_rewards) for k in _ks(largest)}


def groups(rollouts: Rollouts, names: tuple[str, ...]) -> Iterator[Rollouts]:
    """Yield the rollouts that share the named columns, group by group."""
    return (rollouts[rows] for rows in group_rows(rollouts, names))


def group_rows(rollouts: Rollouts, names: tuple[str, ...]) -> list[npt.NDArray[np.intp]]:
    """Return the row numbers of each group."""
    if not len(rollouts):
        return []
    order_R = np.lexsort([rollouts[name] for name in reversed(names)])
    sorted_columns = [rollouts[name][order_R] for name in names]
    changes = np.logical_or.reduce([column[1:] != column[:-1] for column in sorted_columns])
    return np.split(order_R, np.flatnonzero(changes) + 1)


def mean(values: FloatArray) -> float | None:
    """Return the mean of the finite values, the same in whatever order they come; None without any."""
    finite = values[np.isfinite(values)].tolist()
    if not finite:
        return None
    try:
        return math.fsum(finite) / len(finite)
    except OverflowError:  # the sum of rewards near the largest float, although their mean fits
        return math.fsum(value / len(finite) for value in finite)


def _rewards(rollouts: Rollouts, counting: Counting) -> dict[str, float | None]:
    reward_R, scored_R, lost_R = rollouts["reward"], rollouts["disposition"] == SCORED, is_lost(rollouts)
    scored = reward_R[scored_R]
    counted_R, counted_reward_R = _counted_rewards(rollouts, counting)
    lost = int(lost_R.sum())
    return {
        "all": mean(reward_R),
        "unmasked": mean(scored),
        "counted": mean(counted_reward_R[counted_R]),
        "failures_as_zero": mean(np.concatenate([scored, np.zeros(lost)])),
        "failures_as_one": mean(np.concatenate([scored, np.ones(lost)])),
        "min": float(scored.min()) if len(scored) else None,
        "max": float(scored.max()) if len(scored) else None,
    }


def _counted_rewards(rollouts: Rollouts, counting: Counting) -> tuple[npt.NDArray[np.bool_], FloatArray]:
    """Return which rollouts count and with what."""
    disposition_R = rollouts["disposition"]
    zero_R = (disposition_R > FAILED) if counting.missing_as_zero else np.zeros(len(rollouts), dtype=bool)
    if counting.failed == "zero":
        zero_R |= disposition_R == FAILED
    return (disposition_R == SCORED) | zero_R, np.where(zero_R, 0.0, rollouts["reward"])


def _task(part: Rollouts, ledger: Ledger) -> dict[str, Any]:
    first = part[0]
    return {
        "run": ledger.runs.all()[first["run"]],
        "agent": ledger.agents.all()[first["agent"]],
        "task": ledger.index_name(int(first["task"])),
        "dispositions": {
            name.value: int((part["disposition"] == code).sum()) for code, name in enumerate(DISPOSITIONS)
        },
        "reward_unmasked": mean(part["reward"][part["disposition"] == SCORED]),
    }


def _ks(largest: int) -> list[int]:
    powers = [2**power for power in range(largest.bit_length())]
    return sorted({k for k in (*powers, largest) if 1 <= k <= largest})


def _pass_at(k: int, sorted_rewards: list[FloatArray]) -> float | None:
    """Average the expected maximum of k attempts drawn without repetition."""
    best = [float(rewards @ _weights(len(rewards), k)) for rewards in sorted_rewards if len(rewards) >= k]
    return mean(np.array(best))


def _weights(n: int, k: int) -> FloatArray:
    """Return for each place in a sorted list of n how often it is the best of k: C(i, k - 1) / C(n, k)."""
    below = np.arange(n - 1, k - 1, -1)
    weights = np.zeros(n)
    weights[k - 1 :] = np.concatenate([[1.0], np.cumprod((below - k + 1) / below)])[::-1] * (k / n)
    return weights


def _counted(kind_R: npt.NDArray[np.int32], ledger: Ledger) -> dict[str, int]:
    names = ledger.kinds.all()
    codes, counts = np.unique(kind_R[kind_R >= 0], return_counts=True)
    named = [(names[code], count) for code, count in zip(codes.tolist(), counts.tolist(), strict=True)]
    return dict(sorted(named, key=lambda item: (-item[1], item[0])))
