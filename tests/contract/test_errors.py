"""Errors: their family, their words, and that they survive pickling."""

import copy
import pickle

import pytest

from samplemask import ContractError, OutageError, SampleMaskError, SeamError
from samplemask.errors import RefillError, shown


class NoRepr:
    def __repr__(self):
        raise RuntimeError("no picture")


def test_every_error_is_a_samplemask_error():
    assert issubclass(ContractError, SampleMaskError)
    assert issubclass(SeamError, SampleMaskError)
    assert issubclass(OutageError, SampleMaskError)
    assert issubclass(SampleMaskError, Exception)


def test_a_contract_error_is_also_a_value_error():
    assert issubclass(ContractError, ValueError)
    assert not issubclass(SeamError, ValueError)
    assert not issubclass(OutageError, ValueError)


def test_a_contract_error_says_where_what_was_expected_found_and_to_do():
    error = ContractError.of("reward", "a number", "abc", "Return one.")
    assert str(error) == "reward: expected a number, found 'abc' (str). Return one."


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1, "1 (int)"),
        (None, "None (NoneType)"),
        ("x" * 118, "'" + "x" * 118 + "' (str)"),
        ("x" * 119, "'" + "x" * 118 + "… (str)"),
        (NoRepr(), "<value without a usable repr> (NoRepr)"),
        (10**5000, "<value without a usable repr> (int)"),
    ],
    ids=["int", "None", "fits", "cut", "broken repr", "huge int"],
)
def test_a_value_is_shown_with_its_type_and_cut_to_120_characters(value, text):
    assert shown(value) == text


def test_the_cut_is_at_the_limit_given():
    assert shown("abcdef", limit=5) == "'abc… (str)"


def test_an_outage_survives_pickling_and_copying():
    error = OutageError(60, 80, {"session_lost": 60}, 0.5)
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert isinstance(twin, OutageError)
        assert (twin.masked, twin.rows, twin.kinds, twin.limit) == (60, 80, {"session_lost": 60}, 0.5)
        assert str(twin) == str(error)


def test_an_outage_keeps_its_own_counts():
    kinds = {"session_lost": 60}
    error = OutageError(60, 80, kinds, 0.5)
    kinds["session_lost"] = 0
    assert error.kinds == {"session_lost": 60}


def test_a_refill_error_says_what_was_replaced_and_survives_pickling():
    error = RefillError(7, 8, {"session_lost": 7}, groups=3, limit=2, step=11)
    assert str(error) == (
        "outage: step 11 would replace 3 prompt groups, more than max_refills=2 allows; "
        "7 of their 8 rollouts are masked. Per failure kind: session_lost: 7. "
        "Repair the environment and resume from the last checkpoint, "
        "or set max_refills=0 to train on what there is."
    )
    twin = pickle.loads(pickle.dumps(error))
    assert (type(twin), str(twin), vars(twin)) == (RefillError, str(error), vars(error))
    assert vars(twin) == {
        "masked": 7, "rows": 8, "kinds": {"session_lost": 7}, "groups": 3, "limit": 2, "step": 11
    }  # fmt: skip


@pytest.mark.parametrize("error", [ContractError("a: b"), SeamError("c"), SampleMaskError("d")])
def test_other_errors_survive_pickling(error):
    twin = pickle.loads(pickle.dumps(error))
    assert (type(twin), str(twin)) == (type(error), str(error))


def test_an_outage_without_kinds_says_so():
    assert "Per failure kind: none given. Repair" in str(OutageError(60, 80, {}, 0.5))
