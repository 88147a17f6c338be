"""Reading verl's rows: every place that speaks counts."""

import numpy as np
import pytest

from samplemask import ContractError
from samplemask_verl.verdicts import columns_as_mappings, read_rows

ONES = np.ones(3)


def test_a_flag_in_any_place_masks():
    reward_info = [{"mask_sample": True}, {"mask_sample": False}, None]
    agent = [{}, {"mask_sample": "true"}, {"mask_sample": False}]
    read = read_rows([reward_info, agent], ONES)
    assert read.masked_B.tolist() == [True, True, False]
    assert read.stated


def test_no_flag_anywhere_is_not_stated():
    read = read_rows([[{"acc": 1.0}, None, {}]], ONES)
    assert read.masked_B.tolist() == [False] * 3
    assert not read.stated
    assert read_rows([[{"failure_kind": "agent_timeout"}, None, None]], ONES).stated is False


def test_the_masking_places_kind_wins_over_a_remark():
    remark = [{"mask_sample": False, "failure_kind": "judge_unparseable"}] * 3
    verdict = [{"mask_sample": True, "failure_kind": "session_lost"}, {"mask_sample": True}, {}]
    read = read_rows([remark, verdict], ONES)
    assert read.kinds_B == ["session_lost", "judge_unparseable", "judge_unparseable"]
    assert read_rows([verdict, remark], ONES).kinds_B == [
        "session_lost",
        "judge_unparseable",
        "judge_unparseable",
    ]
    assert read.masked_B.tolist() == [True, True, False]


def test_a_reward_that_is_no_number_masks_and_keeps_the_environments_kind():
    rewards = np.array([np.nan, np.inf, 1.0])
    read = read_rows([[{"mask_sample": True, "failure_kind": "session_lost"}, {}, {}]], rewards)
    assert read.masked_B.tolist() == [True, True, False]
    assert read.kinds_B == ["session_lost", "samplemask:reward_not_finite", None]


def test_a_failure_class_masks_whatever_the_flag():
    read = read_rows([[{"_ng_failure_class": "judge_failed", "mask_sample": False}, None, None]], ONES)
    assert read.masked_B.tolist() == [True, False, False]
    assert read.kinds_B[0] == "judge_failed"


def test_a_nested_flag_masks():
    read = read_rows([[{"mask_sample": False, "instance_config": {"mask_sample": True}}, None, None]], ONES)
    assert read.masked_B.tolist() == [True, False, False]


def test_an_unreadable_flag_names_the_row():
    with pytest.raises(ContractError, match="row 2 of the batch: mask_sample: expected a bool"):
        read_rows([[None, None, {"mask_sample": "maybe"}]], ONES)


def test_columns_become_rows():
    columns = {"mask_sample": np.array([True, False]), "failure_kind": ["a:b", ""], "other": [1, 2]}
    assert columns_as_mappings(columns, 2) == [
        {"mask_sample": np.True_, "failure_kind": "a:b"},
        {"mask_sample": np.False_, "failure_kind": ""},
    ]
