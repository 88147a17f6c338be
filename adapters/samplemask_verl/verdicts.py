"""Reads the verdicts of one verl batch. numpy only.

Where verl keeps them (0.9.1): the V1 trainer in TransferQueue's `extra_fields`, an agent loop's own
fields at its top and the reward function's dict under `reward_extra_info`; the legacy trainer in
`non_tensor_batch`, as columns and as `reward_extra_info`. Every place that speaks counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from samplemask.errors import ContractError
from samplemask.failure_kinds import REWARD_NOT_FINITE
from samplemask.verdict import FAILURE_CLASS, Verdict, read_verdict

DECIDING = ("mask_sample", "instance_config", FAILURE_CLASS)
TELLING = ("failure_kind", "failure_reason")
VERDICT_FIELDS = (*DECIDING, *TELLING)

Place = Sequence[Any] | Mapping[str, Any]
"""B mappings (or None), one for each row; or columns, each of B values, by name."""


@dataclass(frozen=True)
class RowVerdicts:
    """The verdicts of B rows.

    Attributes:
        masked_B: bool (B,).
        kinds_B: Failure kind of each row, or None.
        stated: True when at least one row carried a flag, so that a verdict can arrive at all.
    """

    masked_B: npt.NDArray[np.bool_]
    kinds_B: list[str | None]
    stated: bool


def read_rows(places: Sequence[Place], reward_B: npt.NDArray[np.floating[Any]]) -> RowVerdicts:
    """Read the verdict of each row from every place that may hold one.

    Args:
        places: Where verdicts may be, most trusted first: B mappings (or None), or columns.
        reward_B: float (B,); a row without a finite reward is masked whatever its places say.

    Raises:
        ContractError: A field cannot be read; the message names the row.
    """
    said = read_flags(places, len(reward_B))
    unmeasured_B = ~np.isfinite(reward_B)
    for row in np.flatnonzero(unmeasured_B & ~said.masked_B).tolist():
        said.kinds_B[row] = REWARD_NOT_FINITE
    return RowVerdicts(said.masked_B | unmeasured_B, said.kinds_B, said.stated)


def read_flags(places: Sequence[Place], rows: int) -> RowVerdicts:
    """Read what the places say, without looking at rewards.

    Args:
        places: Where verdicts may be, most trusted first.
        rows: B.

    Raises:
        ContractError: A field cannot be read; the message names the row.
    """
    masked_B = np.zeros(rows, dtype=bool)
    kinds: list[str | None] = [None] * rows
    stated = False
    for place in places:
        stated_here, spoken = _speaking(place)
        stated = stated or stated_here
        for row in spoken:
            verdict = _read(place, row)
            if verdict.mask_sample:
                kinds[row] = (kinds[row] if masked_B[row] else None) or verdict.failure_kind or kinds[row]
                masked_B[row] = True
            else:
                kinds[row] = kinds[row] or verdict.failure_kind
    return RowVerdicts(masked_B, kinds, stated)


def unwrapped(value: Any) -> Any:
    """Take a value out of tensordict's NonTensorData."""
    return value.data if type(value).__name__ == "NonTensorData" else value


def _speaking(place: Place) -> tuple[bool, Iterable[int]]:
    """Tell whether a place carries flags at all, and which of its rows say more than "not masked"."""
    if isinstance(place, Mapping):
        columns = [place[name] for name in VERDICT_FIELDS if name in place]
        stated = any(name in place for name in DECIDING)
        return stated, np.flatnonzero(_any_of([_says_something(column) for column in columns]))
    rows = [fields if type(fields) is dict else _mapping(fields) for fields in place]
    names = set().union(*rows) if rows else set()
    columns = [[fields.get(name) for fields in rows] for name in VERDICT_FIELDS if name in names]
    stated = any(name in names for name in DECIDING)
    return stated, np.flatnonzero(_any_of([_says_something(column) for column in columns]))


def _says_something(column: Sequence[Any]) -> npt.NDArray[np.bool_]:
    """Mark the values of a column that are not plainly False, None or empty."""
    if isinstance(column, np.ndarray) and column.dtype == bool:
        return column
    silent = {False, None, ""}
    try:
        kinds = set(column)
    except TypeError:  # an unhashable value, such as an instance_config
        return np.array(
            [not (value is None or value is False or value == "") for value in column], dtype=bool
        )
    if kinds <= silent:
        return np.zeros(len(column), dtype=bool)
    return np.fromiter((value not in silent for value in column), bool, len(column))


def _any_of(marks: list[npt.NDArray[np.bool_]]) -> npt.NDArray[np.bool_]:
    return np.logical_or.reduce(marks) if marks else np.zeros(0, dtype=bool)


def _mapping(fields: Any) -> Mapping[str, Any]:
    fields = unwrapped(fields)
    return fields if isinstance(fields, Mapping) else {}


def _read(place: Place, row: int) -> Verdict:
    if isinstance(place, Mapping):
        said = {name: unwrapped(place[name][row]) for name in VERDICT_FIELDS if name in place}
    else:
        fields = _mapping(place[row])
        said = {name: unwrapped(fields[name]) for name in VERDICT_FIELDS if name in fields}
    try:
        return read_verdict({**said, "reward": 0.0})
    except ContractError as error:
        raise ContractError(f"row {row} of the batch: {error}") from error
