"""What must hold of any advantage estimator that honours the verdict: one function per property.

A property takes a `Trial` (the estimator under test and what to compare it with) and a batch, and
returns None where it holds, or one sentence that says what was found.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from samplemask.policy import MaskPolicy, plan_rows
from samplemask.testing.batches import BoolArray, GrpoBatch, padding_rows
from samplemask.testing.synthetic import Stream

Estimator = Callable[[GrpoBatch], npt.ArrayLike]
TRASH = (0.0, 1e6, -1e9, math.nan, math.inf, -math.inf)
"""What masked rows may hold without anybody noticing."""


@dataclass(frozen=True)
class Trial:
    """One estimator under test.

    Attributes:
        estimator: The function under test.
        atol: Largest difference accepted, of the value where that is above 1.
        exact: True to ask for equality bit for bit where the same rows are estimated in the same order.
        min_valid: Smallest group that gives a signal, in voters.
        group_relative: False for estimators without group statistics: a lone survivor then trains.
        stock: The same estimator without masking, for batches in which nothing is masked.
        twin: Another implementation that must agree.
    """

    estimator: Estimator
    atol: float = 1e-6
    exact: bool = False
    min_valid: int = 2
    group_relative: bool = True
    stock: Estimator | None = None
    twin: Estimator | None = None

    def advantages(self, batch: GrpoBatch, estimator: Estimator | None = None) -> npt.NDArray[np.float64]:
        """Return the advantages (B,) or (B, T) as float64.

        Raises:
            ValueError: The estimator returned another number of rows.
        """
        result = (estimator or self.estimator)(batch)
        detached = result.detach() if hasattr(result, "detach") else result
        values = np.asarray(detached, dtype=np.float64)
        if values.ndim not in (1, 2) or len(values) != len(batch):
            raise ValueError(f"the estimator returned shape {values.shape} for {len(batch)} rows")
        return values

    def trains(self, batch: GrpoBatch) -> BoolArray:
        """Return bool (B,): the rows that train under the policy `exclude`."""
        real = ~batch.padding_B
        groups = batch.group_B[real] if self.group_relative else None
        trains_B = np.zeros(len(batch), dtype=bool)
        plan = plan_rows(batch.masked_B[real], groups, MaskPolicy(min_valid=self.min_valid))
        trains_B[real] = plan.trains_B
        return trains_B

    def differ(
        self,
        found: npt.NDArray[Any],
        expected: npt.NDArray[Any],
        rows: npt.NDArray[Any] | None = None,
        exact: bool = False,
    ) -> str | None:
        """Say where two arrays of advantages differ; None where they do not. NaN is never equal.

        Args:
            found: Advantages of the rows compared.
            expected: What they should be.
            rows: bool (B,), the rows compared; all by default.
            exact: True when the same rows were estimated in the same order.
        """
        atol = 0.0 if exact and self.exact else self.atol
        width = max(array.shape[1] if array.ndim == 2 else 1 for array in (found, expected))
        found, expected = _widened(found, width), _widened(expected, width)
        bad = ~(np.abs(found - expected) <= atol * np.maximum(1.0, np.abs(expected)))
        if not bad.any():
            return None
        place = int(np.flatnonzero(bad.any(axis=1))[0])
        row = place if rows is None else int(np.flatnonzero(rows)[place])
        return f"row {row} got {_row(found[place])}, not {_row(expected[place])}"


def deletion_equivalence(trial: Trial, batch: GrpoBatch) -> str | None:
    """Rows that train get what they get when the other rows are deleted."""
    trains = trial.trains(batch)
    if not trains.any():
        return None
    found = trial.advantages(batch)[trains]
    deleted = trial.advantages(batch.select(trains))
    return _told(
        trial.differ(found, deleted, trains, exact=True), "which it gets when the other rows are deleted"
    )


def masked_rows_are_zero(trial: Trial, batch: GrpoBatch) -> str | None:
    """A masked row's advantage is exactly 0 whatever its reward: not NaN times a mask."""
    for held in (batch, batch.with_masked_reward(math.nan)):
        found = trial.advantages(held)
        bad = np.flatnonzero(batch.masked_B & ~_is_zero(found))
        if len(bad):
            row, reward = bad[0], held.reward_B[bad[0]]
            return f"masked row {row} with reward {reward:.6g} got {_row(found[row])}, not 0"
    return None


