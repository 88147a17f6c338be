"""What the verify responses of a whole batch say, read from columns instead of one by one.

A batch has thousands of rows and few different verdicts: the values of each column are numbered, and
each combination that occurs is read once, by `read_verdict` itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from samplemask.errors import ContractError
from samplemask.groups import group_codes, numbered
from samplemask.verdict import FAILURE_CLASS, Verdict, read_verdict

FIELDS: Final = ("reward", "mask_sample", "instance_config", "failure_kind", FAILURE_CLASS)
"""The columns that are read."""

Column = Sequence[Any] | npt.NDArray[Any]
_Codes = npt.NDArray[np.intp]
_Coded = tuple[_Codes, Sequence[Any]]

# Values that are equal read the same; other types (tensors hash by identity) are read row by row.
_PLAIN: Final = frozenset({bool, np.bool_, int, float, str, type(None)})
_NUMBERS: Final = frozenset({bool, int, float, type(None)})
_MAX_COMBINED: Final = 2**40


@dataclass(frozen=True, slots=True, eq=False)
class VerdictColumns:
    """The verdicts of B rows.

    Attributes:
        reward_B: float64 (B,). NaN where the row has no finite reward; never a stand-in zero.
        masked_B: bool (B,). The decision, `Verdict.mask_sample` of each row.
        kinds_B: object (B,). Failure kind of each row, or None.
        failed_B: bool (B,). Masked rows that are recorded failures (`_ng_failure_class`).
    """

    reward_B: npt.NDArray[np.float64]
    masked_B: npt.NDArray[np.bool_]
    kinds_B: npt.NDArray[np.object_]
    failed_B: npt.NDArray[np.bool_]


def read_columns(
    columns: Mapping[str, Column], numbers_B: npt.NDArray[np.intp] | None = None
) -> VerdictColumns:
    """Read the verdicts of a batch; each row as `read_verdict` reads it.

    Reasons are not read: they differ from row to row. Use `read_verdict` on a row that you want to explain.

    Args:
        columns: Verify-response fields by name, each with B values (sequences or arrays); see `FIELDS`,
            other names are ignored. A column that is not there is a field that no row has.
        numbers_B: int (B,), what errors call each row, when the rows are part of a larger batch.

    Raises:
        ContractError: The columns differ in length, or a field cannot be read; the message names the row.
    """
    there = {name: columns[name] for name in FIELDS if name in columns}
    rows = _row_count(there)
    reward_B = np.full(rows, np.nan)
    coded: dict[str, _Coded] = {}
    for name, column in there.items():
        if name == "reward":
            coded[name] = _coded_reward(column, reward_B)
        else:
            coded[name] = _coded_config(column) if name == "instance_config" else _coded(column)
    code_B, first_K = _combinations(list(coded.values()), rows)
    verdicts = _read_each(coded, first_K, np.arange(rows) if numbers_B is None else numbers_B)
    masked_K = np.fromiter((verdict.mask_sample for verdict in verdicts), bool, len(verdicts))
    failed_K = np.fromiter((FAILURE_CLASS in verdict.sources for verdict in verdicts), bool, len(verdicts))
    kinds_K = np.empty(len(verdicts), dtype=object)
    kinds_K[:] = [verdict.failure_kind for verdict in verdicts]
    return VerdictColumns(reward_B, masked_K[code_B], kinds_K[code_B], failed_K[code_B])


def _row_count(columns: Mapping[str, Column]) -> int:
    shapes = {name: c.shape if isinstance(c, np.ndarray) else (len(c),) for name, c in columns.items()}
    if len(set(shapes.values())) > 1 or any(len(shape) != 1 for shape in shapes.values()):
        raise ContractError.of(
            "columns", "one value per row in each column", shapes, "Pass columns of equal length."
        )
    return int(next(iter(shapes.values()), (0,))[0])


def _coded(column: Column) -> _Coded:
    """Number the values of a column: code of each row, and the value of each code."""
    if isinstance(column, np.ndarray) and column.dtype == bool:
        return column.astype(np.intp), (False, True)
    values = _as_list(column)
    types = set(map(type, values))
    if types == {bool}:
        return np.fromiter(values, np.intp, len(values)), (False, True)
    if not types <= _PLAIN:
        return np.arange(len(values)), values
    return numbered(values, len(values))


def _coded_config(column: Column) -> _Coded:
    """Number instance_config by the only thing in it that is read."""
    configs = _as_list(column)
    if not set(map(type, configs)) <= {dict, type(None)}:
        return np.arange(len(configs)), configs
    code_B, flags = _coded([None if config is None else config.get("mask_sample") for config in configs])
    return code_B, [{"mask_sample": flag} for flag in flags]


def _coded_reward(column: Column, reward_B: npt.NDArray[np.float64]) -> _Coded:
    """Fill in the finite rewards, and number the rows by whether they have one."""
    numbers = _as_numbers(column)
    if numbers is None:  # text, 0-d values, or what is no number: each row for itself
        values = _as_list(column)
        reward_B[:] = [read_verdict({"reward": v, "mask_sample": True}).reward for v in values]
        return np.arange(len(values)), values
    finite_B = np.isfinite(numbers)
    np.copyto(reward_B, numbers, where=finite_B)
    code_B = (~finite_B).astype(np.intp)
    if isinstance(column, np.ndarray) and column.dtype != object:
        return code_B, (0.0, np.nan)
    for row in np.flatnonzero(code_B).tolist():
        code_B[row] += column[row] is None
    return code_B, (0.0, np.nan, None)


def _as_numbers(column: Column) -> npt.NDArray[np.float64] | None:
    if isinstance(column, np.ndarray) and column.dtype.kind in "fiub":
        return column.astype(np.float64)
    values = _as_list(column)
    if not set(map(type, values)) <= _NUMBERS:
        return None
    try:
        return np.array(values, dtype=np.float64)
    except OverflowError:  # an int that no float holds
        return None


def _as_list(column: Column) -> list[Any]:
    values: list[Any] = column.tolist() if isinstance(column, np.ndarray) else list(column)
    return values


def _combinations(coded: Sequence[_Coded], rows: int) -> tuple[_Codes, _Codes]:
    """Number the combinations of codes that occur; return each row's, and the first row of each."""
    combined_B, size = np.zeros(rows, dtype=np.intp), 1
    for code_B, values in coded:
        if size * len(values) > _MAX_COMBINED:
            combined_B, size = group_codes(combined_B, rows)
        combined_B = combined_B * len(values) + code_B
        size *= len(values)
    combined_B, count = group_codes(combined_B, rows)
    first_K = np.zeros(count, dtype=np.intp)
    first_K[combined_B[::-1]] = np.arange(rows)[::-1]  # numpy keeps the last assignment
    return combined_B, first_K


def _read_each(coded: Mapping[str, _Coded], first_K: _Codes, numbers_B: _Codes) -> list[Verdict]:
    """Read each combination from its first row, in the order of the rows, so that errors name the first."""
    verdicts: dict[int, Verdict] = {}
    for combination in np.argsort(first_K).tolist():
        row = first_K[combination]
        said = {name: values[code_B[row]] for name, (code_B, values) in coded.items()}
        try:
            verdicts[combination] = read_verdict(said)
        except ContractError as error:
            raise ContractError(f"row {numbers_B[row]} of the batch: {error}") from error
    return [verdicts[combination] for combination in range(len(first_K))]
