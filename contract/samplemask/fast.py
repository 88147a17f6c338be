"""The fast reader: it checks a whole line, and makes objects only of the fields that accounting needs.

It needs the optional package fastsimdjson (`pip install fastsimdjson`). Odd lines go to the complete reader
in `rows.py`, so both give the same rows. (Known exception, of fastsimdjson 0.8: it takes 00nan for a number.)
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from math import isfinite
from typing import Any, Final

from fastsimdjson import Array, Object, parse

from samplemask.accounting import Disposition
from samplemask.rollouts import Text
from samplemask.rows import (
    ATTEMPT_INDEX,
    NEVER_RAN,
    NOT_THE_MODEL,
    ROLLOUT_INDEX,
    SERVER,
    TASK_INDEX,
    ReadRow,
    RolloutRow,
    agent_of,
    attempt_of,
    index_of,
    judged,
    number_of,
)
from samplemask.verdict import FAILURE_CLASS

_BOM: Final = 0xEF  # its first byte, with which no JSON begins
_MAX_KNOWN: Final = 1000
_MAX_LETTERS: Final = 2000


class _OddLineError(ValueError):
    """The complete reader must take the line."""


class _Keys:
    """By the keys of an object, in their order: which of the wanted ones are among them.

    Most objects have the keys of an earlier one, so this is looked up more often than found out.
    """

    def __init__(self, *wanted: str) -> None:
        self._wanted = frozenset(wanted)
        self._known: dict[tuple[str, ...], tuple[str, ...]] = {}
        self.known: Final = self._known.get

    def learn(self, keys: tuple[str, ...]) -> tuple[str, ...]:
        """Find it out."""
        if len(set(keys)) < len(keys):
            raise _OddLineError  # of equal keys the last one counts in Python, and the first one here
        there = tuple(self._wanted.intersection(keys))
        if len(self._known) < _MAX_KNOWN and sum(map(len, keys)) < _MAX_LETTERS:
            self._known[keys] = there
        return there


_verdicts: Final = _Keys(
    "mask_sample", "failure_kind", "failure_reason", "instance_config", "metrics", FAILURE_CLASS, *NEVER_RAN
)
_items: Final = _Keys("role")
_others: Final = _Keys()


def make_read_row(read_odd: ReadRow, failures_as_zero: Collection[str]) -> ReadRow:
    """Return the function that reduces one line to its row; it gives odd lines to `read_odd`."""

    def read_row(text: Text) -> RolloutRow:
        try:
            document = parse(text)
            if type(document) is not Object or text[0] == _BOM:
                return read_odd(text)
            row = _row_of(document, failures_as_zero)
        except (ValueError, TypeError, RecursionError):  # fastsimdjson's own errors are ValueErrors
            return read_odd(text)
        return row if row.problem is None else read_odd(text)

    return read_row


# What follows runs for each row, some for each item of its output: no helper where a line will do.


def _row_of(document: Object, failures_as_zero: Collection[str]) -> RolloutRow:
    get, keys = document.get, tuple(document)
    says = _verdicts.known(keys)
    if says is None:
        says = _verdicts.learn(keys)
    reward = get("reward")
    if type(reward) is float and isfinite(reward) and not _speaks(get, says):
        row = RolloutRow(Disposition.SCORED, reward)
    else:
        row = _judged(get, says, failures_as_zero)
    task, rollout, server = get(TASK_INDEX), get(ROLLOUT_INDEX), get(SERVER)
    row.task = task if type(task) is int else index_of(task)
    row.rollout = rollout if type(rollout) is int else index_of(rollout)
    row.attempt = attempt_of(get(ATTEMPT_INDEX))
    if (agent := get("agent_ref")) is not None or server is not None:
        row.agent = agent_of(_field(agent, "name"), server)
    if (perf := get("ng_perf")) is not None:
        row.tokens = number_of(_field(perf, "completion_tokens"))
        row.turns = number_of(_field(perf, "num_turns"))
    if type(response := get("response")) is Object:
        _measure(row, response)
    return row


def _speaks(get: Callable[[str], Any], says: tuple[str, ...]) -> bool:
    """Tell whether a verdict's fields say more than that the reward counts."""
    for name in says:
        value = get(name)
        if value is not None and (value is not False or name != "mask_sample"):
            return True
    return False


def _judged(
    get: Callable[[str], Any], says: tuple[str, ...], failures_as_zero: Collection[str]
) -> RolloutRow:
    fields = {name: get(name) for name in (*says, "reward", "error")}
    for name in ("instance_config", "metrics"):
        if type(fields.get(name)) is Object:
            fields[name] = {"mask_sample": _field(fields[name], "mask_sample")}
    return judged(fields, failures_as_zero)


def _measure(row: RolloutRow, response: Object) -> None:
    get, keys = response.get, tuple(response)
    if _others.known(keys) is None:
        _others.learn(keys)
    row.time = number_of(get("created_at"))
    if row.tokens is None:
        row.tokens = number_of(_field(get("usage"), "output_tokens"))
    if row.turns is None and type(output := get("output")) is Array:
        row.turns = _turns(output)


def _turns(output: Array) -> int | None:
    turns, model_before, known = 0, False, _items.known
    for item in output:
        if type(item) is not Object:
            return None
        keys = tuple(item)
        role = known(keys)
        if role is None:
            role = _items.learn(keys)
        kind = item.get("type")
        if (role and item.get("role") in NOT_THE_MODEL) or (type(kind) is str and kind[-7:] == "_output"):
            model_before = False
        elif not model_before:
            turns, model_before = turns + 1, True
    return turns


def _field(view: Any, name: str) -> Any:
    """Return a field of an object; None of what is none."""
    if type(view) is not Object:
        return None
    keys = tuple(view)
    if _others.known(keys) is None:
        _others.learn(keys)
    return view.get(name)
