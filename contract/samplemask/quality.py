"""Reward with and without the failures: means, bounds, pass@k, per agent and per task.

Means are null where nothing was measured, never 0, and the mask flag itself is never averaged.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from samplemask.accounting import Coverage, Disposition
from samplemask.columns import (
    DISPOSITIONS,
    FAILED,
    MASKED,
    NO_INDEX,
    OMITTED,
    SCORED,
    Groups,
    Rollouts,
    chosen,
)
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
        without_reward: Masked and failed rollouts without a finite reward, which `reward["all"]` leaves out.
    """

    coverage: Coverage
    reward: dict[str, float | None]
    kinds: dict[str, int] = field(default_factory=dict)
    scored_kinds: dict[str, int] = field(default_factory=dict)
    without_reward: int = 0

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
            "without_reward": self.without_reward,
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
        int(np.isnan(rollouts["reward"][lost_R]).sum()),
    )


def is_lost(rollouts: Rollouts) -> npt.NDArray[np.bool_]:
    """Return which rollouts ran but gave no measurement: the masked and the failed ones."""
    lost_R: npt.NDArray[np.bool_] = (rollouts["disposition"] == MASKED) | (rollouts["disposition"] == FAILED)
    return lost_R


def that_ran(rollouts: Rollouts) -> Rollouts:
    """Return the scored, masked and failed rollouts."""
    return chosen(rollouts, rollouts["disposition"] < OMITTED)


def coverage_of(rollouts: Rollouts) -> Coverage:
    """Count the dispositions."""
    counts = np.bincount(rollouts["disposition"], minlength=len(DISPOSITIONS)).tolist()
    return Coverage(**{name.value: count for name, count in zip(DISPOSITIONS, counts, strict=True)})


def by_agent(rollouts: Rollouts, ledger: Ledger, counting: Counting) -> dict[str, Summary]:
    """Summarize each agent, the ones that lost most rollouts first."""
    names, agents = list(ledger.agents), np.unique(rollouts["agent"]).tolist()
    if len(agents) < 2:
        return {names[agent]: summarize(rollouts, ledger, counting) for agent in agents}
    order_R = np.argsort(rollouts["agent"], kind="stable")
    starts = np.searchsorted(rollouts["agent"][order_R], agents)
    summaries = [
        (names[agent], summarize(rollouts[rows], ledger, counting))
        for agent, rows in zip(agents, np.split(order_R, starts[1:]), strict=True)
    ]
    return dict(sorted(summaries, key=lambda item: (-item[1].lost, item[0])))


def tasks(rollouts: Rollouts, ledger: Ledger) -> dict[str, Any]:
    """Count tasks and describe the ones that lost most, in the form of `--json`."""
    known = chosen(rollouts, rollouts["task"] != NO_INDEX)
    groups = Groups(known, GROUP)
    scored_G = groups.counts(known["disposition"] == SCORED)
    lost_G = groups.size_G - scored_G
    worst_G = np.lexsort((-lost_G, -lost_G / groups.size_G))[:WORST_TASKS]
    measured = int((scored_G > 0).sum())
    return {
        "count": groups.count,
        "measured": measured,
        "without_measurement": groups.count - measured,
        "worst": [
            _task(known[groups.code_R == group], ledger) for group in worst_G.tolist() if lost_G[group]
        ],
    }


def gym_coverage(rollouts: Rollouts) -> dict[str, int]:
    """Return Gym's own coverage metrics under their own names; like there, none where nothing is masked.

    Source: NeMo Gym 0.7.0, `reward_profile.py::_coverage_metrics`. Failed rollouts take no part.
    """
    if not (rollouts["disposition"] == MASKED).any():
        return {}
    present = chosen(rollouts, rollouts["disposition"] <= MASKED)
    groups, scored_R = Groups(present, ("run", "task")), present["disposition"] == SCORED
    measured = int((groups.counts(scored_R) > 0).sum())
    return {
        "coverage/measured_rollouts": int(scored_R.sum()),
        "coverage/masked_rollouts": int((~scored_R).sum()),
        "coverage/measured_tasks": measured,
        "coverage/fully_masked_tasks": groups.count - measured,
    }


def pass_at(rollouts: Rollouts, counting: Counting) -> dict[str, float | None]:
    """Return pass@k: the expected best reward of k attempts at a task, averaged over tasks.

    For rewards of 0 and 1 this is the usual estimator, 1 - C(n - c, k) / C(n, k). A task with fewer
    than k counted attempts does not enter; None where no task has that many.

    Returns:
        The value for k = 1, 2, 4, ... and for the largest group, by str(k).
    """
    groups = Groups(rollouts, GROUP)
    by_size = _by_size(*_sorted_rewards(rollouts, groups, counting))
    largest = int(groups.size_G.max()) if groups.count else 0
    return {str(k): _pass_at(k, by_size) for k in _ks(largest)}


