"""What one verify response says: every reading rule, with hand-written answers."""

import json
import math
import pickle
from collections import OrderedDict
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samplemask import ContractError, Verdict, read_verdict

TRUE_SPELLINGS = [
    True,
    1,
    1.0,
    "true",
    "True",
    "TRUE",
    "tRuE",
    "1",
    np.bool_(True),
    np.int64(1),
    np.uint8(1),
    np.float32(1.0),
    np.longdouble(1),
    np.str_("true"),
    np.array(True),
    np.array(1),
    np.array("True"),
]
FALSE_SPELLINGS = [
    False,
    0,
    0.0,
    -0.0,
    "false",
    "False",
    "FALSE",
    "0",
    np.bool_(False),
    np.int64(0),
    np.float64(0.0),
    np.array(False),
    np.array(0),
    np.array("0"),
]
REFUSED_SPELLINGS = [
    2,
    -1,
    0.5,
    math.nan,
    math.inf,
    10**400,
    "",
    " true",
    "true ",
    "yes",
    "no",
    "on",
    "t",
    "T",
    "None",
    "null",
    "1.0",
    "nan",
    b"true",
    [],
    [True],
    (),
    {},
    {"mask_sample": True},
    object(),
    1j,
    np.array([True]),
    np.array([]),
    np.array([[1]]),
    np.array(2),
    np.array("yes"),
    np.complex64(1),
    np.datetime64(1, "ns"),
    np.timedelta64(1, "ns"),
]


def test_a_plain_reward_is_scored():
    assert read_verdict({"reward": 0.25}) == Verdict(0.25, False, None, None, (), False)


def test_a_true_zero_stays_a_zero():
    verdict = read_verdict({"reward": 0.0, "mask_sample": False})
    assert verdict.reward == 0.0
    assert verdict.reward is not None
    assert verdict.mask_sample is False


def test_the_top_level_flag_masks():
    verdict = read_verdict({"reward": 0.0, "mask_sample": True, "failure_kind": "session_lost"})
    assert verdict == Verdict(0.0, True, "session_lost", None, ("mask_sample",), False)


def test_the_nested_flag_masks_over_a_top_level_default_false():
    verdict = read_verdict({"reward": 1, "mask_sample": False, "instance_config": {"mask_sample": True}})
    assert verdict == Verdict(1.0, True, None, None, ("instance_config.mask_sample",), True)


def test_the_nested_flag_alone_masks_without_conflict():
    verdict = read_verdict({"reward": 1, "instance_config": {"mask_sample": True}})
    assert verdict.sources == ("instance_config.mask_sample",)
    assert verdict.conflict is False


def test_both_flags_true_name_both_sources():
    verdict = read_verdict({"reward": 1, "mask_sample": True, "instance_config": {"mask_sample": True}})
    assert verdict.sources == ("mask_sample", "instance_config.mask_sample")
    assert verdict.conflict is False


def test_a_nested_false_does_not_unmask_and_is_a_conflict():
    verdict = read_verdict({"reward": 1, "mask_sample": True, "instance_config": {"mask_sample": False}})
    assert verdict.mask_sample is True
    assert verdict.sources == ("mask_sample",)
    assert verdict.conflict is True


def test_both_flags_false_agree():
    verdict = read_verdict({"reward": 1, "mask_sample": False, "instance_config": {"mask_sample": False}})
    assert verdict == Verdict(1.0, False, None, None, (), False)


@pytest.mark.parametrize("stated", [None, "absent"])
def test_a_flag_that_is_null_or_absent_does_not_speak(stated):
    top = {} if stated == "absent" else {"mask_sample": None}
    verdict = read_verdict({"reward": 1, **top, "instance_config": {"mask_sample": True}})
    assert verdict.mask_sample is True
    assert verdict.conflict is False


@pytest.mark.parametrize("config", [None, {}, {"mask_sample": None}, {"other": 1}])
def test_an_empty_instance_config_says_nothing(config):
    assert read_verdict({"reward": 1, "instance_config": config}) == Verdict(1.0, False)


@pytest.mark.parametrize("config", [[], [{"mask_sample": True}], 1, True, "mask_sample"])
def test_an_instance_config_that_is_no_object_is_refused(config):
    with pytest.raises(ContractError, match=r"instance_config: expected an object or null, found .* Send it"):
        read_verdict({"reward": 1, "instance_config": config})


@pytest.mark.parametrize("flag", TRUE_SPELLINGS, ids=repr)
def test_every_spelling_of_true_masks_at_both_places(flag):
    assert read_verdict({"reward": 1, "mask_sample": flag}).mask_sample is True
    assert read_verdict({"reward": 1, "instance_config": {"mask_sample": flag}}).mask_sample is True


