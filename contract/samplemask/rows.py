"""One line of a rollout file, reduced to what accounting needs."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from pydantic_core import from_json

from samplemask.accounting import Disposition
from samplemask.errors import ContractError
from samplemask.rollouts import Line, Unusable
from samplemask.verdict import read_verdict

TASK_INDEX: Final = "_ng_task_index"
ROLLOUT_INDEX: Final = "_ng_rollout_index"
ATTEMPT_INDEX: Final = "_ng_attempt_index"
NO_AGENT: Final = "(no agent)"
SERVER: Final = "_ng_environment_server"
NEVER_RAN: Final = ("_ng_no_persist", "_ng_dispatch_drained")
_MAX_NAME: Final = 200
NOT_THE_MODEL: Final = ("user", "system", "developer", "tool")
_NAN_OR_INF: Final = re.compile(
    r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)'  # a string, which stays as it is
    r"|(?<![\w.+-])(-?)(nan|inf(?:inity)?)(?![\w.+-])",
    re.ASCII | re.IGNORECASE | re.DOTALL,
)

Index = int | str | None
ReadRow = Callable[[Line], "RolloutRow"]


class UnreadableLineError(Exception):
    """A line is not one JSON object; the message says why."""


@dataclass(slots=True)
class RolloutRow:
    """What accounting keeps of one row.

    Attributes:
        disposition: What became of the rollout; UNKNOWN when the verdict cannot be read.
        reward: The reward, or None when it is missing or not finite.
        kind: The failure kind, or None.
        conflict: True when the two flags speak and disagree.
        problem: Why the verdict cannot be read, or None.
        task: `_ng_task_index`, or None.
        rollout: `_ng_rollout_index`, or None.
        attempt: `_ng_attempt_index`; None when not stamped, which is the first attempt.
        agent: Name of the agent, else of the environment server, else "(no agent)".
        tokens: Length of the response in tokens, or None.
        turns: Model turns of the response, or None.
        time: When the response was made, Unix seconds, or None.
    """

    disposition: Disposition
    reward: float | None = None
    kind: str | None = None
    conflict: bool = False
    problem: str | None = None
    task: Index = None
    rollout: Index = None
    attempt: int | None = None
    agent: str = NO_AGENT
    tokens: float | None = None
    turns: float | None = None
    time: float | None = None


def make_read_row(failures_as_zero: Collection[str] = (), fast: bool | None = None) -> ReadRow:
    """Return the function that reduces one line to its row; it raises UnreadableLineError.

    Args:
        failures_as_zero: Failure classes that count as a measured zero.
        fast: Use fastsimdjson, which makes objects only of the fields that are needed; None: if it is
            installed. The rows are the same, but for equal keys inside `response`; see `fast`.

    Raises:
        ContractError: `fast` is True and fastsimdjson is not installed.
    """
    installed = importlib.util.find_spec("fastsimdjson") is not None
    if fast and not installed:
        raise ContractError("fast decoder: needs fastsimdjson. Run `pip install fastsimdjson`.")

    def read_row(line: Line) -> RolloutRow:
        return row_of(decode(line), failures_as_zero=failures_as_zero)

    if fast is False or not installed:
        return read_row
    from samplemask.fast import make_read_row as make_fast

    return make_fast(read_row, failures_as_zero)


def row_of(response: Mapping[str, Any], *, failures_as_zero: Collection[str] = ()) -> RolloutRow:
    """Reduce one verify response, with the keys that Gym's collector adds, to its row."""
    row = judged(response, failures_as_zero)
    get = response.get
    row.task, row.rollout = index_of(get(TASK_INDEX)), index_of(get(ROLLOUT_INDEX))
    row.attempt = attempt_of(get(ATTEMPT_INDEX))
    agent = get("agent_ref")
    row.agent = agent_of(agent.get("name") if isinstance(agent, Mapping) else None, get(SERVER))
    _measure(row, get("response"), get("ng_perf"))
    return row


