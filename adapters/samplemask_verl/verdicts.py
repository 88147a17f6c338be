"""Reads the verdicts of one verl batch. numpy only.

Where verl keeps them (0.9.1): the V1 trainer in TransferQueue's `extra_fields`, an agent loop's own
fields at its top and the reward function's dict under `reward_extra_info`; the legacy trainer in
`non_tensor_batch`, as columns and as `reward_extra_info`. Every place that speaks counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from samplemask.errors import ContractError
from samplemask.failure_kinds import REWARD_NOT_FINITE
from samplemask.verdict import FAILURE_CLASS, read_verdict

DECIDING = ("mask_sample", "instance_config", FAILURE_CLASS)
TELLING = ("failure_kind", "failure_reason")
VERDICT_FIELDS = (*DECIDING, *TELLING)


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


def read_rows(places: Sequence[Sequence[Any]], reward_B: npt.NDArray[np.floating[Any]]) -> RowVerdicts:
    """Read the verdict of each row from every place that may hold one.

    Args:
        places: Columns of B mappings (or None), one column for each place, most trusted first.
        reward_B: float (B,); a row without a finite reward is masked whatever its places say.

    Raises:
        ContractError: A field cannot be read; the message names the row.
    """
    masked_B = ~np.isfinite(reward_B)
    kinds: list[str | None] = [None] * len(masked_B)
    stated, flagged = False, set[int]()
    for column in places:
        for row, fields in enumerate(column):
            fields = unwrapped(fields)
            if not isinstance(fields, Mapping) or not any(name in fields for name in VERDICT_FIELDS):
                continue
            verdict = _read(fields, row)
            stated = stated or any(name in fields for name in DECIDING)
            if verdict.mask_sample:
                kinds[row] = (kinds[row] if row in flagged else None) or verdict.failure_kind or kinds[row]
                masked_B[row] = True
                flagged.add(row)
            else:
                kinds[row] = kinds[row] or verdict.failure_kind
    for row in np.flatnonzero(~np.isfinite(reward_B)):
        if row not in flagged:
            kinds[row] = REWARD_NOT_FINITE
    return RowVerdicts(masked_B, kinds, stated)


def columns_as_mappings(columns: Mapping[str, Any], rows: int) -> list[dict[str, Any]]:
    """Turn verdict columns (name to B values) into one mapping per row."""
    present = {name: columns[name] for name in VERDICT_FIELDS if name in columns}
    return [{name: unwrapped(values[row]) for name, values in present.items()} for row in range(rows)]


def unwrapped(value: Any) -> Any:
    """Take a value out of tensordict's NonTensorData."""
    return value.data if type(value).__name__ == "NonTensorData" else value


def _read(fields: Mapping[str, Any], row: int) -> Any:
    said = {name: unwrapped(fields[name]) for name in VERDICT_FIELDS if name in fields}
    try:
        return read_verdict({**said, "reward": 0.0})
    except ContractError as error:
        raise ContractError(f"row {row} of the batch: {error}") from error