@pytest.mark.parametrize("flag", FALSE_SPELLINGS, ids=repr)
def test_every_spelling_of_false_scores_at_both_places(flag):
    assert read_verdict({"reward": 1, "mask_sample": flag}).mask_sample is False
    assert read_verdict({"reward": 1, "instance_config": {"mask_sample": flag}}).mask_sample is False


@pytest.mark.parametrize("flag", REFUSED_SPELLINGS, ids=lambda flag: type(flag).__name__)
def test_any_other_flag_is_refused_with_its_place(flag):
    with pytest.raises(ContractError, match=r"^mask_sample: expected a bool, 0 or 1"):
        read_verdict({"reward": 1, "mask_sample": flag})
    with pytest.raises(ContractError, match=r"^instance_config\.mask_sample: expected a bool"):
        read_verdict({"reward": 1, "instance_config": {"mask_sample": flag}})


def test_a_refused_flag_names_the_field_the_value_and_what_is_accepted():
    with pytest.raises(ContractError) as error:
        read_verdict({"reward": 1, "mask_sample": "maybe"})
    assert str(error.value) == (
        "mask_sample: expected a bool, 0 or 1, a 0-d array or tensor of these, or "
        '"true"/"false"/"1"/"0", found \'maybe\' (str). '
        "Set it to True (masked), False (scored) or leave it out."
    )


def test_an_unreadable_nested_flag_is_refused_although_the_top_level_masks():
    with pytest.raises(ContractError, match=r"^instance_config\.mask_sample"):
        read_verdict({"reward": 1, "mask_sample": True, "instance_config": {"mask_sample": "maybe"}})


def test_a_zero_dimensional_array_of_none_does_not_speak():
    assert read_verdict({"reward": 1, "mask_sample": np.array(None)}) == Verdict(1.0, False)


def test_a_zero_dimensional_array_that_holds_itself_is_refused():
    loop = np.array(None, dtype=object)
    loop[()] = loop
    with pytest.raises(ContractError, match=r"^mask_sample"):
        read_verdict({"reward": 1, "mask_sample": loop})
    with pytest.raises(ContractError, match=r"^reward"):
        read_verdict({"reward": loop})


def test_torch_tensors_of_no_dimension_are_flags_and_rewards():
    torch = pytest.importorskip("torch")
    verdict = read_verdict({"reward": torch.tensor(0.5), "mask_sample": torch.tensor(True)})
    assert verdict == Verdict(0.5, True, None, None, ("mask_sample",), False)
    with pytest.raises(ContractError, match=r"^mask_sample"):
        read_verdict({"reward": 1, "mask_sample": torch.tensor([True])})
    with pytest.raises(ContractError, match=r"^mask_sample"):
        read_verdict({"reward": 1, "mask_sample": torch.tensor(1, device="meta")})


@pytest.mark.parametrize(
    ("value", "reward"),
    [
        (1, 1.0),
        (-3, -3.0),
        (0, 0.0),
        (True, 1.0),
        (False, 0.0),
        ("0.5", 0.5),
        (" 1e2 ", 100.0),
        (np.float32(0.5), 0.5),
        (np.int8(-2), -2.0),
        (np.bool_(True), 1.0),
        (np.array(0.25), 0.25),
        (np.array("0.75"), 0.75),
        (np.longdouble(2), 2.0),
        (1e308, 1e308),
        (5e-324, 5e-324),
    ],
)
def test_every_number_is_a_reward(value, reward):
    verdict = read_verdict({"reward": value})
    assert verdict == Verdict(reward, False)
    assert type(verdict.reward) is float


