"""What one verify response says: every reading rule, with hand-written answers."""

import math
import pickle

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


def test_a_verdict_is_a_frozen_value_that_pickles():
    verdict = read_verdict({"reward": 1, "mask_sample": True})
    assert pickle.loads(pickle.dumps(verdict)) == verdict
    assert len({verdict, read_verdict({"reward": 1, "mask_sample": True})}) == 1
    with pytest.raises(AttributeError):
        verdict.mask_sample = False


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
