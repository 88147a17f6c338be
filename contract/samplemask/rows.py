"""One line of a rollout file, reduced to what accounting needs."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic_core import from_json

from samplemask.accounting import Disposition
from samplemask.errors import ContractError
from samplemask.verdict import Verdict, read_verdict

TASK_INDEX: Final = "_ng_task_index"
ROLLOUT_INDEX: Final = "_ng_rollout_index"
ATTEMPT_INDEX: Final = "_ng_attempt_index"
NO_AGENT: Final = "(no agent)"
_NEVER_RAN: Final = ("_ng_no_persist", "_ng_dispatch_drained")
_MAX_NAME: Final = 200

Index = int | str | None


class UnreadableLineError(Exception):
    """A line is not one JSON object; the message says why."""


@dataclass(frozen=True, slots=True)
class RolloutRow:
    """What accounting keeps of one row.

    Attributes:
        task: `_ng_task_index`, or None.
        rollout: `_ng_rollout_index`, or None.
        attempt: `_ng_attempt_index`; None when not stamped, which is the first attempt.
        agent: Name of the agent, else of the environment server, else "(no agent)".
        disposition: What became of the rollout; UNKNOWN when the verdict cannot be read.
        verdict: The reading, or None when it cannot be read.
        problem: Why the verdict cannot be read, or None.
    """

    task: Index
    rollout: Index
    attempt: int | None
    agent: str
    disposition: Disposition
    verdict: Verdict | None
    problem: str | None = None


def read_row(text: bytes, *, failures_as_zero: Collection[str] = ()) -> RolloutRow:
    """Read one line.

    Args:
        text: One JSON object.
        failures_as_zero: Failure classes that count as a measured zero.

    Raises:
        UnreadableLineError: The line is torn, not UTF-8, not JSON or no object.
    """
    return row_of(decode(text), failures_as_zero=failures_as_zero)


def row_of(response: Mapping[str, Any], *, failures_as_zero: Collection[str] = ()) -> RolloutRow:
    """Reduce one verify response, with the keys that Gym's collector adds, to its row."""
    try:
        verdict = read_verdict(response, failures_as_zero=failures_as_zero)
    except ContractError as error:
        return RolloutRow(*identity(response), Disposition.UNKNOWN, None, str(error))
    never_ran = any(response.get(key) for key in _NEVER_RAN)
    disposition = Disposition.OMITTED if never_ran else Disposition.of(verdict, response)
    return RolloutRow(*identity(response), disposition, verdict)


def identity(response: Mapping[str, Any]) -> tuple[Index, Index, int | None, str]:
    """Return task, rollout, attempt and agent of a row; what is absent or odd is None."""
    attempt = _index(response.get(ATTEMPT_INDEX))
    return (
        _index(response.get(TASK_INDEX)),
        _index(response.get(ROLLOUT_INDEX)),
        attempt if isinstance(attempt, int) else None,
        _agent(response),
    )


def decode(text: bytes) -> Mapping[str, Any]:
    """Parse one line.

    Raises:
        UnreadableLineError: It is torn, not UTF-8, not JSON or no object.
    """
    try:
        parsed = _parsed(text)
    except UnicodeDecodeError as error:
        where = f"byte {error.object[error.start]:#04x} at position {error.start}"
        raise UnreadableLineError(f"not UTF-8: {where}") from None
    except (ValueError, RecursionError) as error:
        raise UnreadableLineError(f"not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise UnreadableLineError(f"not a JSON object but {type(parsed).__name__}")
    return parsed


def _parsed(text: bytes) -> Any:
    try:
        return from_json(text)
    except ValueError:
        return json.loads(text.decode("utf-8"))


def _agent(response: Mapping[str, Any]) -> str:
    reference = response.get("agent_ref")
    name = reference.get("name") if isinstance(reference, Mapping) else None
    name = name or response.get("_ng_environment_server")
    return name[:_MAX_NAME] if isinstance(name, str) and name else NO_AGENT


def _index(value: Any) -> Index:
    if isinstance(value, str):
        return value[:_MAX_NAME]
    if isinstance(value, float):
        return int(value) if math.isfinite(value) and value == int(value) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None