@pytest.mark.parametrize("response", [{}, {"reward": None}, {"reward": np.array(None)}])
def test_a_missing_reward_masks_and_never_becomes_zero(response):
    verdict = read_verdict(response)
    assert verdict == Verdict(None, True, "samplemask:reward_missing", None, ("reward",), False)


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        -math.inf,
        "nan",
        "-inf",
        "1e400",
        10**400,
        -(10**400),
        np.float32("nan"),
        np.array(math.inf),
        np.float64("-inf"),
    ],
    ids=lambda value: f"{type(value).__name__}",
)
def test_a_reward_that_is_not_finite_masks(value):
    verdict = read_verdict({"reward": value, "mask_sample": False})
    assert verdict == Verdict(None, True, "samplemask:reward_not_finite", None, ("reward",), False)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "abc",
        "1,5",
        [],
        [1.0],
        {},
        {"total": 1},
        object(),
        b"1",
        1j,
        np.array([1.0]),
        np.complex64(1 + 1j),
        np.timedelta64(1, "s"),
        np.datetime64(1, "ns"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_reward_that_is_no_number_is_refused_on_an_unmasked_row(value):
    with pytest.raises(
        ContractError, match=r"^reward: expected a number or null, found .* Return one number"
    ):
        read_verdict({"reward": value})


@pytest.mark.parametrize("value", ["", "abc", [1.0], {}, math.nan, None, 10**400, np.complex64(1j)])
def test_the_reward_of_a_masked_row_may_be_anything(value):
    verdict = read_verdict({"reward": value, "mask_sample": True, "failure_kind": "verifier_error"})
    assert verdict == Verdict(None, True, "verifier_error", None, ("mask_sample",), False)


def test_a_masked_row_keeps_its_finite_reward():
    assert read_verdict({"reward": 9, "mask_sample": True}).reward == 9.0


def test_a_missing_reward_with_an_environment_kind_says_what_the_environment_said():
    verdict = read_verdict({"failure_kind": "judge_failed"})
    assert verdict.failure_kind == "samplemask:reward_missing"
    assert verdict.failure_reason == "the environment said failure_kind='judge_failed'"
    kept = read_verdict({"failure_kind": "judge_failed", "failure_reason": "HTTP 500"})
    assert kept.failure_reason == "HTTP 500"


def test_a_failure_kind_alone_never_masks():
    verdict = read_verdict({"reward": 0.4, "failure_kind": "judge_failed", "failure_reason": "1 of 3 votes"})
    assert verdict == Verdict(0.4, False, "judge_failed", "1 of 3 votes", (), False)


def test_a_metrics_flag_is_no_verdict_but_is_reported(caplog, monkeypatch):
    monkeypatch.setattr("samplemask.failure_kinds._reported", set())
    for _ in range(2):
        assert read_verdict({"reward": 1, "metrics": {"mask_sample": True}}) == Verdict(1.0, False)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        (
            "WARNING",
            "a response has metrics.mask_sample but no mask_sample: it is not part of the contract and masks "
            "nothing. Copy it to the top level of the verify response. Said once.",
        )
    ]


def test_a_metrics_flag_beside_a_stated_flag_is_not_reported(caplog, monkeypatch):
    monkeypatch.setattr("samplemask.failure_kinds._reported", set())
    read_verdict({"reward": 1, "mask_sample": False, "metrics": {"mask_sample": True}})
    read_verdict({"reward": 1, "metrics": {"mask_sample": None}})
    read_verdict({"reward": 1, "metrics": [("mask_sample", True)]})
    assert caplog.records == []


@pytest.mark.parametrize("flag", [None, False, True])
def test_a_failure_class_masks_whatever_the_flag(flag):
    verdict = read_verdict({"reward": 0.0, "mask_sample": flag, "_ng_failure_class": "judge_failed"})
    assert verdict.mask_sample is True
    assert verdict.failure_kind == "judge_failed"
    assert verdict.sources == (("mask_sample", "_ng_failure_class") if flag else ("_ng_failure_class",))
    assert verdict.conflict is False


def test_a_given_kind_wins_over_the_failure_class():
    verdict = read_verdict({"_ng_failure_class": "agent_run_error", "failure_kind": "session_lost"})
    assert verdict == Verdict(None, True, "session_lost", None, ("_ng_failure_class",), False)


def test_all_three_places_are_named_in_order():
    response = {
        "reward": 0.0,
        "mask_sample": True,
        "instance_config": {"mask_sample": True},
        "_ng_failure_class": "judge_failed",
    }
    places = ("mask_sample", "instance_config.mask_sample", "_ng_failure_class")
    assert read_verdict(response).sources == places


def test_an_empty_failure_class_still_marks_a_failed_attempt():
    verdict = read_verdict({"reward": 1.0, "_ng_failure_class": ""})
    assert verdict == Verdict(1.0, True, None, None, ("_ng_failure_class",), False)


def test_a_failure_class_of_null_says_nothing():
    assert read_verdict({"reward": 1.0, "_ng_failure_class": None}) == Verdict(1.0, False)


def test_a_failure_class_can_be_counted_as_a_measured_zero():
    response = {"reward": 0.7, "mask_sample": True, "_ng_failure_class": "agent_timeout"}
    verdict = read_verdict(response, failures_as_zero=["agent_timeout"])
    assert verdict == Verdict(0.0, False, "agent_timeout", None, (), False)


def test_another_failure_class_stays_masked():
    verdict = read_verdict({"_ng_failure_class": "judge_failed"}, failures_as_zero={"agent_timeout"})
    assert verdict.mask_sample is True
    assert verdict.reward is None


