"""Group ids of every kind become dense codes."""

import uuid

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samplemask import ContractError, groups
from samplemask.groups import group_codes

A, B = uuid.UUID(int=1), uuid.UUID(int=2)


def partition(ids, rows=None) -> list[list[int]]:
    """Return the rows of each group, in order of first appearance."""
    rows = len(ids) if rows is None else rows
    codes, count = group_codes(ids, rows)
    assert codes.dtype == np.intp
    assert sorted(set(codes.tolist())) == list(range(count))
    members: dict[int, list[int]] = {}
    for row, code in enumerate(codes.tolist()):
        members.setdefault(code, []).append(row)
    return list(members.values())


@pytest.mark.parametrize(
    "ids",
    [
        [5, 7, 5],
        [-5, 7, -5],
        [-(2**63), 2**63 - 1, -(2**63)],
        [10**30, -(10**30), 10**30],
        [0.5, 1.5, 0.5],
        [float("inf"), 0.0, float("inf")],
        ["a", "b", "a"],
        ["", "b", ""],
        [b"a", b"b", b"a"],
        [A, B, A],
        [str(A), str(B), str(A)],
        [(1, 2), (1, 3), (1, 2)],
        [True, False, True],
        ["1", 1, "1"],
        [frozenset({1}), 1, frozenset({1})],
        ("a", "b", "a"),
        np.array([5, 7, 5]),
        np.array([-5, 7, -5], dtype=np.int8),
        np.array([-128, 127, -128], dtype=np.int8),
        np.array([0, 255, 0], dtype=np.uint8),
        np.array([2**64 - 1, 2**64 - 2, 2**64 - 1], dtype=np.uint64),
        np.array([2**63, 2**63 - 1, 2**63], dtype=np.uint64),
        np.array([0, 2**64 - 1, 0], dtype=np.uint64),
        np.array([-(2**63), 2**63 - 1, -(2**63)]),
        np.array([-(2**63), -(2**63) + 1, -(2**63)]),
        np.array([2**63 - 1, 2**63 - 2, 2**63 - 1]),
        np.array([True, False, True]),
        np.array([0.5, 1.5, 0.5]),
        np.array(["a", "bb", "a"]),
        np.array([str(A), str(B), str(A)], dtype=object),
        np.array(["2020-01-01", "2020-01-02", "2020-01-01"], dtype="datetime64[D]"),
        [np.int64(5), np.int64(7), np.int64(5)],
        [np.array(5), np.array(7), np.array(5)],
    ],
    ids=repr,
)
def test_equal_ids_share_a_group(ids):
    assert partition(ids) == [[0, 2], [1]]


def objects(values):
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


@pytest.mark.parametrize("piece", [1, 2, 3, 7, 100])
@pytest.mark.parametrize(
    "kind", [str, bytes, lambda text: (text, 1), lambda text: np.array(ord(text)), lambda text: ord(text) / 2]
)
def test_rows_of_a_group_may_lie_together_or_apart(kind, piece, monkeypatch):
    monkeypatch.setattr(groups, "_PIECE", piece)
    letters = [kind(letter) if kind is not bytes else letter.encode() for letter in "aaaabbbbaaccccc"]
    together = [[0, 1, 2, 3, 8, 9], [4, 5, 6, 7], [10, 11, 12, 13, 14]]
    assert partition(letters) == together
    assert partition(objects(letters)) == together
    apart = [letters[0], letters[4], letters[10]] * 4
    assert partition(apart) == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]


def test_ids_whose_comparison_fails_are_looked_up():
    class Odd:
        def __init__(self, name):
            self.name = name

        def __hash__(self):
            return 1

        def __eq__(self, other):
            return self.name == other.name

        def __ne__(self, other):
            if other is not self:
                raise RuntimeError("no")
            return False

    assert partition([Odd("a"), Odd("a"), Odd("b"), Odd("a")]) == [[0, 1, 3], [2]]


def test_neighbours_are_compared_only_where_groups_lie_together(monkeypatch):
    monkeypatch.setattr(groups, "_PIECE", 4)
    asked = []

    class Id(str):
        def __ne__(self, other):
            asked.append(self)
            return str(self) != str(other)

        __hash__ = str.__hash__

    assert partition([Id(letter) for letter in "abcabcabcabc"]) == [
        [0, 3, 6, 9],
        [1, 4, 7, 10],
        [2, 5, 8, 11],
    ]
    assert len(asked) == 4 + 3  # one piece, and each group with itself: is it NaN?


def test_torch_tensors_of_no_dimension_group_by_value():
    torch = pytest.importorskip("torch")
    assert partition([torch.tensor(5), torch.tensor(7), torch.tensor(5)]) == [[0, 2], [1]]
    assert partition(torch.tensor([5, 7, 5])) == [[0, 2], [1]]
    assert partition(torch.tensor([5.0, 7.0, 5.0], dtype=torch.bfloat16)) == [[0, 2], [1]]


def test_torch_tensors_of_one_value_are_refused_as_numpy_arrays_are():
    torch = pytest.importorskip("torch")
    for ids in ([1, 1, 2, 2, 1], [[1, 2], [1, 2], [1, 2], [1, 2], [1, 2]]):
        with pytest.raises(ContractError, match=r"^group_B: expected hashable group ids"):
            group_codes([torch.tensor(each).reshape(-1) for each in ids], 5)


