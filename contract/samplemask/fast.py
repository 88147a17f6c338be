"""The fast reader: it checks a whole line, and makes objects only of the fields that accounting needs.

It needs the optional package fastsimdjson (`pip install fastsimdjson`). Odd lines go to the complete reader
in `rows.py`, so both give the same rows, with two exceptions: of equal keys inside `response` (in itself, its
`usage` or an item of its `output`, which only tell length, turns and time) the first one counts here and the
last one there; and fastsimdjson 0.8 takes 00nan for a number.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from math import isfinite
from typing import Any, Final

from fastsimdjson import Array, Object, parse

from samplemask.accounting import Disposition
from samplemask.rollouts import Line
from samplemask.rows import (
    ATTEMPT_INDEX,
    NEVER_RAN,
    NO_AGENT,
    NOT_THE_MODEL,
    ROLLOUT_INDEX,
    SERVER,
    TASK_INDEX,
    ReadRow,
    RolloutRow,
    agent_of,
    attempt_of,
    index_of,
    is_output,
    judged,
    number_of,
)
from samplemask.verdict import FAILURE_CLASS

_BOM: Final = 0xEF  # its first byte, with which no JSON begins
_MAX_KNOWN: Final = 1000
_MAX_LETTERS: Final = 2000
_EXACT: Final = 2**53  # whole numbers below are floats, too
_SCORED: Final = Disposition.SCORED
_NESTED: Final = ("instance_config", "metrics")
_VERDICT: Final = ("mask_sample", *_NESTED, "failure_kind", "failure_reason", FAILURE_CLASS, *NEVER_RAN)
_RARE: Final = (ATTEMPT_INDEX, SERVER, "ng_perf")
_OTHERS: Final = frozenset(NOT_THE_MODEL)
_NO_REWARD: Final = judged({}, ())

_Names = tuple[str, ...]
_Get = Callable[[str], Any]


class _OddLineError(ValueError):
    """The complete reader must take the line."""


class _Layouts(dict[_Names, tuple[_Names, _Names]]):
    """By the keys of an object: those of a verdict, and those that are rare. Few are new, so it remembers."""

    def __missing__(self, keys: _Names) -> tuple[_Names, _Names]:
        if len(set(keys)) < len(keys):
            raise _OddLineError  # of equal keys the last one counts in Python, and the first one here
        layout = tuple(filter(keys.__contains__, _VERDICT)), tuple(filter(keys.__contains__, _RARE))
        if len(self) < _MAX_KNOWN and sum(map(len, keys)) < _MAX_LETTERS:
            self[keys] = layout
        return layout


class _Kinds(dict[Any, bool]):
    """By the type of an item of `response.output`: whether it is the output of a tool."""

    def __missing__(self, kind: Any) -> bool:
        output = is_output(kind)
        if type(kind) is str and len(self) < _MAX_KNOWN and len(kind) < _MAX_LETTERS:
            self[kind] = output
        return output


_layouts: Final = _Layouts()
_kinds: Final = _Kinds()


def make_read_row(read_odd: ReadRow, failures_as_zero: Collection[str]) -> ReadRow:
    """Return the function that reduces one line to its row; it gives odd lines to `read_odd`."""

    def read_row(line: Line) -> RolloutRow:
        # This runs for each row, some of it for each item of its output: no helper where a line will do.
        try:
            document = parse(line)
            if type(document) is not Object or line[0] == _BOM:
                return read_odd(line)
            get = document.get
            says, rare = _layouts[tuple(document)]
            reward, task, rollout, agent = (
                get("reward"),
                get(TASK_INDEX),
                get(ROLLOUT_INDEX),
                get("agent_ref"),
            )
            tokens = turns = time = None
            if type(response := get("response")) is Object:
                if (time := response.get("created_at")) is not None:
                    time = number_of(time)
                if type(usage := response.get("usage")) is Object:
                    tokens = number_of(usage.get("output_tokens"))
                if type(output := response.get("output")) is Array:
                    turns = _turns(output)
            row = RolloutRow(
                _SCORED,
                reward,
                None,
                False,
                None,
                task if type(task) is int else index_of(task),
                rollout if type(rollout) is int else index_of(rollout),
                None,
                agent_of(agent.as_dict().get("name"), None) if type(agent) is Object else NO_AGENT,
                tokens,
                turns,
                time,
            )
            if type(reward) is not float or not isfinite(reward) or (says and _speaks(get, says)):
                _judge(row, get, says, failures_as_zero)
            if rare:
                _add_rare(row, get)
        except (ValueError, TypeError, RecursionError):  # fastsimdjson's own errors are ValueErrors
            return read_odd(line)
        return row

    return read_row


def _speaks(get: _Get, says: _Names) -> bool:
    """Tell whether a verdict's fields say more than that the reward counts."""
    for name in says:
        value = get(name)
        if value is not None and not _is_silent(name, value):
            return True
    return False


def _is_silent(name: str, value: Any) -> bool:
    if name in _NESTED and type(value) is Object:
        flag = _field(value, "mask_sample")
        return flag is None or (flag is False and name == "instance_config")
    if name == "failure_reason":
        return type(value) is str  # it explains, and decides nothing
    return name == "mask_sample" and value is False


def _judge(row: RolloutRow, get: _Get, says: _Names, failures_as_zero: Collection[str]) -> None:
    """Fill in what the verdict says of a row whose reward does not simply count."""
    silent = not _speaks(get, says)
    if silent and type(row.reward) is int and abs(row.reward) < _EXACT:
        row.reward = float(row.reward)
        return
    found = _NO_REWARD
    if not silent or row.reward is not None or get("error") is not None:
        fields = {name: get(name) for name in (*says, "reward", "error")}
        for name in _NESTED:
            if type(fields.get(name)) is Object:
                fields[name] = {"mask_sample": _field(fields[name], "mask_sample")}
        found = judged(fields, failures_as_zero)
    if found.problem is not None:
        raise _OddLineError
    row.disposition, row.reward = found.disposition, found.reward
    row.kind, row.conflict = found.kind, found.conflict


def _add_rare(row: RolloutRow, get: _Get) -> None:
    row.attempt = attempt_of(get(ATTEMPT_INDEX))
    row.agent = agent_of(_field(get("agent_ref"), "name"), get(SERVER))
    perf = get("ng_perf")
    tokens, turns = number_of(_field(perf, "completion_tokens")), number_of(_field(perf, "num_turns"))
    row.tokens = row.tokens if tokens is None else tokens
    row.turns = row.turns if turns is None else turns


def _turns(output: Array) -> int | None:
    turns, model_before = 0, False
    try:
        for item in output:
            if _kinds[item.get("type")] or item.get("role") in _OTHERS:
                model_before = False
            elif not model_before:
                turns, model_before = turns + 1, True
    except AttributeError:  # it is no object
        return None
    return turns


def _field(view: Any, name: str) -> Any:
    """Return a field of an object; None of what is none."""
    if type(view) is not Object:
        return None
    _layouts[tuple(view)]  # it refuses equal keys
    return view.get(name)
