"""Reading verl's rows: every place that speaks counts."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samplemask import ContractError, read_verdict
from samplemask_verl.verdicts import _says_something, places_of, read_flags, read_rows

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
    assert (read.failed_B.dtype, read.failed_B.tolist()) == (bool, [True, False, False])


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


class NonTensorData:
    """Stands for tensordict's wrapper, which is known by its name."""

    def __init__(self, data):
        self.data = data


def test_values_are_taken_out_of_tensordicts_wrapper():
    fields = {"mask_sample": True, "failure_kind": "session_lost"}
    wrapped = {name: NonTensorData(value) for name, value in fields.items()}
    for place in ([fields], [NonTensorData(fields)], [wrapped], {"mask_sample": [wrapped["mask_sample"]]}):
        assert read_flags([place], 1).masked_B.tolist() == [True]
    assert read_flags([[NonTensorData(wrapped)]], 1).kinds_B == ["session_lost"]


def test_a_legacy_batch_has_five_places_in_the_order_of_trust():
    told, fields = [{"a": 1}, None], [{"reward_extra_info": {"b": 2}}, None]
    columns = {"reward_extra_info": told, "extra_fields": fields, "mask_sample": ["true", None]}
    tensors = {"mask_sample": np.array([True, False])}  # stands for a tensor
    places = places_of(SimpleNamespace(non_tensor_batch=columns, batch=tensors))
    assert places == [told, fields, [{"b": 2}, None], columns, {"mask_sample": [True, False]}]
    assert places_of(SimpleNamespace(non_tensor_batch={}, batch={})) == [{}]


def test_kinds_of_unmasked_rows_are_read_on_demand():
    place = [{"failure_kind": "a:b", "mask_sample": False}]
    assert read_flags([place], 1).kinds_B == [None]
    assert read_flags([place], 1, every_kind=True).kinds_B == ["a:b"]
    assert read_flags([], 1).stated is False


@pytest.mark.parametrize(
    ("column", "speaks"),
    [
        (np.array([0, 1]), [False, True]),
        ([0, 1, "", None, False], [False, True, False, False, False]),
        ([{}, "", None, False], [True, False, False, False]),
    ],
)
def test_a_value_that_is_not_plainly_false_none_or_empty_says_something(column, speaks):
    found = _says_something(column)
    assert (found.dtype, found.tolist()) == (bool, speaks)


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
