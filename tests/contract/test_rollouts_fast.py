"""The fast reader and the complete one agree on every line, whole or broken, with one exception."""

import json
import re
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from samplemask import ContractError
from samplemask.rows import UnreadableLineError, make_read_row

pytest.importorskip("fastsimdjson", reason="the fast reader needs fastsimdjson")

from samplemask import fast

SLOW, FAST = make_read_row(fast=False), make_read_row(fast=True)

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


def reading(read_row, text):
    """What a reader makes of a line: its row, or why it refuses it."""
    try:
        return repr(read_row(text))
    except UnreadableLineError as error:
        return str(error)


class Pairs(list):
    """The keys and values of an object, equal keys and all."""


def repeats(value, *names):
    """Whether an object has equal keys, among them one of these."""
    keys = [key for key, _ in value] if isinstance(value, Pairs) else []
    return any(keys.count(name) > 1 for name in names)


def has_equal_keys_in_the_response(text):
    """Whether a line has equal keys where the fast reader takes the first of them."""
    try:
        whole = json.loads(text, object_pairs_hook=Pairs)
    except ValueError:
        return False
    response = dict(whole).get("response") if isinstance(whole, Pairs) else None
    fields = dict(response) if isinstance(response, Pairs) else {}
    output = fields.get("output")
    return (
        repeats(response, "created_at", "usage", "output")
        or repeats(fields.get("usage"), "output_tokens")
        or (type(output) is list and any(repeats(item, "type", "role") for item in output))
    )


