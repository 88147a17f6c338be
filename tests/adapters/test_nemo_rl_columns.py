"""Verdicts as columns of a NeMo-RL batch: no host."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed here")
import torch
from hypothesis import given
from hypothesis import strategies as st

from samplemask import ContractError
from samplemask_nemo_rl.columns import (
    DETAILS,
    MASKED,
    RowVerdicts,
    all_measured,
    judged_by_reward,
    read_columns,
    read_results,
    write_columns,
)
from samplemask_nemo_rl.placeholders import MARK

texts = st.none() | st.text(min_size=1, max_size=30).map(lambda kind: f"server:{kind}")


@given(st.lists(st.tuples(st.booleans(), texts), min_size=1, max_size=8))
def test_verdicts_survive_the_way_through_columns(rows):
    results = [{"reward": 1.0, "mask_sample": flag, "failure_kind": kind} for flag, kind in rows]
    results += [{"reward": None}, {"reward": 1.0}, {"_ng_failure_class": "judge_failed"}]
    written = read_results(results)
    columns = {}
    write_columns(columns, written)
    found = read_columns({name: column[torch.arange(len(results))] for name, column in columns.items()})
    for name in ("masked_B", "measured_B", "stated_B", "failed_B"):
        assert getattr(found, name).tolist() == getattr(written, name).tolist()
    assert [kind and kind.rstrip("\0") for kind in written.kinds_B] == found.kinds_B


def test_a_column_that_nemo_rl_wrote_itself_is_enough():
    found = read_columns({MASKED: [True, False]})
    assert found.masked_B.tolist() == [True, False]
    assert found.measured_B.tolist() == found.stated_B.tolist() == [True, True]
    assert found.failed_B.tolist() == [False, False]
    assert found.kinds_B == [None, None]
    assert read_columns({MASKED: torch.tensor([[True], [False]])}).masked_B.tolist() == [True, False]
    assert read_columns({}) is None
    with pytest.raises(ContractError, match=r"^mask_sample: expected a bool"):
        read_columns({MASKED: ["maybe"]})


def test_a_response_without_any_verdict_field_states_nothing():
    assert read_results([{"reward": 1.0}, {"reward": 1.0, "mask_sample": False}]).stated_B.tolist() == [
        False,
        True,
    ]


def test_details_are_a_byte_of_bits_and_the_kind_in_utf8():
    columns = {}
    kinds = ["a:bX", None, "ä:" + "é" * 198]
    true, failed = np.array([True, True, True]), np.array([False, False, True])
    write_columns(
        columns,
        RowVerdicts(true, np.array([True, False, True]), np.array([True, True, False]), kinds, failed),
    )
    details = columns[DETAILS]
    assert (details.dtype, details.shape) == (torch.uint8, (3, 201))
    assert details[:, 0].tolist() == [3, 2, 5]
    assert bytes(details[0, 1:6].tolist()) == b"a:bX\0"
    assert read_columns(columns).failed_B.tolist() == [False, False, True]
    assert read_columns(columns).kinds_B == ["a:bX", None, "ä:" + "é" * 98 + "\N{REPLACEMENT CHARACTER}"]


def test_a_batch_of_no_rows_has_columns_of_flags():
    columns = {}
    write_columns(columns, read_results([]))
    for found in (read_results([]), read_columns(columns), read_columns({MASKED: []})):
        arrays = (found.masked_B, found.measured_B, found.stated_B, found.failed_B)
        assert [array.dtype for array in arrays] == [bool] * 4


def test_an_error_in_the_place_of_a_reward_is_a_recorded_failure():
    assert read_results([{"error": "lost"}, {"reward": None}]).failed_B.tolist() == [True, False]


def test_a_placeholder_is_not_measured():
    found = read_results([{"reward": 0.0, "mask_sample": True, MARK: True}, {"reward": 0.0}])
    assert found.measured_B.tolist() == [False, True]


def test_a_reward_that_is_not_finite_is_not_measured_and_leaves_an_earlier_kind():
    true = np.array([True, True, True])
    verdicts = RowVerdicts(np.array([True, False, False]), true, true, ["session_lost", None, "a:b"], ~true)
    judged = judged_by_reward(verdicts, np.array([np.nan, np.inf, 1.0]))
    assert judged.masked_B.tolist() == [True, True, False]
    assert judged.measured_B.tolist() == [False, False, True]
    assert judged.kinds_B == ["session_lost", "samplemask:reward_not_finite", "a:b"]
    assert judged_by_reward(all_measured(2), np.array([np.nan, 1.0])).masked_B.tolist() == [True, False]
