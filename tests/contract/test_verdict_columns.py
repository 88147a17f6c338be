"""Reading a batch from columns is reading its rows one by one, only faster."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samplemask import ContractError, read_columns, read_verdict, verdict_columns
from samplemask.verdict_columns import FIELDS


def test_a_batch_of_every_kind():
    read = read_columns(
        {
            "reward": [1.0, 0.0, 0.0, None, math.inf, 1],
            "mask_sample": [False, True, False, False, False, None],
            "instance_config": [None, None, {"mask_sample": "true"}, {}, None, None],
            "failure_kind": ["", "session_lost", None, None, "agent_timeout", "judge_unparseable"],
        }
    )
    assert read.masked_B.tolist() == [False, True, True, True, True, False]
    assert read.kinds_B.tolist() == [
        None,
        "session_lost",
        None,
        "samplemask:reward_missing",
        "samplemask:reward_not_finite",
        "judge_unparseable",
    ]
    np.testing.assert_array_equal(read.reward_B, [1.0, 0.0, 0.0, np.nan, np.nan, 1.0])


def test_arrays_are_columns_too():
    read = read_columns(
        {"reward": np.array([1, 0, 2]), "mask_sample": np.array([False, True, False]), "other": [1]}
    )
    assert read.masked_B.tolist() == [False, True, False]
    assert read.reward_B.tolist() == [1.0, 0.0, 2.0]
    assert read_columns({}).masked_B.shape == (0,)


def test_arrays_of_objects_and_of_text_are_read_like_lists():
    read = read_columns({"reward": np.array([1.0, None, math.nan], dtype=object)})
    assert read.kinds_B.tolist() == [None, "samplemask:reward_missing", "samplemask:reward_not_finite"]
    assert (read.masked_B.dtype, read.failed_B.dtype) == (bool, bool)
    failed = read_columns({"reward": [1.0, 0.0], "_ng_failure_class": [None, "judge_failed"]})
    assert failed.failed_B.tolist() == [False, True]
    assert read_columns({"reward": np.array(["0.5", "2"])}).reward_B.tolist() == [0.5, 2.0]
    with pytest.raises(ContractError, match="row 1 of the batch: reward: expected a number"):
        read_columns({"reward": np.array(["0.5", "much"])})
    with pytest.raises(ContractError, match="row 0 of the batch: mask_sample: expected a bool"):
        read_columns({"reward": [0.0, 0.0], "mask_sample": np.array([0.5, 1.0])})


def test_without_a_reward_column_no_row_has_one():
    read = read_columns({"mask_sample": [False, True]})
    assert read.masked_B.tolist() == [True, True]
    assert read.kinds_B.tolist() == ["samplemask:reward_missing", None]


def test_the_first_row_that_cannot_be_read_is_named():
    with pytest.raises(ContractError, match="row 2 of the batch: mask_sample: expected a bool"):
        read_columns({"reward": [0.0] * 5, "mask_sample": [True, False, "maybe", [1], "perhaps"]})
    with pytest.raises(ContractError, match="row 1 of the batch: reward: expected a number"):
        read_columns({"reward": [0.0, "1_0", "more"], "mask_sample": [False] * 3})


def test_columns_of_different_length_are_an_error():
    message = r"^columns: expected one value per row .*'reward': \(2,\).* Pass columns of equal length\.$"
    with pytest.raises(ContractError, match=message):
        read_columns({"reward": [0.0, 1.0], "mask_sample": np.array([True])})
    with pytest.raises(ContractError, match=r"\(2, 1\)"):
        read_columns({"reward": np.zeros((2, 1))})


def test_many_different_values_in_every_column():
    rows = 3000
    kinds = [f"server:kind_{row}" for row in range(rows)]
    columns = {
        "reward": [str(row) for row in range(rows)],
        "mask_sample": [np.array(row % 2 == 0) for row in range(rows)],
        "failure_kind": kinds,
        "_ng_failure_class": kinds,
        "instance_config": [{"mask_sample": np.array(1)}] * rows,
    }
    read = read_columns(columns)
    assert read.masked_B.all()
    assert read.kinds_B.tolist() == kinds
    assert read.reward_B[-1] == rows - 1


EVERY_NUMBER = [0, 0.5, True, None]
EVERY_WORD = [True, np.True_, 1, 1.0, "true", None]


@pytest.mark.parametrize(
    ("columns", "verdicts"),
    [
        ({"reward": EVERY_NUMBER}, 2),
        ({"reward": np.arange(4, dtype=np.longdouble)}, 1),
        ({"reward": [0.0] * 6, "mask_sample": EVERY_WORD}, 3),
        ({"reward": [0.0] * 2, "mask_sample": np.array([0, 1])}, 2),
        ({"reward": [0.0] * 3, "instance_config": [None, {"mask_sample": True, "n": 1}, {}]}, 2),
    ],
)
def test_each_different_verdict_of_a_batch_is_read_once(columns, verdicts, monkeypatch):
    calls = []
    monkeypatch.setattr(
        verdict_columns, "read_verdict", lambda said: calls.append(said) or read_verdict(said)
    )
    rows = {name: np.tile(v, 50) if isinstance(v, np.ndarray) else v * 50 for name, v in columns.items()}
    assert len(read_columns(rows).masked_B) == 50 * len(columns["reward"])
    assert len(calls) == verdicts


def test_combinations_are_numbered_anew_before_they_outgrow_an_integer(monkeypatch):
    passed = []

    def group_codes(codes, rows, numbered=verdict_columns.group_codes):
        passed.append((codes.dtype.kind, int(codes.max())))
        return numbered(codes, rows)

    monkeypatch.setattr(verdict_columns, "group_codes", group_codes)
    monkeypatch.setattr(verdict_columns, "_MAX_COMBINED", 16)
    flags = [[{"mask_sample": flag} for flag in (None, True, 0, "1")], [None, True, 0, "1"]]
    rows = list(itertools.product(*flags, ["a:a", "a:b", "a:c", "a:d"]))
    configs, tops, kinds = (list(column) for column in zip(*rows, strict=True))
    read = read_columns({"mask_sample": tops, "instance_config": configs, "failure_kind": kinds})
    assert passed == [("i", 15), ("i", 63)]
    assert read.kinds_B[0] == "samplemask:reward_missing"  # neither flag masks
    assert read.kinds_B[-4:].tolist() == ["a:a", "a:b", "a:c", "a:d"]


ANYTHING = {
    "reward": st.sampled_from(
        [1.0, 0, True, None, math.nan, math.inf, 10**400, "0.5", "1_0", np.float32(2), "x"]
    ),
    "mask_sample": st.sampled_from([True, False, None, 0, 1.0, "True", "false", np.True_, np.array(1), "x"]),
    "instance_config": st.sampled_from([None, {}, {"mask_sample": True}, {"mask_sample": "0"}, 3]),
    "failure_kind": st.sampled_from([None, "", "session_lost", "a:b", 7]),
    "_ng_failure_class": st.sampled_from([None, "judge_failed", ""]),
}
ROWS = st.sets(st.sampled_from(FIELDS)).flatmap(
    lambda names: st.lists(st.fixed_dictionaries({name: ANYTHING[name] for name in names}), min_size=1)
)


@given(ROWS)
def test_columns_say_what_their_rows_say(rows):
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    if not columns:
        return
    try:
        verdicts = [read_verdict(row) for row in rows]
    except ContractError:
        with pytest.raises(ContractError, match="of the batch"):
            read_columns(columns)
        return
    read = read_columns(columns)
    assert read.masked_B.tolist() == [verdict.mask_sample for verdict in verdicts]
    assert read.kinds_B.tolist() == [verdict.failure_kind for verdict in verdicts]
    rewards = [math.nan if verdict.reward is None else verdict.reward for verdict in verdicts]
    np.testing.assert_array_equal(read.reward_B, rewards)
