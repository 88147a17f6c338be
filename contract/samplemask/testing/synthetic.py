"""Synthetic GRPO batches: groups, failures, sessions and padding, the same on every platform."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt

from samplemask.errors import ContractError
from samplemask.testing.batches import BoolArray, GrpoBatch, IntArray, objects, padding_rows

RewardModel = Literal["binary", "uniform", "normal"] | Callable[["Stream", int], npt.ArrayLike]
Failures = Literal["random", "low_reward", "high_reward", "long", "whole_groups"]


class Stream:
    """Uniform numbers whose sequence for a seed is the same everywhere.

    NumPy promises the raw output of a bit generator for ever, but not what its distributions make of it.
    """

    def __init__(self, seed: int) -> None:
        self._bits = np.random.PCG64(seed)

    def uniform(self, count: int) -> npt.NDArray[np.float64]:
        """Return `count` numbers in [0, 1), float64."""
        raw = np.asarray(self._bits.random_raw(count), dtype=np.uint64).reshape(count)
        uniform: npt.NDArray[np.float64] = (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return uniform

    def integers(self, low: int, high: int, count: int) -> IntArray:
        """Return `count` integers from `low` to `high`, both included."""
        return low + np.floor(self.uniform(count) * (high - low + 1)).astype(np.int64)

    def permutation(self, count: int) -> IntArray:
        """Return the numbers 0 to `count` - 1 in random order."""
        return np.argsort(self.uniform(count), kind="stable").astype(np.int64)


def grpo_batch(
    groups: int = 4,
    group_size: int | tuple[int, int] = 4,
    *,
    response_length: tuple[int, int] = (1, 8),
    rewards: RewardModel = "uniform",
    failure_rate: float = 0.25,
    failures: Failures = "random",
    kinds: Mapping[str, float] | None = None,
    rows_per_session: tuple[int, int] = (1, 1),
    padding: int = 0,
    shuffle: bool = False,
    dtype: npt.DTypeLike = np.float64,
    seed: int = 0,
) -> GrpoBatch:
    """Make one batch; the same seed gives the same batch on every platform.

    Args:
        groups: Number of groups.
        group_size: Rollouts per group, or the smallest and the largest of ragged groups.
        response_length: Smallest and largest number of response tokens; 0 is allowed.
        rewards: "binary" (0 or 1), "uniform" (0 to 1), "normal" (mean 0, about unit variance), or a
            function of a `Stream` and a count.
        failure_rate: Fraction of rollouts that fail, 0 to 1, exact up to rounding.
        failures: Which ones: "random", those of low or high reward, the long ones, or whole groups.
        kinds: Failure kinds and their weights; session_lost by default.
        rows_per_session: Smallest and largest number of rows of one rollout.
        padding: Padding rows at the end, each in a group of its own.
        shuffle: Mix the rows, so that groups are no longer neighbours.
        dtype: Type of the rewards.
        seed: Seed.

    Raises:
        ContractError: An option makes no sense.
    """
    _check(groups=(groups, 0), padding=(padding, 0))
    sizes_low, sizes_high = (group_size, group_size) if isinstance(group_size, int) else group_size
    _check_range("group_size", sizes_low, sizes_high, 1)
    _check_range("response_length", *response_length, 0)
    _check_range("rows_per_session", *rows_per_session, 1)
    stream = Stream(seed)
    size_G = stream.integers(sizes_low, sizes_high, groups)
    group_S = np.repeat(np.arange(groups), size_G)
    reward_S = _rewards(rewards, stream, len(group_S))
    length_S = stream.integers(*response_length, len(group_S))
    masked_S = _failed(failures, failure_rate, stream, group_S, reward_S, length_S)
    kind_S = _kinds(kinds or {"session_lost": 1.0}, stream, masked_S)
    rows_S = stream.integers(*rows_per_session, len(group_S))
    session_B = np.repeat(np.arange(len(group_S)), rows_S)
    batch = GrpoBatch(
        group_B=objects([_uid(seed, group) for group in group_S[session_B]]),
        reward_B=reward_S[session_B].astype(dtype),
        masked_B=masked_S[session_B],
        length_B=length_S[session_B],
        kinds_B=tuple(kind_S[session] for session in session_B),
        session_B=objects([f"{_uid(seed, group_S[s])}_{s}" for s in session_B]),
        order_B=np.concatenate([np.arange(rows) for rows in rows_S] or [np.zeros(0)]).astype(np.int64),
        padding_B=np.zeros(len(session_B), dtype=bool),
    )
    if shuffle:
        batch = batch.select(stream.permutation(len(batch)))
    return batch.append(padding_rows(padding, dtype)) if padding else batch


def _uid(seed: int, group: int) -> str:
    return f"{seed:04x}-{group * 2654435761 % 2**32:08x}"


def _rewards(model: RewardModel, stream: Stream, count: int) -> npt.NDArray[np.float64]:
    if model == "binary":
        return (stream.uniform(count) < 0.5).astype(np.float64)
    if model == "uniform":
        return stream.uniform(count)
    if model == "normal":  # twelve uniforms: no logarithm that could differ in its last bit
        normal: npt.NDArray[np.float64] = stream.uniform(12 * count).reshape(12, count).sum(axis=0) - 6.0
        return normal
    if not callable(model):
        expected = '"binary", "uniform", "normal" or a function of a stream and a count'
        raise ContractError.of("rewards", expected, model, "Choose one of these.")
    values = np.asarray(model(stream, count), dtype=np.float64)
    if values.shape != (count,):
        raise ContractError.of("rewards", f"{count} values", values.shape, "Return one per rollout.")
    return values


def _failed(
    which: Failures,
    rate: float,
    stream: Stream,
    group_S: IntArray,
    reward_S: npt.NDArray[np.float64],
    length_S: IntArray,
) -> BoolArray:
    if not 0.0 <= rate <= 1.0:
        raise ContractError.of(
            "failure_rate", "a fraction, 0 to 1", rate, "Divide by the number of rollouts."
        )
    tie = stream.uniform(len(group_S))
    group_order = stream.permutation(int(group_S.max(initial=-1)) + 1)
    order = {
        "random": tie,
        "low_reward": reward_S,
        "high_reward": -reward_S,
        "long": -length_S.astype(np.float64),
        "whole_groups": group_order[group_S].astype(np.float64),
    }
    if which not in order:
        raise ContractError.of("failures", f"one of {sorted(order)}", which, "Choose one of these.")
    first = np.lexsort((tie, order[which]))[: round(rate * len(group_S))]
    masked_S = np.zeros(len(group_S), dtype=bool)
    masked_S[first] = True
    return masked_S


def _kinds(weights: Mapping[str, float], stream: Stream, masked_S: BoolArray) -> list[str | None]:
    names = list(weights)
    upper = np.cumsum([weights[name] for name in names]) / sum(weights.values())
    chosen = np.searchsorted(upper, stream.uniform(len(masked_S)), side="right").clip(max=len(names) - 1)
    return [names[choice] if masked else None for choice, masked in zip(chosen, masked_S, strict=True)]


def _check(**counts: tuple[int, int]) -> None:
    for name, (value, least) in counts.items():
        if value < least:
            raise ContractError.of(name, f"at least {least}", value, "Give a count.")


def _check_range(name: str, low: int, high: int, least: int) -> None:
    if not least <= low <= high:
        expected = f"a smallest and a largest number, at least {least}"
        raise ContractError.of(name, expected, (low, high), "Give them in order.")