def test_opting_in_does_not_touch_a_row_without_a_failure_class():
    response = {"reward": 1.0, "mask_sample": True, "failure_kind": "agent_timeout"}
    assert read_verdict(response, failures_as_zero=["agent_timeout"]).mask_sample is True


def test_one_string_is_no_collection_of_failure_classes():
    with pytest.raises(ContractError, match=r"^failures_as_zero: expected a collection"):
        read_verdict({"_ng_failure_class": "judge"}, failures_as_zero="judge_failed")


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


def test_utf8_with_a_byte_order_mark_is_read():
    assert read_verdict(b'\xef\xbb\xbf{"reward": 1}') == Verdict(1.0, False)


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


def test_a_verdict_is_a_frozen_value_that_pickles():
    verdict = read_verdict({"reward": 1, "mask_sample": True})
    assert pickle.loads(pickle.dumps(verdict)) == verdict
    assert len({verdict, read_verdict({"reward": 1, "mask_sample": True})}) == 1
    with pytest.raises(AttributeError):
        verdict.mask_sample = False


def test_reading_does_not_change_the_response():
    response = {"reward": "1", "mask_sample": "true", "instance_config": {"mask_sample": None}}
    read_verdict(response)
    assert response == {"reward": "1", "mask_sample": "true", "instance_config": {"mask_sample": None}}


FLAGS = st.sampled_from([None, True, False, 0, 1, "true", "False"])
REWARDS = st.none() | st.floats() | st.integers() | st.booleans()


@given(REWARDS, FLAGS, FLAGS, st.none() | st.text(max_size=5))
def test_the_decision_follows_from_the_flags_the_class_and_the_reward(reward, top, nested, failure_class):
    response = {"reward": reward, "mask_sample": top, "instance_config": {"mask_sample": nested}}
    verdict = read_verdict({**response, "_ng_failure_class": failure_class})
    asked = top in (True, 1, "true") or nested in (True, 1, "true") or failure_class is not None
    measured = verdict.reward is not None and math.isfinite(verdict.reward)
    assert verdict.mask_sample == (asked or not measured)
    assert verdict.mask_sample == bool(verdict.sources)


@given(st.floats(allow_nan=False, allow_infinity=False), FLAGS, FLAGS)
def test_a_mapping_and_its_json_read_the_same(reward, top, nested):
    response = {"reward": reward, "mask_sample": top, "instance_config": {"mask_sample": nested}}
    text = json.dumps(response)
    assert read_verdict(text) == read_verdict(text.encode()) == read_verdict(response)


class Tensor:
    """Like a torch tensor of no dimension: its dtype has no kind."""

    ndim, dtype = 0, object()

    def __init__(self, value):
        self.value = value

    def item(self):
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


def test_a_zero_dimensional_tensor_is_read_through_its_item():
    verdict = read_verdict({"reward": Tensor(0.5), "mask_sample": Tensor(True)})
    assert verdict == Verdict(0.5, True, None, None, ("mask_sample",), False)


def test_a_tensor_that_cannot_say_what_it_holds_is_refused():
    with pytest.raises(ContractError, match=r"^mask_sample"):
        read_verdict({"reward": 1, "mask_sample": Tensor(RuntimeError("meta tensor"))})
    with pytest.raises(ContractError, match=r"^reward"):
        read_verdict({"reward": Tensor(Tensor(1.0))})


def test_an_object_that_has_a_dimension_but_no_item_is_refused():
    class Shape:
        ndim = 0

    class NoType:
        ndim = 0

        def item(self):
            return True

    with pytest.raises(ContractError, match=r"^mask_sample"):
        read_verdict({"reward": 1, "mask_sample": Shape()})
    assert read_verdict({"reward": 1, "mask_sample": NoType()}).mask_sample is True


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (
            {"reward": "x"},
            "reward: expected a number or null, found 'x' (str). "
            "Return one number, or mask_sample=True if there is none.",
        ),
        (
            {"reward": 1, "instance_config": 3},
            "instance_config: expected an object or null, found 3 (int). "
            "Send it as an object, or leave it out.",
        ),
        (
            {"reward": 1, "failure_kind": 3},
            "failure_kind: expected a string or null, found 3 (int). Send text, or leave it out.",
        ),
        (
            3,
            "verify response: expected a mapping, a pydantic model or one JSON object, found 3 (int). "
            "Pass the response body.",
        ),
        ("[]", "verify response: expected one JSON object, found [] (list). Pass one response at a time."),
    ],
)
def test_every_refusal_says_where_expected_found_and_what_to_do(response, message):
    with pytest.raises(ContractError) as error:
        read_verdict(response)
    assert str(error.value) == message