def judged(response: Mapping[str, Any], failures_as_zero: Collection[str]) -> RolloutRow:
    """Return a row that holds only what the response's verdict says."""
    try:
        verdict = read_verdict(response, failures_as_zero=failures_as_zero)
    except ContractError as error:
        row = RolloutRow(Disposition.UNKNOWN, problem=str(error))
    else:
        disposition = Disposition.of(verdict, response)
        row = RolloutRow(disposition, verdict.reward, verdict.failure_kind, verdict.conflict)
    if any(response.get(name) for name in NEVER_RAN):
        row.disposition = Disposition.OMITTED
    return row


def decode(line: Line) -> Mapping[str, Any]:
    """Parse one line completely.

    Raises:
        UnreadableLineError: It is unusable, torn, not UTF-8, not JSON or no object.
    """
    if isinstance(line, Unusable):
        raise UnreadableLineError(line)
    try:
        parsed = _parsed(bytes(line))
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


def index_of(value: Any) -> Index:
    """Return a task or rollout index; None where the value is none."""
    if type(value) is int or value is None:
        return value
    if isinstance(value, str):
        return value[:_MAX_NAME]
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        return int(value)
    return None


def attempt_of(value: Any) -> int | None:
    """Return an attempt index; None where the value is none."""
    index = None if value is None else index_of(value)
    return index if isinstance(index, int) else None


def number_of(value: Any) -> float | None:
    """Return a length, a count or a time; None where the value is none."""
    if value is None:
        return None
    usable = (type(value) is int or type(value) is float) and 0 <= value < 2**53
    return value if usable else None


def agent_of(name: Any, server: Any) -> str:
    """Return the agent's name, from `agent_ref.name` and `_ng_environment_server`."""
    name = name or server
    return name[:_MAX_NAME] if isinstance(name, str) and name else NO_AGENT


def _parsed(text: bytes) -> Any:
    try:
        return from_json(text)
    except ValueError:  # the standard library reads half an emoji and says better what is wrong
        words = text.decode("utf-8")
    try:
        return json.loads(words)
    except ValueError as error:
        # Numbers that Python refuses may be of no interest: NaN as C spells it, or thousands of digits, which
        # is no JSONDecodeError.
        if not isinstance(error, json.JSONDecodeError) or words[error.pos : error.pos + 1] in {*"-nNiI"}:
            with contextlib.suppress(ValueError):
                return json.loads(_NAN_OR_INF.sub(_as_python_spells, words), parse_int=_whole_number)
        raise error from None


def _as_python_spells(found: re.Match[str]) -> str:
    sign, word = found.groups()
    return found[0] if word is None else "NaN" if word[0] in "nN" else f"{sign}Infinity"


def _whole_number(digits: str) -> int | float:
    try:
        return int(digits)
    except ValueError:  # thousands of digits
        return float(digits)


def _measure(row: RolloutRow, response: Any, perf: Any) -> None:
    """Fill in length, turns and time; Gym's own `ng_perf` has priority."""
    if isinstance(perf, Mapping):
        row.tokens, row.turns = number_of(perf.get("completion_tokens")), number_of(perf.get("num_turns"))
    if not isinstance(response, Mapping):
        return
    row.time = number_of(response.get("created_at"))
    usage = response.get("usage")
    if row.tokens is None and isinstance(usage, Mapping):
        row.tokens = number_of(usage.get("output_tokens"))
    if row.turns is None:
        row.turns = _turns(response.get("output"))


def _turns(output: Any) -> int | None:
    """Count the turns of the model: runs of items that it made."""
    if not isinstance(output, list) or not all(isinstance(item, dict) for item in output):
        return None
    made = [_is_of_model(item.get("type"), item.get("role")) for item in output]
    return sum(mine and not before for before, mine in pairwise([False, *made]))


def _is_of_model(kind: Any, role: Any) -> bool:
    """Tell by type and role whether the model made an item of `response.output` (OpenAI Responses form)."""
    return role not in NOT_THE_MODEL and not is_output(kind)


def is_output(kind: Any) -> bool:
    """Tell whether items of this type are the output of a tool, which the model did not make."""
    return isinstance(kind, str) and kind.endswith("_output")
