"""Every error that samplemask raises.

Each message says where the problem is, what was expected, what was found and what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class SampleMaskError(Exception):
    """Base of all errors raised on purpose by samplemask."""


class ContractError(SampleMaskError, ValueError):
    """A value breaks the contract: a verdict field, a policy option, an array's shape."""

    @classmethod
    def of(cls, where: str, expected: str, found: object, to_do: str) -> ContractError:
        """Build the error in the house form, with a bounded picture of the value found.

        Args:
            where: The field or argument, as the user wrote it.
            expected: What would have been accepted.
            found: The offending value; shown cut to 120 characters.
            to_do: One instruction.
        """
        return cls(f"{where}: expected {expected}, found {shown(found)}. {to_do}")


class SeamError(SampleMaskError):
    """A host's patch point is not what the adapter was checked against."""


class OutageError(SampleMaskError):
    """Too many rows of one batch are masked for it to be a measurement of the policy.

    Attributes:
        masked: Number of masked rows.
        rows: Number of rows in the batch.
        kinds: Masked rows per failure kind.
    """

    def __init__(self, masked: int, rows: int, kinds: Mapping[str, int], limit: float) -> None:
        self.masked = masked
        self.rows = rows
        self.kinds = dict(kinds)
        self.limit = limit
        super().__init__(
            f"outage: {masked} of {rows} rollouts ({masked / rows:.1%}) are masked, "
            f"more than max_masked_fraction={limit:g} allows. Per failure kind: {_by_kind(kinds)}. "
            "Repair the environment and resume from the last checkpoint, or set "
            'on_outage="skip_step" to go on without training on such a batch.'
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Survive pickling, so that a Ray worker's outage reaches the driver as itself."""
        return type(self), (self.masked, self.rows, self.kinds, self.limit)


class RefillError(OutageError):
    """An environment keeps failing: a step replaced as many groups as it may.

    Attributes:
        groups: Groups replaced in this step, the one too many included.
        limit: `max_refills`.
        step: The training step.
    """

    def __init__(
        self, masked: int, rows: int, kinds: Mapping[str, int], groups: int, limit: int, step: int
    ) -> None:
        SampleMaskError.__init__(
            self,
            f"outage: step {step} would replace {groups} prompt groups, more than max_refills={limit} "
            f"allows; {masked} of their {rows} rollouts are masked. Per failure kind: {_by_kind(kinds)}. "
            "Repair the environment and resume from the last checkpoint, or set max_refills=0 to train on "
            "what there is.",
        )
        self.masked, self.rows, self.kinds = masked, rows, dict(kinds)
        self.groups, self.limit, self.step = groups, limit, step

    def __reduce__(self) -> tuple[Any, ...]:
        """Survive pickling."""
        return type(self), (self.masked, self.rows, self.kinds, self.groups, int(self.limit), self.step)


def _by_kind(kinds: Mapping[str, int]) -> str:
    return ", ".join(f"{name}: {count}" for name, count in kinds.items()) or "none given"


def shown(value: object, limit: int = 120) -> str:
    """Return `repr(value)` and its type, cut to `limit` characters and never raising."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a broken __repr__ must not hide the real error
        text = "<value without a usable repr>"
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    return f"{text} ({type(value).__name__})"
