"""Verdicts of JSON text and bytes, and the text fields of a verdict."""

import json
from collections import OrderedDict
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samplemask import ContractError, Verdict, read_verdict


@pytest.mark.parametrize("field", ["failure_kind", "failure_reason", "_ng_failure_class"])
@pytest.mark.parametrize("value", [1, True, [], {}, b"text", 0.0])
def test_text_fields_refuse_what_is_not_text(field, value):
    with pytest.raises(ContractError, match=rf"^{field}: expected a string or null, found"):
        read_verdict({"reward": 1, field: value})


def test_empty_text_is_none():
    verdict = read_verdict({"reward": 1, "failure_kind": "", "failure_reason": ""})
    assert verdict == Verdict(1.0, False)


@pytest.mark.parametrize(("length", "kept"), [(1999, 1999), (2000, 2000), (2001, 2000), (10**6, 2000)])
def test_a_reason_is_kept_to_2000_characters(length, kept):
    verdict = read_verdict({"reward": 1, "failure_reason": "x" * (length - 1) + "é"})
    assert len(verdict.failure_reason) == kept


def test_a_kind_is_kept_to_200_characters():
    assert read_verdict({"reward": 1, "failure_kind": "a:" + "k" * 500}).failure_kind == "a:" + "k" * 198


def test_half_an_emoji_becomes_a_question_mark():
    for response in ({"reward": 1, "failure_reason": "a\ud83d"}, '{"reward":1,"failure_reason":"a\\ud83d"}'):
        assert read_verdict(response).failure_reason == "a?"
    assert read_verdict('{"reward":1,"failure_reason":"a\ud83d"}').failure_reason == "a?"


@pytest.mark.parametrize("make", [dict, OrderedDict, MappingProxyType])
def test_any_mapping_is_read(make):
    assert read_verdict(make({"reward": 1, "mask_sample": True})).mask_sample is True


@pytest.mark.parametrize("encode", [str, str.encode, lambda text: bytearray(text.encode())])
def test_one_json_object_is_read_from_text_and_bytes(encode):
    text = '{"reward": 0.5, "mask_sample": true, "failure_kind": "session_lost", "extra": [1, {"a": null}]}'
    assert read_verdict(encode(text)) == Verdict(0.5, True, "session_lost", None, ("mask_sample",), False)


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        ("NaN", "samplemask:reward_not_finite"),
        ("Infinity", "samplemask:reward_not_finite"),
        ("-Infinity", "samplemask:reward_not_finite"),
        ("1e400", "samplemask:reward_not_finite"),
        ("-1e400", "samplemask:reward_not_finite"),
        ("1" + "0" * 400, "samplemask:reward_not_finite"),
        ("null", "samplemask:reward_missing"),
    ],
)
def test_json_numbers_that_are_no_reward_mask(number, kind):
    verdict = read_verdict('{"reward": %s}' % number)  # noqa: UP031 - braces
    assert verdict == Verdict(None, True, kind, None, ("reward",), False)


def test_a_tiny_json_number_is_zero_as_written():
    assert read_verdict('{"reward": 1e-400}').reward == 0.0


def test_the_last_of_duplicate_keys_speaks_as_in_json_readers():
    assert read_verdict('{"reward": 1, "mask_sample": false, "mask_sample": true}').mask_sample is True


@pytest.mark.parametrize("mark", ["\ufeff", b"\xef\xbb\xbf"], ids=["text", "bytes"])
def test_one_byte_order_mark_is_read_over(mark):
    body = '{"reward": 1}' if isinstance(mark, str) else b'{"reward": 1}'
    assert read_verdict(mark + body) == Verdict(1.0, False)
    with pytest.raises(ContractError, match=r"^verify response: expected one JSON object"):
        read_verdict(mark + mark + body)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "null",
        "1",
        "true",
        '"text"',
        "[]",
        '[{"reward": 1}]',
        "{",
        '{"reward": 1',
        '{"reward": 1}{"reward": 2}',
        '{"reward": 1}\n{"reward": 2}',
        "{'reward': 1}",
        '{"reward": }',
        "<html>502</html>",
        b"\xff\xfe\xfd",
        b'{"failure_reason": "\xff"}',
        b"\x00",
        "[" * 1_000_000,
        '{"a":' * 200_000,
        b"[" * 500_000 + b"]" * 500_000,
        '{"reward": ' + "9" * 5_000 + "}",
    ],
    ids=lambda text: repr(text[:20]),
)
def test_text_that_is_not_one_json_object_is_refused(text):
    with pytest.raises(ContractError, match=r"^verify response: expected one JSON object, found") as error:
        read_verdict(text)
    assert len(str(error.value)) < 1_000


def test_fields_nobody_reads_may_be_deep_and_large():
    deep = '{"reward": 1, "x": ' + "[" * 150 + "]" * 150 + ', "y": "' + "z" * 1_000_000 + '"}'
    assert read_verdict(deep) == Verdict(1.0, False)


@pytest.mark.parametrize("response", [None, 1, [], [{"reward": 1}], object(), memoryview(b"{}"), dict, ()])
def test_anything_else_is_no_verify_response(response):
    with pytest.raises(ContractError, match=r"^verify response: expected a mapping, a pydantic model or one"):
        read_verdict(response)


FLAGS = st.sampled_from([None, True, False, 0, 1, "true", "False"])


@given(st.floats(allow_nan=False, allow_infinity=False), FLAGS, FLAGS)
def test_a_mapping_and_its_json_read_the_same(reward, top, nested):
    response = {"reward": reward, "mask_sample": top, "instance_config": {"mask_sample": nested}}
    text = json.dumps(response)
    assert read_verdict(text) == read_verdict(text.encode()) == read_verdict(response)


def test_reading_does_not_change_the_response():
    response = {"reward": "1", "mask_sample": "true", "instance_config": {"mask_sample": None}}
    read_verdict(response)
    assert response == {"reward": "1", "mask_sample": "true", "instance_config": {"mask_sample": None}}
