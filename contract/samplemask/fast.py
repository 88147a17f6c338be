"""The fast decoder: of each line it keeps only the fields that accounting reads.

It needs the optional package msgspec (`pip install msgspec`). It checks the syntax of the
whole line; whatever it refuses goes to the complete reader in `rows.py`, so both give the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from samplemask.rows import TURNS, count_turns

# A value of another type than these names is refused, and the complete reader takes the line.
# None stands for absent: to the contract they mean the same.


class _Config(msgspec.Struct, gc=False):
    mask_sample: Any = None


class _Named(msgspec.Struct, gc=False):
    name: Any = None


class _Usage(msgspec.Struct, gc=False):
    output_tokens: Any = None


class _Item(msgspec.Struct, gc=False):
    type: Any = None
    role: Any = None


class _Perf(msgspec.Struct, gc=False):
    num_turns: Any = None
    completion_tokens: Any = None


class _Response(msgspec.Struct, gc=False):
    created_at: Any = None
    usage: _Usage | None = None
    output: list[_Item] | None = None


class _Row(msgspec.Struct, gc=False):
    reward: Any = None
    mask_sample: Any = None
    failure_kind: Any = None
    failure_reason: Any = None
    error: Any = None
    step: Any = None
    task: Any = msgspec.field(default=None, name="_ng_task_index")
    rollout: Any = msgspec.field(default=None, name="_ng_rollout_index")
    attempt: Any = msgspec.field(default=None, name="_ng_attempt_index")
    server: Any = msgspec.field(default=None, name="_ng_environment_server")
    failure_class: Any = msgspec.field(default=None, name="_ng_failure_class")
    no_persist: Any = msgspec.field(default=None, name="_ng_no_persist")
    drained: Any = msgspec.field(default=None, name="_ng_dispatch_drained")
    agent_ref: _Named | None = None
    instance_config: _Config | None = None
    metrics: _Config | None = None
    ng_perf: _Perf | None = None
    response: _Response | None = None


def make_decoder() -> Callable[[bytes], Mapping[str, Any] | None]:
    """Return a function that decodes one line, or returns None when the complete reader must."""
    decode = msgspec.json.Decoder(_Row).decode

    def decode_line(text: bytes) -> Mapping[str, Any] | None:
        try:
            if not text.isascii():
                text.decode("utf-8")  # msgspec does not look inside the strings that it skips
            return _mapping(decode(text))
        except (ValueError, RecursionError):  # msgspec's own errors are ValueErrors
            return None

    return decode_line


def _mapping(row: _Row) -> Mapping[str, Any]:
    fields = {
        "reward": row.reward,
        "mask_sample": row.mask_sample,
        "failure_kind": row.failure_kind,
        "failure_reason": row.failure_reason,
        "error": row.error,
        "step": row.step,
        "_ng_task_index": row.task,
        "_ng_rollout_index": row.rollout,
        "_ng_attempt_index": row.attempt,
        "_ng_environment_server": row.server,
        "_ng_failure_class": row.failure_class,
        "_ng_no_persist": row.no_persist,
        "_ng_dispatch_drained": row.drained,
    }
    if row.agent_ref is not None:
        fields["agent_ref"] = {"name": row.agent_ref.name}
    if row.instance_config is not None:
        fields["instance_config"] = {"mask_sample": row.instance_config.mask_sample}
    if row.metrics is not None:
        fields["metrics"] = {"mask_sample": row.metrics.mask_sample}
    if (perf := row.ng_perf) is not None:
        fields["ng_perf"] = {"num_turns": perf.num_turns, "completion_tokens": perf.completion_tokens}
    if row.response is not None:
        fields["response"] = _response(row.response)
    return fields


def _response(response: _Response) -> Mapping[str, Any]:
    return {
        "created_at": response.created_at,
        "usage": {"output_tokens": response.usage.output_tokens} if response.usage is not None else None,
        TURNS: None
        if response.output is None
        else count_turns([(item.type, item.role) for item in response.output]),
    }
