"""The demo in words and numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from samplemask.demo.estimates import Estimates
from samplemask.testing.batches import GrpoBatch

_TOLERANCE = 1e-9
_WIDTH = 7


@dataclass(frozen=True)
class Group:
    """One prompt's rollouts, G of them.

    Attributes:
        name: Its task index.
        rows: intp (G,): its rows in the batch.
        baseline: Mean reward of all its rows: what GRPO subtracts.
        measured: Mean reward of the measured ones; NaN where there are none.
    """

    name: int
    rows: npt.NDArray[np.intp]
    baseline: float
    measured: float


def groups_of(batch: GrpoBatch) -> list[Group]:
    """Return the groups in the order of the tasks."""
    groups = []
    for name in sorted(set(batch.group_B.tolist())):
        rows = np.flatnonzero(batch.group_B == name)
        scored = batch.reward_B[rows][~batch.masked_B[rows]]
        measured = float(scored.mean()) if len(scored) else float("nan")
        groups.append(Group(name, rows, float(batch.reward_B[rows].mean()), measured))
    return groups


def turned(estimates: Estimates) -> npt.NDArray[np.bool_]:
    """Return bool (B,): rows that train and whose advantage changes sign."""
    stock, masked = estimates.stock_B, estimates.masked_B
    opposite: npt.NDArray[np.bool_] = (stock * masked < 0) & (
        np.minimum(abs(stock), abs(masked)) > _TOLERANCE
    )
    return opposite & estimates.trains_B


def tell(batch: GrpoBatch, estimates: Estimates, audit: str) -> str:
    """Return the text: what was recorded, what GRPO makes of it, what it sums up to."""
    return "\n".join(
        [
            "A FAILED ROLLOUT IS NOT A ZERO",
            "",
            "1. A staged run, recorded from a real NeMo Gym 0.7.0 server: eight rollouts of each task, and",
            "   an environment that loses sessions and its judge on purpose. `samplemask audit` counts what",
            "   is left:",
            "",
            *_indented(audit.splitlines()),
            "",
            f"2. What GRPO makes of the {len(batch)} rows that came back: reward minus the mean of the task.",
            f"   Computed by {estimates.source}.",
            "   lost: no measurement, reward 0; -: carries no loss; ^: the sign changes.",
            "",
            *_chosen_groups(batch, estimates),
            "3. All groups together",
            "",
            *_totals(batch, estimates),
        ]
    )


def _chosen_groups(batch: GrpoBatch, estimates: Estimates) -> Iterator[str]:
    """Yield one group for each kind of damage, where the batch has it."""
    groups = groups_of(batch)
    turned_B = turned(estimates)
    most = max(groups, key=lambda group: int(turned_B[group.rows].sum()))
    if count := int(turned_B[most.rows].sum()):
        yield from _group(batch, estimates, most, f"{count} measured answers change sign")
    for group in groups:
        if group is not most and _is_false_signal(batch, group):
            said = "equal answers teach nothing; the lost zeros made them all look good"
            yield from _group(batch, estimates, group, said)
            break
    for group in groups:
        if np.sum(~batch.masked_B[group.rows]) == 1:
            said = "one measured answer has nothing to be compared with, so nothing trains"
            yield from _group(batch, estimates, group, said)
            break


def _is_false_signal(batch: GrpoBatch, group: Group) -> bool:
    masked = batch.masked_B[group.rows]
    scored = batch.reward_B[group.rows][~masked]
    return bool(masked.any()) and len(scored) > 1 and np.ptp(scored) == 0 and scored[0] > 0


def _group(batch: GrpoBatch, estimates: Estimates, group: Group, said: str) -> Iterator[str]:
    rewards = ["lost" if batch.masked_B[row] else f"{batch.reward_B[row]:.2f}" for row in group.rows]
    yield f"   task {group.name}: {said}"
    yield _line("reward", rewards)
    yield _line("stock", [f"{estimates.stock_B[row]:+.2f}" for row in group.rows])
    masked = [f"{estimates.masked_B[row]:+.2f}" if estimates.trains_B[row] else "-" for row in group.rows]
    yield _line("samplemask", masked)
    if any(turned(estimates)[group.rows]):
        yield _line("", ["^" if turn else "" for turn in turned(estimates)[group.rows]]).rstrip()
    yield ""


def _line(name: str, cells: list[str]) -> str:
    return f"     {name:<11}" + "".join(f"{cell:>{_WIDTH}}" for cell in cells)


def _totals(batch: GrpoBatch, estimates: Estimates) -> Iterator[str]:
    stock, trains = estimates.stock_B, estimates.trains_B
    pushed = [int((one[batch.masked_B] < -_TOLERANCE).sum()) for one in (stock, estimates.masked_B)]
    rows: list[tuple[str, str, str]] = [
        ("", "stock", "samplemask"),
        ("rows that carry loss", f"{len(batch)}", f"{int(trains.sum())}"),
        ("lost rows trained as failures", f"{pushed[0]}", f"{pushed[1]}"),
    ]
    yield from (f"   {name:<32}{before:>8}{after:>13}" for name, before, after in rows)
    yield ""
    wrong, trained = int(turned(estimates).sum()), int(trains.sum())
    yield f"   {wrong} of {trained} measured answers are trained in the wrong direction without samplemask."


def _indented(lines: list[str]) -> list[str]:
    return [f"   {line}".rstrip() for line in lines]
