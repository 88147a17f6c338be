"""The run in the order in which it happened: what became of the rollouts, and both rewards."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from samplemask.columns import DISPOSITIONS, SCORED, Rollouts
from samplemask.quality import mean, that_ran

FloatArray = npt.NDArray[np.float64]
MAX_BINS: Final = 40


def timeline(rollouts: Rollouts) -> dict[str, Any]:
    """Return dispositions and rewards of the rollouts that ran, bin by bin, in the form of `--json`.

    The order is that of the responses' own times; where most rows have none, of their place in the files.
    """
    ran = that_ran(rollouts)
    name, values = progress_of(ran)
    return {"by": name, "bins": [_bin(ran[rows], values[rows]) for rows in even_bins(values, MAX_BINS)]}


def progress_of(ran: Rollouts) -> tuple[str, FloatArray]:
    """Return "time" (Unix seconds, NaN where not known) or "position" (place in the files), for each row."""
    time = ran["time"].astype(np.float64)
    if len(ran) and (time >= 0).mean() > 0.5:
        return "time", np.where(time >= 0, time, np.nan)
    place = np.empty(len(ran))
    place[np.lexsort((ran["line"], ~ran["main"], ran["run"]))] = np.arange(len(ran))
    return "position", place


def even_bins(values: FloatArray, count: int) -> list[npt.NDArray[np.intp]]:
    """Return the rows of at most `count` bins of about equal size; equal values stay together."""
    order = np.argsort(values, kind="stable")[: int(np.isfinite(values).sum())]
    if not len(order):
        return []
    ordered = values[order]
    edges = np.unique(ordered[[len(order) * part // count for part in range(1, count)]])
    cuts = np.searchsorted(ordered, edges, side="left")
    return [part for part in np.split(order, np.unique(cuts)) if len(part)]


def _bin(part: Rollouts, values: FloatArray) -> dict[str, Any]:
    counts = np.bincount(part["disposition"], minlength=len(DISPOSITIONS)).tolist()
    return {
        "from": float(values.min()),
        "to": float(values.max()),
        "dispositions": {
            name.value: count for name, count in zip(DISPOSITIONS, counts, strict=True) if count
        },
        "reward_all": mean(part["reward"]),
        "reward_unmasked": mean(part["reward"][part["disposition"] == SCORED]),
    }
