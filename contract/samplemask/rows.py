"""One line of a rollout file, reduced to what accounting needs."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping
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
TURNS: Final = "samplemask:turns"
"""Key under which the fast decoder leaves the turns it counted, since it keeps no output items."""

_NEVER_RAN: Final = ("_ng_no_persist", "_ng_dispatch_drained")
_MAX_NAME: Final = 200
_NOT_THE_MODEL: Final = ("user", "system", "developer", "tool")

Index = int | str | None
Decode = Callable[[bytes], Mapping[str, Any]]


class UnreadableLineError(Exception):
    """A line is not one JSON object; the message says why."""


@dataclass(slots=True)
class RolloutRow:
    """What accounting keeps of one row.

    Attributes:
        disposition: What became of the rollout; UNKNOWN when the verdict cannot be read.
        verdict: The reading, or None when it cannot be read.
        problem: Why the verdict cannot be read, or None.
        task: `_ng_task_index`, or None.
        rollout: `_ng_rollout_index`, or None.
        attempt: `_ng_attempt_index`; None when not stamped, which is the first attempt.
        agent: Name of the agent, else of the environment server, else "(no agent)".
        tokens: Length of the response in tokens, or None.
        turns: Model turns of the response, or None.
        time: When the response was made, Unix seconds, or None.
        step: Training step, where a trainer wrote one, or None.
    """

    disposition: Disposition
    verdict: Verdict | None
    problem: str | None = None
    task: Index = None
    rollout: Index = None
    attempt: int | None = None
    agent: str = NO_AGENT
    tokens: float | None = None
    turns: float | None = None
    time: float | None = None
    step: float | None = None


def row_of(response: Mapping[str, Any], *, failures_as_zero: Collection[str] = ()) -> RolloutRow:
    """Reduce one verify response, with the keys that Gym's collector adds, to its row."""
    try:
        verdict = read_verdict(response, failures_as_zero=failures_as_zero)
        row = RolloutRow(Disposition.of(verdict, response), verdict)
    except ContractError as error:
        row = RolloutRow(Disposition.UNKNOWN, None, str(error))
    get = response.get
    if get(_NEVER_RAN[0]) or get(_NEVER_RAN[1]):
        row.disposition = Disposition.OMITTED
    row.task, row.rollout = _index(get(TASK_INDEX)), _index(get(ROLLOUT_INDEX))
    attempt = _index(get(ATTEMPT_INDEX))
    row.attempt = attempt if isinstance(attempt, int) else None
    row.agent = _agent(get("agent_ref"), get("_ng_environment_server"))
    row.step = _number(get("step"))
    _measure(row, get("response"), get("ng_perf"))
    return row


def make_decode(fast: bool | None = None) -> Decode:
    """Return the function that parses one line; it raises UnreadableLineError.

    Args:
        fast: Use msgspec, which parses only the fields that are needed; None: if it is installed.

    Raises:
        ContractError: `fast` is True and msgspec is not installed.
    """
    installed = importlib.util.find_spec("msgspec") is not None
    if fast and not installed:
        raise ContractError("fast decoder: needs msgspec. Run `pip install msgspec`.")
    if fast is False or not installed:
        return decode
    from samplemask.fast import make_decoder

    decode_fast = make_decoder()

    def decode_line(text: bytes) -> Mapping[str, Any]:
        fields = decode_fast(text)
        return decode(text) if fields is None else fields

    return decode_line


def decode(text: bytes) -> Mapping[str, Any]:
    """Parse one line completely.

    Raises:
        UnreadableLineError: It is torn, not UTF-8, not JSON or no object.
    """
    try:
        parsed = _parsed(text)
    except UnicodeDecodeError as error:
        where = f"byte {error.object[error.start]:#04x} at position {error.start}"
        raise UnreadableLineError(f"not UTF-8: {where}") from None
    except RecursionError:
        raise UnreadableLineError("not JSON: nested too deeply") from None
    except ValueError as error:
        raise UnreadableLineError(f"not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise UnreadableLineError(f"not a JSON object but {type(parsed).__name__}")
    return parsed


def count_turns(items: Iterable[tuple[Any, Any]]) -> int:
    """Count the turns of the model: runs of items that the model made.

    Args:
        items: Type and role of each item of `response.output` (OpenAI Responses form).
    """
    turns, model_before = 0, False
    for kind, role in items:
        if role in _NOT_THE_MODEL or (isinstance(kind, str) and kind.endswith("_output")):
            model_before = False
        elif not model_before:
            turns, model_before = turns + 1, True
    return turns


def _parsed(text: bytes) -> Any:
    try:
        return from_json(text)
    except ValueError:  # the standard library reads half an emoji and says better what is wrong
        return json.loads(text.decode("utf-8"))


def _measure(row: RolloutRow, response: Any, perf: Any) -> None:
    """Fill in length, turns and time; Gym's own `ng_perf` has priority."""
    if perf is not None and _is_mapping(perf):
        row.tokens, row.turns = _number(perf.get("completion_tokens")), _number(perf.get("num_turns"))
    if response is None or not _is_mapping(response):
        return
    row.time = _number(response.get("created_at"))
    usage = response.get("usage")
    if row.tokens is None and _is_mapping(usage):
        row.tokens = _number(usage.get("output_tokens"))
    if row.turns is None:
        row.turns = response[TURNS] if TURNS in response else _turns(response.get("output"))


def _turns(output: Any) -> int | None:
    if not isinstance(output, list) or not all(isinstance(item, dict) for item in output):
        return None
    return count_turns((item.get("type"), item.get("role")) for item in output)


def _agent(reference: Any, server: Any) -> str:
    name = reference.get("name") if reference is not None and _is_mapping(reference) else None
    name = name or server
    return name[:_MAX_NAME] if isinstance(name, str) and name else NO_AGENT


def _is_mapping(value: Any) -> bool:
    return type(value) is dict or isinstance(value, Mapping)  # asking an abstract class is slow


def _index(value: Any) -> Index:
    if type(value) is int or value is None:
        return value
    if isinstance(value, str):
        return value[:_MAX_NAME]
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        return int(value)
    return None


def _number(value: Any) -> float | None:
    if value is None:
        return None
    usable = (type(value) is int or type(value) is float) and 0 <= value < 2**53
    return value if usable else None
