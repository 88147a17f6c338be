"""Reading verl's rows: every place that speaks counts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samplemask import ContractError, read_verdict
from samplemask_verl.verdicts import read_flags, read_rows

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


def test_columns_are_read_like_mappings():
    columns = {"mask_sample": np.array([True, False]), "failure_kind": ["a:b", ""], "other": [1, 2]}
    read = read_flags([columns], 2, every_kind=True)
    assert read.masked_B.tolist() == [True, False]
    assert read.kinds_B == ["a:b", None]
    assert read.stated
    assert read_flags([{"other": [1, 2]}], 2).stated is False


FLAGS = st.sampled_from([True, False, None, 0, 1, "True", "false", "", np.True_, np.False_, np.array(True)])
KINDS = st.sampled_from([None, "", "session_lost", "a:b"])
CONFIGS = st.sampled_from([None, {}, {"mask_sample": True}, {"mask_sample": "0"}])


@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "mask_sample": FLAGS.filter(lambda flag: not isinstance(flag, str) or flag),
                "failure_kind": KINDS,
                "instance_config": CONFIGS,
            },
        ),
        min_size=1,
        max_size=6,
    )
)
def test_reading_a_column_at_once_is_reading_its_rows_one_by_one(rows):
    read = read_flags([rows], len(rows), every_kind=True)
    verdicts = [read_verdict({**row, "reward": 0.0}) for row in rows]
    assert read.masked_B.tolist() == [verdict.mask_sample for verdict in verdicts]
    assert read.kinds_B == [verdict.failure_kind for verdict in verdicts]
    names = sorted({name for row in rows for name in row})
    as_columns = {name: [row.get(name) for row in rows] for name in names}
    again = read_flags([as_columns], len(rows), every_kind=True)
    assert again.masked_B.tolist() == read.masked_B.tolist()
    assert again.kinds_B == read.kinds_B