def _sorted_rewards(
    rollouts: Rollouts, groups: Groups, counting: Counting
) -> tuple[FloatArray, npt.NDArray[np.intp]]:
    """Return the counted rewards group by group, sorted within each, and how many each group has."""
    counted_R, reward_R = _counted_rewards(rollouts, counting)
    counted_R &= rollouts["task"] != NO_INDEX
    code, reward = groups.code_R[counted_R], reward_R[counted_R]
    del counted_R, reward_R  # each of these columns counts on a file of millions of rows
    return reward[np.lexsort((reward, code))], np.bincount(code, minlength=groups.count)


def mean(values: FloatArray) -> float | None:
    """Return the mean of the finite values, the same in whatever order they come; None without any."""
    count = int(np.isfinite(values).sum())
    if not count:
        return None
    try:
        return math.fsum(_finite(values)) / count
    except OverflowError:  # the sum of rewards near the largest float, although their mean fits
        return math.fsum(value / count for value in _finite(values))


def _finite(values: FloatArray) -> Iterator[float]:
    """Return Python's own floats, a piece at a time: a list of all would take four times the memory."""
    size = 1 << 16
    pieces = (values[start : start + size] for start in range(0, len(values), size))
    return itertools.chain.from_iterable(piece[np.isfinite(piece)].tolist() for piece in pieces)


def _rewards(rollouts: Rollouts, counting: Counting) -> dict[str, float | None]:
    reward_R, scored_R, lost_R = rollouts["reward"], rollouts["disposition"] == SCORED, is_lost(rollouts)
    scored = reward_R[scored_R]
    counted_R, counted_reward_R = _counted_rewards(rollouts, counting)
    lost = int(lost_R.sum())
    return {
        "all": mean(reward_R),
        "unmasked": mean(scored),
        "counted": mean(counted_reward_R[counted_R]),
        "failures_as_zero": _with_failures(mean(scored), len(scored), lost, 0.0),
        "failures_as_one": _with_failures(mean(scored), len(scored), lost, 1.0),
        "min": float(scored.min()) if len(scored) else None,
        "max": float(scored.max()) if len(scored) else None,
    }


def _with_failures(reward: float | None, scored: int, lost: int, each: float) -> float | None:
    if scored + lost == 0:
        return None
    return ((reward or 0.0) * scored + each * lost) / (scored + lost)


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
        "run": list(ledger.runs)[first["run"]],
        "agent": list(ledger.agents)[first["agent"]],
        "task": ledger.index_name(int(first["task"])),
        "dispositions": {
            name.value: int((part["disposition"] == code).sum()) for code, name in enumerate(DISPOSITIONS)
        },
        "reward_unmasked": mean(part["reward"][part["disposition"] == SCORED]),
    }


def _ks(largest: int) -> list[int]:
    powers = [2**power for power in range(largest.bit_length())]
    return sorted({k for k in (*powers, largest) if 1 <= k <= largest})


def _by_size(reward: FloatArray, size_G: npt.NDArray[np.intp]) -> dict[int, FloatArray]:
    """Return the rewards of the groups of each size n, (groups, n); `reward` is sorted within each group."""
    start_G, sizes = np.cumsum(size_G) - size_G, np.unique(size_G).tolist()
    if len(sizes) == 1 and sizes[0]:
        return {sizes[0]: reward.reshape(-1, sizes[0])}
    return {n: reward[start_G[size_G == n][:, None] + np.arange(n)] for n in sizes if n}


def _pass_at(k: int, by_size: dict[int, FloatArray]) -> float | None:
    """Average the expected maximum of k attempts drawn without repetition."""
    best = [rewards @ _weights(n, k) for n, rewards in by_size.items() if n >= k]
    return mean(np.concatenate(best)) if best else None


def _weights(n: int, k: int) -> FloatArray:
    """Return for each place in a sorted list of n how often it is the best of k: C(i, k - 1) / C(n, k)."""
    below = np.arange(n - 1, k - 1, -1)
    weights = np.zeros(n)
    weights[k - 1 :] = np.concatenate([[1.0], np.cumprod((below - k + 1) / below)])[::-1] * (k / n)
    return weights


def _counted(kind_R: npt.NDArray[np.int32], ledger: Ledger) -> dict[str, int]:
    names = list(ledger.kinds)
    codes, counts = np.unique(kind_R[kind_R >= 0], return_counts=True)
    named = [(names[code], count) for code, count in zip(codes.tolist(), counts.tolist(), strict=True)]
    return dict(sorted(named, key=lambda item: (-item[1], item[0])))
