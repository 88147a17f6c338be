"""Is masking safe here: what the failures depend on, and whether the policy could be causing them.

A failure that is always forgiven is worth causing. So each kind is checked for whether it grows with
training, with the length or the turns of the response, or with the reward of its task.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from samplemask.columns import NO_INDEX, SCORED, Groups, Rollouts
from samplemask.ledger import Ledger
from samplemask.quality import GROUP, is_lost, that_ran
from samplemask.timeline import even_bins, progress_of

BINS: Final = 10
MOVES_AT: Final = 3.0
"""Standard errors from which a dependence is called one: by chance in 1 of 370 comparisons."""

_MIN_ROWS: Final = 20
_POLICY_CAN_CAUSE: Final = re.compile(
    r"time_?-?out|time_?-?limit|expired|(?<![a-z])oom|out_?of_?memory|overlong|too_long|"
    r"max_(turns|tokens|steps)|unparse?able|not_allowed|run_error",
    re.IGNORECASE,
)

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


def safety(rollouts: Rollouts, ledger: Ledger) -> dict[str, Any]:
    """Return failure rates by what they may depend on, in the form of `--json`.

    A rate is masked and failed rollouts over those and the scored ones, with its Wilson 95 %
    interval. `moves_with` holds the dependence in standard errors (rank correlation times the root of the
    number of rows); None where fewer than 20 rows can be compared.
    """
    ran = that_ran(rollouts)
    lost_R, bins = is_lost(ran), {}
    kinds = list(_kinds(ran, ledger))
    moves: dict[str, dict[str, float | None]] = {name: {} for name, _ in kinds}
    for name, values in _covariates(ran):  # one at a time: each takes as much memory as a column
        bins[f"by_{name}"] = [_bin(values, lost_R, rows) for rows in even_bins(values, BINS)]
        for kind, code in kinds:
            moves[kind][name] = _dependence(ran, code, lost_R, values)
        del values
    return {
        "rate": rate(int(lost_R.sum()), len(ran)),
        **bins,
        "kinds": {kind: _kind(ran, kind, code, lost_R, moves[kind]) for kind, code in kinds},
    }


def rate(count: int, rows: int) -> dict[str, float | int | None]:
    """Return a rate with its Wilson 95 % interval; None where there are no rows."""
    if rows == 0:
        return {"count": 0, "rows": 0, "value": None, "low": None, "high": None}
    z = 1.959963984540054
    share, spread = count / rows, z * z / rows
    center = (share + spread / 2) / (1 + spread)
    half = z / (1 + spread) * math.sqrt(share * (1 - share) / rows + spread / (4 * rows))
    return {
        "count": count,
        "rows": rows,
        "value": share,
        "low": max(0.0, center - half),
        "high": min(1.0, center + half),
    }


def policy_can_cause(kind: str) -> bool:
    """Tell whether a policy can bring this failure about: by being slow, long, or malformed."""
    return not kind.startswith("transport_") and _POLICY_CAN_CAUSE.search(kind) is not None


def _covariates(ran: Rollouts) -> Iterator[tuple[str, FloatArray]]:
    """Yield what a failure may depend on, NaN where it is not known."""
    yield progress_of(ran)
    for name in ("tokens", "turns"):
        values = ran[name].astype(np.float64)
        yield name, np.where(values >= 0, values, np.nan)
    yield "task_reward", _task_reward(ran)


def _task_reward(ran: Rollouts) -> FloatArray:
    """Return for each row the mean reward of the measured rows of its task."""
    groups = Groups(ran, GROUP)
    with np.errstate(over="ignore", invalid="ignore"):
        reward_G = groups.means(ran["reward"], ran["disposition"] == SCORED)
    return np.where(ran["task"] != NO_INDEX, reward_G[groups.code_R], np.nan)


def _bin(values: FloatArray, lost_R: BoolArray, rows: npt.NDArray[np.intp]) -> dict[str, Any]:
    return {
        "from": float(values[rows].min()),
        "to": float(values[rows].max()),
        **rate(int(lost_R[rows].sum()), len(rows)),
    }


def _kinds(ran: Rollouts, ledger: Ledger) -> Iterator[tuple[str, int]]:
    names = list(ledger.kinds)
    codes, counts = np.unique(ran["kind"][is_lost(ran) & (ran["kind"] >= 0)], return_counts=True)
    for code, _ in sorted(zip(codes.tolist(), counts.tolist(), strict=True), key=lambda pair: -pair[1]):
        yield names[code], code


def _kind(
    ran: Rollouts, name: str, code: int, lost_R: BoolArray, moves: dict[str, float | None]
) -> dict[str, Any]:
    named_R = ran["kind"] == code
    lost = int((named_R & lost_R).sum())
    return {
        **rate(lost, len(ran)),
        "policy_can_cause": policy_can_cause(name),
        "always_forgiven": lost == int(named_R.sum()),
        "moves_with": moves,
        "significant": [by for by, value in moves.items() if value is not None and abs(value) >= MOVES_AT],
    }


def _dependence(ran: Rollouts, code: int, lost_R: BoolArray, values: FloatArray) -> float | None:
    """Compare the rows lost to one kind with the scored ones: other losses hide what would have been."""
    of_kind_R = lost_R & (ran["kind"] == code)
    compared_R = (of_kind_R | (ran["disposition"] == SCORED)) & np.isfinite(values)
    if not compared_R.all():
        values, of_kind_R = values[compared_R], of_kind_R[compared_R]
    if len(values) < _MIN_ROWS or of_kind_R.all() or not of_kind_R.any() or np.ptp(values) == 0:
        return None
    return _rank_correlation(values, of_kind_R) * math.sqrt(len(values) - 1)


def _rank_correlation(values: FloatArray, chosen_R: BoolArray) -> float:
    """Return the correlation of the values' ranks with being chosen; equal values share their mean rank."""
    order = np.argsort(values, kind="stable")
    ordered, count = values[order], len(values)
    is_first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    del ordered  # each of these columns counts on a file of millions of rows
    starts = np.flatnonzero(is_first).astype(np.int32)
    sizes_V = np.diff(np.append(starts, np.int32(count)))
    chosen_V = np.add.reduceat(chosen_R[order], starts, dtype=np.int32)
    del order
    rank_V = (sizes_V - 1) / 2  # of each distinct value, from the middle
    rank_V += starts
    rank_V -= (count - 1) / 2
    together = float(np.einsum("v,v", chosen_V, rank_V))
    rank_V *= rank_V
    share = float(chosen_R.mean())
    spread = float(np.einsum("v,v", sizes_V, rank_V)) * share * (1 - share) * count
    return together / math.sqrt(spread)
