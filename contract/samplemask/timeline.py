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
    del time
    if (
        len(ran)
        and np.ptp(ran["run"]) == 0
        and ran["main"].all()
        and (ran["line"][1:] >= ran["line"][:-1]).all()
    ):
        return "position", np.arange(len(ran), dtype=np.float64)  # one file, as it was read
    place = np.empty(len(ran))
    place[np.lexsort((ran["line"], ~ran["main"], ran["run"]))] = np.arange(len(ran), dtype=np.int32)
    return "position", place


def even_bins(values: FloatArray, count: int) -> list[npt.NDArray[np.intp]]:
    """Return the rows of at most `count` bins of about equal size; equal values stay together."""
    whole_order = np.argsort(values, kind="stable")
    order = whole_order[: int(np.isfinite(values).sum())]
    if not len(order):
        return []
    edges = np.unique(values[order[[len(order) * part // count for part in range(1, count)]]])
    cuts = np.searchsorted(values, edges, side="left", sorter=whole_order)
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
