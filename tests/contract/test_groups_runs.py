"""Groups whose rows lie together are found by their runs, and are those that a dictionary would find."""

import collections
import uuid
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samplemask import ContractError, groups
from samplemask.groups import find_groups, group_codes


def objects(values):
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def repeated(*values_and_rows):
    """Return an object array that repeats the objects themselves, as verl does."""
    return np.repeat(objects([value for value, _ in values_and_rows]), [rows for _, rows in values_and_rows])


def test_the_same_object_is_not_compared_with_itself(monkeypatch):
    monkeypatch.setattr(groups, "_PIECE", 4)
    asked = []

    class Id(str):
        def __ne__(self, other):
            asked.append(str(self))
            return str(self) != str(other)

        __hash__ = str.__hash__

    codes, number = group_codes(repeated((Id("a"), 5), (Id("b"), 4), (Id("a"), 3)), 12)
    assert (codes.tolist(), number) == ([0] * 5 + [1] * 4 + [0] * 3, 2)
    assert asked == ["a", "b"]  # each group with itself, once: is it NaN?


@pytest.mark.parametrize("missing", [None, float("nan"), np.datetime64("NaT", "s")])
def test_a_missing_id_that_is_one_object_in_many_rows_is_refused_with_the_first(missing):
    ids = repeated(("a", 3), ("b", 2), (missing, 4), ("c", 3))
    with pytest.raises(ContractError, match=r"^group_B\[5\]: expected a group id, found"):
        group_codes(ids, 12)


def test_one_list_in_many_rows_is_refused():
    with pytest.raises(ContractError, match=r"^group_B: expected hashable group ids, found .* Pass one id"):
        group_codes(repeated(([1], 4), ("a", 4)), 8)


@pytest.mark.parametrize("piece", [2, 3, 100])
@pytest.mark.parametrize(
    "ids",
    [
        np.array([5, 5, 5, 9, 9, 7, 7]),
        np.array([5, 5, 5, 7, 7, 9, 9]),
        repeated(("a", 3), ("b", 2), ("c", 2)),
        repeated((-1, 3), (-2, 2), ("c", 2)),  # hash(-1) == hash(-2)
        np.array(["a", "a", "a", "b", "b", "c", "c"]),
    ],
    ids=repr,
)
def test_groups_that_lie_together_are_counted_by_runs(ids, piece, monkeypatch):
    monkeypatch.setattr(groups, "_PIECE", piece)
    found = find_groups(ids, 7)
    assert (found.edges.tolist(), found.number) == ([0, 3, 5, 7], 3)
    one, two, three = found.codes()[[0, 3, 5]].tolist()
    assert found.codes().tolist() == [one] * 3 + [two] * 2 + [three] * 2
    order = [one, two, three]
    sizes, flagged = found.sizes(), found.count_rows(np.array([True, False, True, False, True, False, False]))
    assert (sizes[order].tolist(), flagged[order].tolist()) == ([3, 2, 2], [2, 1, 0])
    assert sizes.dtype == flagged.dtype == np.intp
    value_G = np.empty(3)
    value_G[order] = [0.1, 0.2, 0.3]
    assert found.per_row(value_G).tolist() == [0.1, 0.1, 0.1, 0.2, 0.2, 0.3, 0.3]


@pytest.mark.parametrize("piece", [2, 100])
@pytest.mark.parametrize("ids", [[-1, -1, -2, -2, -1, -1, -2, -2], list("aabbaabb")])  # hash(-1) == hash(-2)
def test_a_group_may_have_several_runs(ids, piece, monkeypatch):
    monkeypatch.setattr(groups, "_PIECE", piece)
    found = find_groups(ids, 8)
    assert (found.edges.tolist(), found.number) == ([0, 2, 4, 6, 8], 2)
    assert found.codes().tolist() == [0, 0, 1, 1, 0, 0, 1, 1]
    sizes, flagged = found.sizes(), found.count_rows(np.array([True, True, False, False] * 2))
    assert (sizes.tolist(), flagged.tolist()) == ([4, 4], [4, 0])
    assert sizes.dtype == flagged.dtype == np.intp
    assert found.per_row(np.array([0.1, 0.2])).tolist() == [0.1, 0.1, 0.2, 0.2] * 2


def test_a_group_that_comes_back_late_is_the_same_group(monkeypatch):
    monkeypatch.setattr(groups, "_PIECE", 2)
    codes, number = group_codes([1, 1, 2, 2, 3, 3, 2, 2], 8)  # the least hash is no other's
    assert (codes.tolist(), number) == ([0, 0, 1, 1, 2, 2, 1, 1], 3)


class NeverUnequal(str):
    __slots__ = ()

    def __ne__(self, other):
        return False

    __hash__ = str.__hash__


