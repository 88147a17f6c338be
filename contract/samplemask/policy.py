"""Who trains and who votes: the policy, and the plan it makes for one batch.

A row *trains* when it carries loss; it *votes* when it enters its group's statistics. The two are
never one mask.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from typing_extensions import Self

from samplemask.arrays import as_array
from samplemask.errors import ContractError, OutageError
from samplemask.failure_kinds import REWARD_MISSING, REWARD_NOT_FINITE, UNSPECIFIED, check_kind
from samplemask.groups import find_groups

BoolArray = npt.NDArray[np.bool_]
Kinds = Sequence[str | None] | npt.NDArray[Any]
_Fraction = Annotated[float, Field(ge=0.0, le=1.0, strict=True, allow_inf_nan=False)]


class MaskPolicy(BaseModel):
    """What training does with masked rows. Immutable; every unknown key or value is an error.

    Attributes:
        action: `exclude`: masked rows carry no loss and do not vote. `loss_multiplier`: no loss, but
            they vote (what NeMo-RL does by itself). `drop_group`: the whole group goes when
            more than `drop_group_above` of its rows are masked. `ignore`: nothing changes.
        min_valid: A group with fewer voters gives no signal; none of its rows trains.
        drop_group_above: Fraction of masked rows, 0 to 1, above which `drop_group` drops a group.
        scored_kinds: Failure kinds that stay scored although the environment masked the row.
        masked_kinds: Failure kinds that mask although the environment did not.
        max_masked_fraction: Above this fraction of masked rows, 0 to 1, a batch is an outage; None: never.
        outage_min_rows: Smallest batch that can be an outage, in rows.
        on_outage: `raise` an OutageError, or `skip_step`: no row of the batch trains.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    action: Literal["loss_multiplier", "exclude", "drop_group", "ignore"] = "exclude"
    min_valid: Annotated[int, Field(ge=1, strict=True)] = 2
    drop_group_above: _Fraction = 0.0
    scored_kinds: frozenset[str] = frozenset()
    masked_kinds: frozenset[str] = frozenset()
    max_masked_fraction: _Fraction | None = None
    outage_min_rows: Annotated[int, Field(ge=1, strict=True)] = 50
    on_outage: Literal["raise", "skip_step"] = "raise"

    def __init__(self, /, **options: Any) -> None:  # "self" may be a misspelt option, too
        """Build the policy.

        Raises:
            ContractError: An option is unknown or its value is not accepted.
        """
        try:
            super().__init__(**options)
        except ValidationError as error:
            raise ContractError(_explained(error, type(self))) from error

    @classmethod
    def from_config(cls, options: Mapping[str, Any] | None, where: str) -> Self:
        """Build the policy from a host's own configuration.

        Args:
            options: Plain mapping (resolve OmegaConf first); None gives the defaults.
            where: The configuration path, such as "algorithm.mask_sample"; it opens every error.

        Raises:
            ContractError: `options` is no mapping, or an option is unknown or not accepted.
        """
        if options is not None and not isinstance(options, Mapping):
            raise ContractError.of(
                where, "a mapping of policy options", options, f"Write {where}.action=exclude."
            )
        try:
            return cls(**{str(name): value for name, value in (options or {}).items()})
        except ContractError as error:
            raise ContractError(f"{where}: {error}") from error.__cause__

    @field_validator("scored_kinds", "masked_kinds")
    @classmethod
    def _known_kinds(cls, kinds: frozenset[str]) -> frozenset[str]:
        for kind in sorted(kinds):
            check_kind(kind)
        return kinds

    @model_validator(mode="after")
    def _kinds_make_sense(self) -> Self:
        if both := self.scored_kinds & self.masked_kinds:
            raise ValueError(f"{sorted(both)} cannot be in scored_kinds and in masked_kinds at once")
        if unscorable := self.scored_kinds & {REWARD_MISSING, REWARD_NOT_FINITE}:
            raise ValueError(f"{sorted(unscorable)} cannot be scored: such a row has no reward")
        return self