def test_a_number_and_its_text_are_two_groups_in_a_list():
    assert partition([1, "1", 1, "1"]) == [[0, 2], [1, 3]]


def test_numbers_that_are_equal_are_one_group():
    assert partition([1, 1.0, True, np.int64(1), 2]) == [[0, 1, 2, 3], [4]]
    assert partition([0.0, -0.0]) == [[0, 1]]


def test_gaps_between_integers_leave_no_empty_group():
    assert group_codes(np.array([10, 30, 20, 30]), 4)[0].tolist() == [0, 2, 1, 2]
    assert group_codes(np.array([10, 30, 20, 30]), 4)[1] == 3
    assert group_codes(np.array([0, 10**9]), 2)[1] == 2


def test_dense_integers_are_their_own_codes():
    codes, count = group_codes(np.array([1, 0, 2, 1]), 4)
    assert (codes.tolist(), count) == ([1, 0, 2, 1], 3)


def test_the_ids_given_are_not_changed():
    ids = np.array([7, 5, 7])
    codes, _ = group_codes(ids, 3)
    codes[:] = 0
    assert ids.tolist() == [7, 5, 7]
    dense = np.array([0, 1, 0], dtype=np.uint64)
    group_codes(dense, 3)
    assert dense.tolist() == [0, 1, 0]


@pytest.mark.parametrize("ids", [[], (), np.array([]), np.array([], dtype=object), np.array([], dtype=str)])
def test_no_rows_are_no_groups(ids):
    codes, count = group_codes(ids, 0)
    assert (codes.shape, codes.dtype, count) == ((0,), np.intp, 0)


@pytest.mark.parametrize(
    "ids",
    [[1], [1, 2, 3], [], "ab", 5, {1, 2}, np.array([[1], [2]]), np.array([[1, 2]]), np.array(3)],
    ids=repr,
)
def test_ids_of_another_shape_are_refused(ids):
    with pytest.raises(ContractError, match=r"^group_B: expected one group id per row, shape \(2,\), found"):
        group_codes(ids, 2)


@pytest.mark.parametrize("missing", [None, float("nan"), np.float64("nan"), np.datetime64("NaT", "s")])
def test_a_missing_id_is_refused_with_its_row(missing):
    with pytest.raises(
        ContractError, match=r"^group_B\[1\]: expected a group id, found .* Pass one id per row"
    ):
        group_codes(["a", missing, "a"], 3)
    with pytest.raises(ContractError, match=r"^group_B\[1\]"):
        group_codes(np.array(["a", missing, "a"], dtype=object), 3)
    with pytest.raises(ContractError, match=r"^group_B\[4\]"):
        group_codes(["a", "a", "b", "b", missing, "b", "b", "b"], 8)


def test_a_missing_id_in_a_float_array_is_refused():
    with pytest.raises(ContractError, match=r"^group_B: expected a group id in every row"):
        group_codes(np.array([1.0, np.nan]), 2)


@pytest.mark.parametrize(
    "ids", [[[1], [1]], [{"a": 1}, {"a": 1}], [{1}, {1}], [np.array([1, 2]), np.array([1, 2])]]
)
def test_ids_that_cannot_be_compared_by_value_are_refused(ids):
    with pytest.raises(
        ContractError, match=r"^group_B: expected hashable group ids, found .* Pass one id per row"
    ):
        group_codes(ids, 2)


IDS = st.integers(-3, 3) | st.text(max_size=2) | st.booleans() | st.tuples(st.integers(0, 1))


@given(st.lists(IDS, max_size=30))
def test_rows_share_a_code_exactly_when_their_ids_are_equal(ids):
    codes, count = group_codes(ids, len(ids))
    assert count == len(set(ids))
    for one in range(len(ids)):
        for other in range(one):
            assert (codes[one] == codes[other]) == (ids[one] == ids[other])


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20), st.sampled_from([1, 10**6, 2**40]))
def test_integer_arrays_and_lists_agree(ids, scale):
    ids = [number // scale for number in ids]
    assert partition(np.array(ids, dtype=np.int64)) == partition(ids)


@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(2**64 - 5, 2**64 - 1), max_size=20))
def test_unsigned_arrays_and_lists_agree(ids):
    assert partition(np.array(ids, dtype=np.uint64)) == partition(ids)


def test_ids_of_a_users_own_class_are_kept_as_they_are():
    class Named(str):
        item = "an attribute that has nothing to do with tensors"

    assert partition([Named("a"), Named("b"), Named("a")]) == [[0, 2], [1]]


def test_an_id_that_is_neither_equal_nor_unequal_to_itself_is_missing():
    class NotAvailable:  # as pandas.NA
        def __ne__(self, other):
            return self

        def __eq__(self, other):
            return self

        def __bool__(self):
            raise TypeError("boolean value of NA is ambiguous")

        __hash__ = object.__hash__

    with pytest.raises(ContractError, match=r"group_B\[1\]: expected a group id"):
        group_codes(["a", NotAvailable(), "a"], 3)