def masked_content_irrelevant(trial: Trial, batch: GrpoBatch) -> str | None:
    """Whatever a masked row holds (1e6, NaN, inf), no row that trains moves."""
    trains = trial.trains(batch)
    expected = trial.advantages(batch.with_masked_reward(0.5))[trains]
    for value in TRASH:
        found = trial.advantages(batch.with_masked_reward(value))[trains]
        if problem := _told(
            trial.differ(found, expected, trains, exact=True), f"with {value} in masked rows"
        ):
            return problem
    return None


def row_permutation(trial: Trial, batch: GrpoBatch) -> str | None:
    """Reordering the rows reorders the advantages and changes nothing else."""
    order = Stream(len(batch)).permutation(len(batch))
    for rows in (order, np.arange(len(batch))[::-1]):
        found = trial.advantages(batch.select(rows))
        if problem := trial.differ(found, trial.advantages(batch)[rows]):
            return f"{problem}, after the rows were reordered {rows.tolist()}"
    return None


def group_relabelling(trial: Trial, batch: GrpoBatch) -> str | None:
    """Group ids are names: only which rows share one matters."""
    names = list(dict.fromkeys(batch.group_B))
    sharing_prefix = {name: f"{'z' * 8}-{len(names) - place}" for place, name in enumerate(names)}
    reverse = {name: f"{len(names) - place:03}" for place, name in enumerate(names)}
    for labels in (sharing_prefix, reverse):
        found = trial.advantages(batch.relabel(labels))
        if problem := trial.differ(found, trial.advantages(batch)):
            return f"{problem}, after the groups were renamed {labels}"
    return None


def padding_inert(trial: Trial, batch: GrpoBatch) -> str | None:
    """Rows that only fill the batch get 0 and change nothing."""
    padded = batch.append(padding_rows(3, batch.reward_B.dtype))
    found = trial.advantages(padded)
    if not _is_zero(found[len(batch) :]).all():
        return f"padding rows got {[_row(row) for row in found[len(batch) :]]}, not 0"
    problem = trial.differ(found[: len(batch)], trial.advantages(batch))
    return _told(problem, "with 3 padding rows appended")


def masked_group_inert(trial: Trial, batch: GrpoBatch) -> str | None:
    """A group that is masked as a whole changes no other row."""
    lost = GrpoBatch.of([0.0, 9.0], [1, 1], ["lost", "lost"], dtype=batch.reward_B.dtype)
    found = trial.advantages(batch.append(lost))[: len(batch)]
    return _told(trial.differ(found, trial.advantages(batch), exact=True), "with a masked group appended")


def masked_batch_silent(trial: Trial, batch: GrpoBatch) -> str | None:
    """A batch that is masked as a whole gives zeros: no error, no NaN."""
    silent = GrpoBatch.of(
        [float(value) for value in batch.reward_B],
        [1] * len(batch),
        list(batch.group_B),
        [int(length) for length in batch.length_B],
        dtype=batch.reward_B.dtype,
    )
    found = trial.advantages(silent)
    bad = np.flatnonzero(~_is_zero(found))
    return None if not len(bad) else f"with all rows masked, row {bad[0]} got {_row(found[bad[0]])}, not 0"