@dataclass(frozen=True, slots=True, eq=False)
class RowPlan:
    """Who trains and who votes in one batch of B rows.

    Attributes:
        trains_B: bool (B,). The row carries loss.
        votes_B: bool (B,). The row enters its group's statistics. Rows of a dropped or thin group
            do not: their group has no statistics.
        masked_B: bool (B,). Masked after `scored_kinds` and `masked_kinds` were applied.
        dropped_groups: Groups that `drop_group` removed.
        thin_groups: Other groups with fewer than `min_valid` voters.
        outage: True when `on_outage="skip_step"` emptied the plan.
    """

    trains_B: BoolArray
    votes_B: BoolArray
    masked_B: BoolArray
    dropped_groups: int = 0
    thin_groups: int = 0
    outage: bool = False

    @property
    def changes_nothing(self) -> bool:
        """True when every row trains and votes, as without samplemask."""
        return bool(self.trains_B.all()) and bool(self.votes_B.all())


def plan_rows(
    masked_B: npt.ArrayLike,
    group_B: npt.ArrayLike | Sequence[Any] | None,
    policy: MaskPolicy,
    kinds_B: Kinds | None = None,
) -> RowPlan:
    """Decide for each row of a batch whether it trains and whether it votes.

    Args:
        masked_B: bool (B,), the verdicts' `mask_sample`.
        group_B: (B,) group ids, integers or any hashable values. None: no groups, so neither
            `min_valid` nor dropping applies (estimators that are not group-relative).
        policy: The policy.
        kinds_B: (B,) failure kinds, None where there is none. Needed when the policy names kinds.

    Returns:
        The plan; its arrays are new.

    Raises:
        ContractError: Shapes or types do not fit.
        OutageError: The batch is an outage and the policy says to raise.
    """
    if not isinstance(policy, MaskPolicy):
        raise ContractError.of("policy", "a MaskPolicy", policy, "Pass MaskPolicy() for the defaults.")
    flags_B = _flags(masked_B)
    kinds = check_kinds(kinds_B, len(flags_B))
    if kinds is None and (policy.scored_kinds or policy.masked_kinds):
        expected = f"one failure kind or None for each of the {len(flags_B)} rows"
        to_do = "The policy names scored_kinds or masked_kinds, so pass the kinds."
        raise ContractError.of("kinds_B", expected, None, to_do)
    masked = _masked(flags_B, kinds, policy)
    if _is_outage(masked, kinds, policy):
        nobody = np.zeros_like(masked)
        return RowPlan(nobody, nobody.copy(), masked, outage=True)
    if policy.action == "ignore":
        return RowPlan(np.ones_like(masked), np.ones_like(masked), masked)

    votes = np.ones_like(masked) if policy.action == "loss_multiplier" else ~masked
    if group_B is None:
        return RowPlan(votes & ~masked, votes, masked)
    groups = find_groups(group_B, len(masked))
    size_G, masked_G = groups.sizes(), groups.count_rows(masked)
    dropped_G = _dropped(masked_G, size_G, policy)
    voters_G = size_G if policy.action == "loss_multiplier" else size_G - masked_G
    thin_G = (voters_G < policy.min_valid) & ~dropped_G
    dropped, thin = int(np.count_nonzero(dropped_G)), int(np.count_nonzero(thin_G))
    if dropped or thin:
        votes &= ~groups.per_row(dropped_G | thin_G)
    return RowPlan(votes & ~masked, votes, masked, dropped, thin)


def check_kinds(kinds_B: Kinds | None, rows: int) -> Sequence[str | None] | None:
    """Return the kinds as a sequence of str or None.

    Raises:
        ContractError: There is not one kind per row, or one is neither a str nor None.
    """
    kinds = _one_each(kinds_B, rows)
    return None if kinds is None else _checked(kinds, rows)


def count_kinds(masked_B: BoolArray, kinds_B: Kinds | None) -> dict[str, int]:
    """Count masked rows per kind, most frequent first; `samplemask:unspecified` where none was given.

    Raises:
        ContractError: There is not one kind per row, or that of a masked row is neither a str nor None.
    """
    masked: list[int] = np.flatnonzero(masked_B).tolist()
    kinds = _one_each(kinds_B, len(masked_B))
    told = [None] * len(masked) if kinds is None else _checked([kinds[row] for row in masked], len(masked_B))
    counted: Counter[Any] = Counter(told)
    unspecified = counted.pop(None, 0) + counted.pop("", 0)
    if unspecified:
        counted[UNSPECIFIED] += unspecified
    return dict(sorted(counted.items(), key=lambda item: (-item[1], item[0])))


