"""The fast decoder and the complete reader agree on every line, whole or broken."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samplemask import ContractError
from samplemask.rows import UnreadableLineError, make_decode, row_of

pytest.importorskip("msgspec", reason="the fast decoder needs msgspec")

SLOW, FAST = make_decode(fast=False), make_decode(fast=True)

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
flags = st.booleans() | st.sampled_from(["true", "False", 0, 1, "maybe", None])
items = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["message", "function_call", "function_call_output", "reasoning", 3]),
            "role": st.sampled_from(["assistant", "user", "tool", None, [1]]),
            "content": anything,
        },
    )
    | anything,
    max_size=6,
)
rows = st.fixed_dictionaries(
    {},
    optional={
        "reward": st.floats() | st.integers() | anything,
        "mask_sample": flags | anything,
        "failure_kind": st.sampled_from(["judge_failed", "env:lost", None]) | anything,
        "failure_reason": st.text(max_size=5) | anything,
        "instance_config": st.fixed_dictionaries({}, optional={"mask_sample": flags, "x": anything})
        | anything,
        "agent_ref": st.fixed_dictionaries({}, optional={"name": st.text(max_size=4)}) | anything,
        "response": st.fixed_dictionaries(
            {},
            optional={
                "output": items | anything,
                "created_at": st.floats() | anything,
                "usage": st.fixed_dictionaries({}, optional={"output_tokens": anything}) | anything,
            },
        )
        | anything,
        "ng_perf": st.fixed_dictionaries({}, optional={"num_turns": anything}) | anything,
        "error": anything,
        "_ng_task_index": st.integers(0, 3) | anything,
        "_ng_rollout_index": st.integers(0, 3) | anything,
        "_ng_attempt_index": anything,
        "_ng_failure_class": st.just("judge_failed") | anything,
        "_ng_no_persist": st.booleans(),
        "extra": anything,
    },
)


def reading(decode, text):
    """What a reader makes of a line; the reason for refusing it is worded by each parser itself."""
    try:
        row = row_of(decode(text))
    except UnreadableLineError:
        return "unreadable"
    return repr(row)


@settings(max_examples=400, deadline=None)
@given(rows, st.booleans())
def test_both_readers_give_the_same_row(row, ascii_only):
    text = json.dumps(row, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    assert reading(FAST, text) == reading(SLOW, text)


@settings(max_examples=300, deadline=None)
@given(rows, st.data())
def test_both_readers_refuse_the_same_broken_lines(row, data):
    text = bytearray(json.dumps(row, ensure_ascii=False).encode("utf-8", "surrogatepass"))
    place = data.draw(st.integers(0, len(text) - 1))
    action = data.draw(st.sampled_from(["cut", "flip", "drop"]))
    if action == "cut":
        del text[place:]
    elif action == "flip":
        text[place] = data.draw(st.integers(0, 255))
    else:
        del text[place]
    assert reading(FAST, bytes(text)) == reading(SLOW, bytes(text))


@pytest.mark.parametrize(
    "text",
    [
        b'{"reward": 1, "reward": 0}',
        b'{"reward": 1e400}',
        b'{"reward": NaN, "mask_sample": true}',
        b'{"re\\u0077ard": 1}',
        b'{"reward": 123456789012345678901234567890}',
        b'{"reward": 1, "text": "\\ud800"}',
        b'{"reward": 1, "text": "\xff"}',
        b'{"reward": 1, "response": {"output": [[{"type": "message"}]]}}',
        b'{"reward": 1, "response": "text", "agent_ref": "name"}',
        b'{"reward": 1, "instance_config": null}',
        b'{"reward": 1} ',
        b'{"reward": 1} trailing',
        b'\t{"reward": 1}\r\n',
    ],
)
def test_both_readers_agree_on_odd_lines(text):
    assert reading(FAST, text) == reading(SLOW, text)


def test_asking_for_the_fast_reader_without_msgspec_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ContractError, match=r"pip install msgspec"):
        make_decode(fast=True)
    assert make_decode() is make_decode(fast=False)