@settings(max_examples=400, deadline=None)
@given(rows, st.booleans())
def test_both_readers_give_the_same_row(row, ascii_only):
    text = json.dumps(row, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    assert reading(FAST, text) == reading(SLOW, text)


@settings(max_examples=400, deadline=None)
@given(rows, st.data())
def test_both_readers_refuse_the_same_broken_lines(row, data):
    text = bytearray(json.dumps(row, ensure_ascii=False).encode("utf-8", "surrogatepass"))
    place = data.draw(st.integers(0, len(text) - 1))
    action = data.draw(st.sampled_from(["cut", "flip", "drop", "double"]))
    if action == "cut":
        del text[place:]
    elif action == "flip":
        text[place] = data.draw(st.integers(0, 255))
    elif action == "drop":
        del text[place]
    else:
        text[place:place] = text[place : place + data.draw(st.integers(1, 30))]
    assume(not has_equal_keys_in_the_response(bytes(text)))
    assert reading(FAST, bytes(text)) == reading(SLOW, bytes(text))


@pytest.mark.parametrize(
    ("response", "first", "last"),
    [
        ('{"created_at": 1, "created_at": 2}', {"time": 1}, {"time": 2}),
        ('{"usage": {"output_tokens": 1, "output_tokens": 2}}', {"tokens": 1}, {"tokens": 2}),
        ('{"usage": {"output_tokens": 1}, "usage": null}', {"tokens": 1}, {"tokens": None}),
        ('{"output": [{"type": "a", "type": "b_output"}]}', {"turns": 1}, {"turns": 0}),
        ('{"output": [{"role": "user", "role": "assistant"}]}', {"turns": 0}, {"turns": 1}),
        ('{"output": [{}], "output": []}', {"turns": 1}, {"turns": 0}),
    ],
)
def test_of_equal_keys_inside_the_response_the_fast_reader_takes_the_first(response, first, last):
    text = f'{{"reward": 0.5, "_ng_task_index": 3, "response": {response}}}'.encode()
    assert has_equal_keys_in_the_response(text)
    row = SLOW(b'{"reward": 0.5, "_ng_task_index": 3, "response": {"output": null}}')
    assert FAST(text) == replace(row, **first)
    assert SLOW(text) == replace(row, **last)


@settings(max_examples=400, deadline=None)
@given(rows, rows)
def test_of_equal_keys_both_readers_take_the_last(one, other):
    text = f"{json.dumps(one)[:-1]}{', ' if one and other else ''}{json.dumps(other)[1:]}".encode()
    assert reading(FAST, text) == reading(SLOW, text)


PARTS = [bytes([char]) for char in b'{}[]:,"\\ 01-+.eE'] + b"null true nan NaN inf -Infinity reward".split()


@settings(max_examples=1000, deadline=None)
@given(st.lists(st.sampled_from(PARTS), max_size=12).map(b"".join))
def test_both_readers_agree_on_what_only_looks_like_json(text):
    assume(not re.search(rb"0[01]+(nan|inf)", text, re.IGNORECASE))  # fastsimdjson 0.8 takes 00nan for NaN
    for line in (text, b'{"reward": 0.5, "x": ' + text + b"}"):
        assert reading(FAST, line) == reading(SLOW, line)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"[]",
        b'{"reward": 1, "reward": 0}',
        b'{"reward": 1.0, "instance_config": {"mask_sample": false, "mask_sample": true}}',
        b'{"reward": 1.0, "response": {"created_at": 1}, "response": {"created_at": 2}}',
        b'{"reward": 1.0, "ng_perf": {"num_turns": 1, "num_turns": 2}}',
        b'{"reward": 1.0, "agent_ref": {"name": "a", "name": "b"}}',
        b'{"reward": 1.0, "x": {"a": 1, "a": 2}}',
        b'{"reward": 1e400}',
        b'{"reward": NaN, "mask_sample": true}',
        b'{"reward": Infinity}',
        b'{"reward": 1.0, "x": [nan, -NaN, inf, -inf, INFINITY]}',
        b'{"reward": 1.0, "x": nanx}',
        b'{"reward": 1.0, "x": "nan", "y": -nan}',
        b'{"re\\u0077ard": 1}',
        b'{"reward": 123456789012345678901234567890}',
        b'{"_ng_task_index": 123456789012345678901234567890}',
        b'{"reward": 1.0, "x": ' + b"9" * 5000 + b"}",
        b'{"reward": 1, "text": "\\ud800"}',
        b'{"reward": 1, "text": "\xed\xa0\x80"}',
        b'{"reward": 1, "text": "\xff"}',
        b'{"reward": 1, "text": "caf\xc3',
        b'{"reward": 1, "response": {"output": [[{"type": "message"}]]}}',
        b'{"reward": 1.0, "response": {"output": [{"type": ["message"], "role": {"a": 1}}]}}',
        b'{"reward": 1.0, "response": {"output": [{"role": "user"}, {"type": "x"}, {"role": "tool"}, {}]}}',
        b'{"reward": 1, "response": "text", "agent_ref": "name"}',
        b'{"reward": 1, "instance_config": null}',
        b'{"reward": 1.0, "instance_config": false}',
        b'{"reward": 1.0, "instance_config": {"mask_sample": false}}',
        b'{"reward": 1.0, "instance_config": {"mask_sample": true}}',
        b'{"reward": 1.0, "mask_sample": true, "instance_config": {"mask_sample": false}}',
        b'{"reward": 1.0, "metrics": false}',
        b'{"reward": 1.0, "metrics": {"mask_sample": false}}',
        b'{"mask_sample": false, "error": "lost"}',
        b'{"reward": null, "failure_kind": "judge_failed", "_ng_no_persist": true}',
        b'{"reward": 1, "instance_config": [true]}',
        b'{"reward": 1.0, "mask_sample": {"a": [1, {"b": null}]}}',
        b'{"reward": {"a": 1}, "mask_sample": true}',
        b'{"reward": 1.0, "failure_reason": ["torn"]}',
        b'{"reward": 1.0, "failure_reason": "torn"}',
        b'{"reward": 1, "failure_reason": "torn", "error": "lost"}',
        b'{"reward": -9007199254740993}',
        b'{"reward": true}',
        b'{"reward": 1} ',
        b'{"reward": 1} trailing',
        b'{"reward": 1}{"reward": 0}',
        b'{"reward": 1}\x00',
        b'\t{"reward": 1}\r\n',
        b'\xef\xbb\xbf{"reward": 1}',
        '{"reward": 1}'.encode("utf-16"),
        '{"reward": 1}'.encode("utf-16-le"),
        b'{"x": ' + b"[" * 300 + b"]" * 300 + b"}",
        b'{"x": ' * 100_000,
        b"[" * 100_000,
    ],
)
def test_both_readers_agree_on_odd_lines(text):
    assert reading(FAST, text) == reading(SLOW, text)
    assert reading(FAST, memoryview(text)) == reading(SLOW, memoryview(text))


def test_reading_many_different_keys_does_not_fill_memory():
    for number in range(3000):
        FAST(
            json.dumps(
                {"reward": 1.0, f"key {number}": 1, "response": {"output": [{"type": f"{number}"}]}}
            ).encode()
        )
    assert len(fast._layouts) <= 1000
    assert len(fast._kinds) <= 1000
    assert FAST(json.dumps({"reward": 1.0, "k" * 3000: 1}).encode()).reward == 1.0
    assert not any(len(key) >= 2000 for keys in fast._layouts for key in keys)


def test_asking_for_the_fast_reader_without_its_package_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ContractError, match=r"pip install fastsimdjson"):
        make_read_row(fast=True)
    assert make_read_row()(b'{"reward": 1.0}').reward == 1.0