def thin_group_silent(trial: Trial, batch: GrpoBatch) -> str | None:
    """A group with fewer voters than `min_valid` gives no signal: a lone survivor gets 0."""
    thin = ~trial.trains(batch) & ~batch.masked_B & ~batch.padding_B
    found = trial.advantages(batch)
    bad = np.flatnonzero(thin & ~_is_zero(found))
    return None if not len(bad) else f"row {bad[0]} is a lone survivor and got {_row(found[bad[0]])}, not 0"


def sessions_vote_once(trial: Trial, batch: GrpoBatch) -> str | None:
    """A rollout that is split into several rows still votes once, and its rows share one advantage."""
    once = trial.advantages(batch)
    for row in range(min(len(batch), 4)):
        again = batch.select([row])
        split = batch.append(replace(again, order_B=again.order_B + 1))
        found = trial.advantages(split)
        problem = trial.differ(found, np.concatenate([once, once[row : row + 1]]))
        if problem is not None:
            return f"{problem}, with row {row} split into two rows of one session"
    return None


def healthy_batch_unchanged(trial: Trial, batch: GrpoBatch) -> str | None:
    """Where nothing is masked, the result is that of the stock estimator, bit for bit."""
    healthy = batch.select(trial.trains(batch))
    if trial.stock is None or not len(healthy):
        return None
    same = Trial(trial.estimator, atol=0.0)
    problem = same.differ(trial.advantages(healthy), trial.advantages(healthy, trial.stock))
    return _told(problem, "on a batch without masked rows")


def twins_agree(trial: Trial, batch: GrpoBatch) -> str | None:
    """Two implementations of one estimator (scalar and vectorised) agree on every row."""
    if trial.twin is None:
        return None
    return _told(
        trial.differ(trial.advantages(batch), trial.advantages(batch, trial.twin)), "unlike its twin"
    )


def input_unchanged(trial: Trial, batch: GrpoBatch) -> str | None:
    """The estimator does not write into the batch that it was given."""
    given = copy.deepcopy(batch)
    trial.advantages(given)
    for name in ("group_B", "reward_B", "masked_B", "length_B", "padding_B"):
        if not np.array_equal(getattr(given, name), getattr(batch, name)):
            return f"the estimator changed {name}"
    return None


@dataclass(frozen=True)
class Named:
    """A property with its name and its first sentence."""

    name: str
    check: Callable[[Any, GrpoBatch], str | None]
    says: str


def named(*checks: Callable[[Any, GrpoBatch], str | None]) -> dict[str, Named]:
    """Return the properties by the names of their functions."""
    all_of_them = [Named(check.__name__, check, (check.__doc__ or "").strip()) for check in checks]
    return {each.name: each for each in all_of_them}


PROPERTIES = named(
    input_unchanged,
    deletion_equivalence,
    masked_rows_are_zero,
    masked_content_irrelevant,
    masked_group_inert,
    masked_batch_silent,
    thin_group_silent,
    row_permutation,
    group_relabelling,
    padding_inert,
    sessions_vote_once,
    healthy_batch_unchanged,
    twins_agree,
)
"""Every property by name, in the order in which they are tried."""


def _is_zero(values: npt.NDArray[Any]) -> BoolArray:
    zero: BoolArray = (_widened(values, values.shape[1] if values.ndim == 2 else 1) == 0).all(axis=1)
    return zero


def _told(problem: str | None, when: str) -> str | None:
    return None if problem is None else f"{problem}, {when}"


def _row(values: npt.NDArray[Any]) -> str:
    flat = [f"{value:.6g}" for value in np.atleast_1d(values)]
    if len(set(flat)) == 1:
        return flat[0]
    return f"[{', '.join(flat[:4])}{', …' if len(flat) > 4 else ''}]"


def _widened(values: npt.NDArray[Any], width: int) -> npt.NDArray[np.float64]:
    """Return (B, width): deleting the longest row narrows a token-level result."""
    values = values if values.ndim == 2 else values[:, None]
    return np.pad(values, ((0, 0), (0, width - values.shape[1])))