def _one_each(kinds_B: Kinds | None, rows: int) -> Sequence[Any] | None:
    kinds = kinds_B.tolist() if isinstance(kinds_B, np.ndarray) else kinds_B
    if kinds is None or (isinstance(kinds, Sequence) and not isinstance(kinds, str) and len(kinds) == rows):
        return kinds
    raise _kinds_error(rows, kinds_B)


def _checked(kinds: Sequence[Any], rows: int) -> Sequence[str | None]:
    try:
        distinct: Collection[Any] = set(kinds)
    except TypeError:  # one is not even hashable
        distinct = kinds
    if all(kind is None or isinstance(kind, str) for kind in distinct):
        return kinds
    raise _kinds_error(rows, kinds)


def _kinds_error(rows: int, found: Any) -> ContractError:
    expected = f"{rows} failure kinds, one str or None per row of masked_B"
    return ContractError.of("kinds_B", expected, found, "Use None for a row without one.")


def _masked(flags_B: BoolArray, kinds_B: Sequence[str | None] | None, policy: MaskPolicy) -> BoolArray:
    if kinds_B is None or not (policy.scored_kinds or policy.masked_kinds):
        return flags_B
    scored: BoolArray = np.fromiter((kind in policy.scored_kinds for kind in kinds_B), bool, len(flags_B))
    forced: BoolArray = np.fromiter((kind in policy.masked_kinds for kind in kinds_B), bool, len(flags_B))
    masked_B: BoolArray = (flags_B & ~scored) | forced
    return masked_B


def _dropped(masked_G: npt.NDArray[np.intp], size_G: npt.NDArray[np.intp], policy: MaskPolicy) -> BoolArray:
    if policy.action != "drop_group":
        return np.zeros(len(size_G), dtype=bool)
    # Divided, not multiplied: 29 of 100 is exactly 0.29, but 0.29 * 100 is less than 29.
    dropped_G: BoolArray = masked_G / size_G > policy.drop_group_above
    return dropped_G


def _is_outage(masked_B: BoolArray, kinds_B: Sequence[str | None] | None, policy: MaskPolicy) -> bool:
    rows, limit = len(masked_B), policy.max_masked_fraction
    if limit is None or rows < policy.outage_min_rows:
        return False
    masked = int(np.count_nonzero(masked_B))
    if masked / rows <= limit:
        return False
    if policy.on_outage == "raise":
        raise OutageError(masked, rows, count_kinds(masked_B, kinds_B), limit)
    return True


def _flags(masked_B: npt.ArrayLike) -> BoolArray:
    to_do = "Pass the verdicts' mask_sample, one per row."
    try:
        flags = as_array(masked_B)
    except ValueError as error:  # rows of different lengths
        raise ContractError.of("masked_B", "one flag per row, shape (B,)", masked_B, to_do) from error
    if flags.ndim != 1:
        raise ContractError.of("masked_B", "one flag per row, shape (B,)", flags.shape, to_do)
    if flags.dtype.kind == "b":
        return flags.astype(bool)
    if flags.dtype.kind == "O":  # such as a column of verl's non_tensor_batch
        is_flag = all(isinstance(flag, (bool, np.bool_)) for flag in flags)
    else:
        is_flag = flags.dtype.kind in "iuf" and bool(np.isin(flags, (0, 1)).all())
    if is_flag or flags.size == 0:
        return flags.astype(bool)
    raise ContractError.of("masked_B", "bool, or 0 and 1", flags, to_do)


def _explained(error: ValidationError, policy_type: type[MaskPolicy]) -> str:
    import difflib  # only errors need it

    known = list(policy_type.model_fields)
    lines = []
    for problem in error.errors():
        name = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Known options: {', '.join(known)}."
            lines.append(f"unknown policy option {name!r}. {hint}")
        elif problem["type"] == "value_error":  # two options that do not go together: our own sentence
            lines.append(problem["msg"].removeprefix("Value error, "))
        else:
            expected = problem["msg"].removeprefix("Input should be ").replace("frozenset", "list")
            lines.append(str(ContractError.of(name, expected, problem["input"], "Correct this option.")))
    return "; ".join(lines)