@pytest.mark.parametrize(
    "ids",
    [
        [np.float32(0.1), np.float32(0.1), 0.1, 0.1],  # equal, but their hashes are not
        [(1,), (1,), np.int64(1), np.int64(1)],  # numpy compares its number with each of the tuple's
        [(np.float32(0.1),), (np.float32(0.1),), (0.1,), (0.1,)],
        [NeverUnequal("a"), NeverUnequal("a"), NeverUnequal("b"), NeverUnequal("b")],
    ],
    ids=repr,
)
def test_neighbours_are_one_group_only_where_a_dictionary_says_so(ids):
    codes, number = group_codes(ids, 4)
    assert (codes.tolist(), number) == ([0, 0, 1, 1], 2)


def test_runs_of_more_rows_than_a_byte_counts():
    found = find_groups(repeated(("a", 300), ("b", 400)), 700)
    assert found.count_rows(np.ones(700, dtype=bool)).tolist() == [300, 400]


VIEWS = {
    "as it is": lambda ids_B: ids_B,
    "a list": lambda ids_B: ids_B.tolist(),
    "a part": lambda ids_B: objects([0, *ids_B, 0])[1:-1],
    "reversed twice": lambda ids_B: ids_B[::-1].copy()[::-1],
    "every second": lambda ids_B: np.repeat(ids_B, 2)[::2],
    "a column": lambda ids_B: np.stack([ids_B, ids_B], axis=1)[:, 1],
    "a Fortran column": lambda ids_B: np.asfortranarray(np.stack([ids_B, ids_B], axis=1))[:, 1],
}
IDS = st.integers(-3, 3) | st.text(max_size=2) | st.booleans() | st.tuples(st.integers(0, 1)) | st.uuids()
RUNS = st.lists(st.tuples(IDS, st.integers(1, 5), st.booleans()), max_size=8)


@given(RUNS, st.sampled_from(sorted(VIEWS)), st.integers(1, 6), st.randoms(use_true_random=False))
def test_groups_are_those_of_a_dictionary_whatever_the_objects_and_the_array(runs, view, piece, random):
    ids = []
    for value, rows, is_one_object in runs:
        ids += [value if is_one_object else copy_of(value) for _ in range(rows)]
    ids_B = VIEWS[view](objects(ids))
    if isinstance(ids_B, np.ndarray):
        ids_B.flags.writeable = False
    flags_B = np.array([random.random() < 0.5 for _ in ids], dtype=bool)
    with mock.patch.object(groups, "_PIECE", piece):
        found = find_groups(ids_B, len(ids))
        codes_B, number = group_codes(ids_B, len(ids))
        sizes, flagged = found.sizes(), found.count_rows(flags_B)
    rows_of = collections.Counter(ids)
    flagged_of = collections.Counter(value for value, flag in zip(ids, flags_B.tolist(), strict=True) if flag)
    assert found.number == number == len(rows_of) == len(set(codes_B.tolist()))
    assert found.codes().tolist() == codes_B.tolist() == found.per_row(np.arange(number)).tolist()
    assert len(set(zip(ids, codes_B.tolist(), strict=True))) == number
    for value, code in zip(ids, codes_B.tolist(), strict=True):
        assert (sizes[code], flagged[code]) == (rows_of[value], flagged_of[value])


def copy_of(value):
    """Return an equal object that is another one, where there can be one."""
    if isinstance(value, str):
        return "".join(list(value))
    if isinstance(value, uuid.UUID):
        return uuid.UUID(int=value.int)
    return (*value,) if isinstance(value, tuple) else value


NUMBERS = {
    np.int64: [-(2**63), -3, -2, 0, 1, 2, 3, 10**12, 2**63 - 1],
    np.int8: [-128, -1, 0, 1, 127],
    np.uint64: [0, 1, 2, 2**63 - 1, 2**63, 2**64 - 1],
    np.bool_: [False, True],
}


@given(st.data(), st.sampled_from(list(NUMBERS)), st.integers(1, 6))
def test_integer_groups_are_those_of_a_dictionary(data, dtype, piece):
    runs = data.draw(st.lists(st.tuples(st.sampled_from(NUMBERS[dtype]), st.integers(1, 5)), max_size=8))
    ids = [value for value, rows in runs for _ in range(rows)]
    with mock.patch.object(groups, "_PIECE", piece):
        found = find_groups(np.array(ids, dtype=dtype), len(ids))
        codes, sizes = found.codes().tolist(), found.sizes()
    assert {(value, sizes[code]) for value, code in zip(ids, codes, strict=True)} == set(
        collections.Counter(ids).items()
    )
    assert len(set(zip(ids, codes, strict=True))) == found.number == len(set(ids))
