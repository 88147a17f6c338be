"""Reads the verdicts of one verl batch. numpy only.

Where verl keeps them (0.9.1): the V1 trainer in TransferQueue's `extra_fields`, an agent loop's own
fields at its top and the reward function's dict under `reward_extra_info`; the legacy trainer in
`non_tensor_batch`, as columns and as `reward_extra_info`. A flag may also be a column of tensors. Every
place that speaks counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from samplemask.failure_kinds import REWARD_NOT_FINITE
from samplemask.verdict import FAILURE_CLASS
from samplemask.verdict_columns import VerdictColumns, read_columns

DECIDING = ("mask_sample", "instance_config", FAILURE_CLASS)
TELLING = ("failure_kind", "failure_reason")
VERDICT_FIELDS = (*DECIDING, *TELLING)
_READ = (*DECIDING, "failure_kind")

Place = Sequence[Any] | Mapping[str, Any]
"""B mappings (or None), one for each row; or columns, each of B values, by name."""


@dataclass(frozen=True)
class RowVerdicts:
    """The verdicts of B rows.

    Attributes:
        masked_B: bool (B,).
        kinds_B: Failure kind of each row, or None.
        stated: True when at least one row carried a flag, so that a verdict can arrive at all.
        failed_B: bool (B,), masked rows that are recorded failures (`_ng_failure_class`).
    """

    masked_B: npt.NDArray[np.bool_]
    kinds_B: list[str | None]
    stated: bool
    failed_B: npt.NDArray[np.bool_]


def places_of(data: Any) -> list[Place]:
    """Return where a legacy batch (DataProto) may hold verdicts, most trusted first."""
    columns = data.non_tensor_batch
    places: list[Place] = [columns[name] for name in ("reward_extra_info", "extra_fields") if name in columns]
    if "extra_fields" in columns:
        places.append(
            [fields.get("reward_extra_info") if fields else None for fields in columns["extra_fields"]]
        )
    places.append(columns)
    if "mask_sample" in data.batch.keys():  # noqa: SIM118 - a TensorDict; a flag may be a tensor column
        places.append({"mask_sample": data.batch["mask_sample"].tolist()})
    return places


def read_rows(places: Sequence[Place], reward_B: npt.NDArray[np.floating[Any]]) -> RowVerdicts:
    """Read the verdict of each row from every place that may hold one.

    Args:
        places: Where verdicts may be, most trusted first: B mappings (or None), or columns.
        reward_B: float (B,); a row without a finite reward is masked whatever its places say.

    Raises:
        ContractError: A field cannot be read; the message names the row.
    """
    return with_rewards(read_flags(places, len(reward_B), every_kind=True), reward_B)


def with_rewards(said: RowVerdicts, reward_B: npt.NDArray[np.floating[Any]]) -> RowVerdicts:
    """Mask the rows without a finite reward, too; `said` is what the places say."""
    unmeasured_B = ~np.isfinite(reward_B)
    if not unmeasured_B.any():
        return said
    kinds = list(said.kinds_B)
    for row in np.flatnonzero(unmeasured_B & ~said.masked_B).tolist():
        kinds[row] = REWARD_NOT_FINITE
    return replace(said, masked_B=said.masked_B | unmeasured_B, kinds_B=kinds)


def read_flags(places: Sequence[Place], rows: int, every_kind: bool = False) -> RowVerdicts:
    """Read what the places say, without looking at rewards.

    Args:
        places: Where verdicts may be, most trusted first.
        rows: B.
        every_kind: Read the kinds of unmasked rows too; a policy with `masked_kinds` needs them.

    Raises:
        ContractError: A field cannot be read; the message names the row.
    """
    spoken_B = np.zeros(rows, dtype=bool)
    stated = False
    for place in places:
        columns = _columns(place, _READ if every_kind else DECIDING)
        stated = stated or any(name in DECIDING for name in columns)
        for column in columns.values():
            spoken_B |= _says_something(column)
    masked_B, failed_B = np.zeros(rows, dtype=bool), np.zeros(rows, dtype=bool)
    kinds: list[str | None] = [None] * rows
    spoken = np.flatnonzero(spoken_B)
    if len(spoken):
        masked_B[spoken], told, failed_B[spoken] = _read_spoken(places, spoken)
        for row, kind in zip(spoken.tolist(), told, strict=True):
            kinds[row] = kind
    return RowVerdicts(masked_B, kinds, stated, failed_B)


def _read_spoken(
    places: Sequence[Place], spoken: npt.NDArray[np.intp]
) -> tuple[npt.NDArray[np.bool_], list[str | None], npt.NDArray[np.bool_]]:
    """Read the rows that say something: masked where a place says so; the masking place's kind wins."""
    said = [_read_place(place, spoken) for place in places]
    if len(said) == 1:
        return said[0].masked_B, said[0].kinds_B.tolist(), said[0].failed_B
    kinds = np.full(len(spoken), None)
    for masking in (True, False):
        for verdicts in said:
            told = np.equal(kinds, None) & (verdicts.masked_B == masking)
            kinds[told] = verdicts.kinds_B[told]
    masked = np.logical_or.reduce([verdicts.masked_B for verdicts in said])
    failed = np.logical_or.reduce([verdicts.failed_B for verdicts in said])
    return masked, kinds.tolist(), failed


def unwrapped(value: Any) -> Any:
    """Take a value out of tensordict's NonTensorData."""
    return value.data if type(value).__name__ == "NonTensorData" else value


def _columns(place: Place, names: Sequence[str]) -> dict[str, Sequence[Any]]:
    """Return those columns of a place that are there."""
    if isinstance(place, Mapping):
        return {name: place[name] for name in names if name in place}
    rows = [fields if type(fields) is dict else _mapping(fields) for fields in place]
    there = set().union(*rows)
    return {name: [fields.get(name) for fields in rows] for name in names if name in there}


def _says_something(column: Sequence[Any]) -> npt.NDArray[np.bool_]:
    """Mark the values of a column that are not plainly False, None or empty."""
    if isinstance(column, np.ndarray) and column.dtype == bool:
        return column
    silent = {False, None, ""}
    try:
        kinds = set(column)
    except TypeError:  # an unhashable value, such as an instance_config
        plain = (isinstance(value, (bool, str, type(None))) and value in silent for value in column)
        return ~np.fromiter(plain, bool, len(column))
    if kinds <= silent:
        return np.zeros(len(column), dtype=bool)
    return np.fromiter((value not in silent for value in column), bool, len(column))


def _mapping(fields: Any) -> Mapping[str, Any]:
    fields = unwrapped(fields)
    return fields if isinstance(fields, Mapping) else {}


def _read_place(place: Place, spoken: npt.NDArray[np.intp]) -> VerdictColumns:
    if isinstance(place, Mapping):
        columns = {name: _rows_of(place[name], spoken) for name in _READ if name in place}
    else:
        columns = dict(_columns([place[row] for row in spoken.tolist()], _READ))
    plain = {name: _all_unwrapped(values) for name, values in columns.items()}
    return read_columns({**plain, "reward": np.zeros(len(spoken))}, spoken)


def _rows_of(column: Sequence[Any], rows: npt.NDArray[np.intp]) -> Sequence[Any]:
    return column[rows] if isinstance(column, np.ndarray) else [column[row] for row in rows.tolist()]


def _all_unwrapped(values: Sequence[Any]) -> Sequence[Any]:
    wrapped = any(kind.__name__ == "NonTensorData" for kind in set(map(type, values)))
    return [unwrapped(value) for value in values] if wrapped else values
