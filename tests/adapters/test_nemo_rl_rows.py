"""Selecting rows, putting results back, numbering prompts: no host."""

from collections import UserDict

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed here")
import torch
from hypothesis import given
from hypothesis import strategies as st
from nemo_rl_standins import calculate_baseline_and_std_per_prompt as statistics

import samplemask_nemo_rl.rows as rows_module
from samplemask_nemo_rl.rows import (
    _cuts,
    code_column,
    group_by_group,
    group_statistics,
    keep_rows,
    message_codes,
    prompt_codes,
    scatter_rows,
    select_rows,
)

NAN = float("nan")
groups_of_rows = st.lists(st.integers(0, 5), min_size=1, max_size=40)


def test_everything_with_a_row_per_sample_is_selected_and_nothing_else():
    rows = torch.tensor([2, 0])
    value = {"a": torch.tensor([1, 2, 3]), "b": ["x", "y", "z"], "c": torch.tensor(5), "d": [1, 2], "e": None}
    selected = select_rows(value, rows, 3)
    assert selected["a"].tolist() == [3, 1]
    assert selected["b"] == ["z", "x"]
    assert (selected["c"].item(), selected["d"], selected["e"]) == (5, [1, 2], None)


def test_a_batch_of_the_hosts_own_class_stays_one():
    selected = select_rows(UserDict(a=torch.tensor([1, 2])), torch.tensor([1]), 2)
    assert type(selected) is UserDict
    assert selected["a"].tolist() == [2]


def test_results_go_back_to_their_rows_and_silent_rows_become_zero_whatever_they_hold():
    result = torch.tensor([[1.0, 2.0], [NAN, 4.0]])
    silent = torch.tensor([False, True, True])
    assert scatter_rows(result, torch.tensor([0, 2]), silent).tolist() == [[1.0, 2.0], [0, 0], [0, 0]]


def test_a_tuple_of_results_keeps_its_form():
    put, nothing = scatter_rows((torch.ones(1, 2), None), torch.tensor([1]), torch.tensor([True, False]))
    assert put.tolist() == [[0, 0], [1, 1]]
    assert nothing is None


def test_rows_that_are_not_kept_become_zero_not_nan():
    assert keep_rows(torch.tensor([NAN, 0.5]), np.array([False, True])).tolist() == [0.0, 0.5]
    wide = torch.tensor([[1.0, NAN], [2.0, 3.0], [4.0, 5.0]])
    assert keep_rows(wide, np.array([False, True, True])).tolist() == [[0, 0], [2, 3], [4, 5]]


def test_equal_prompts_get_equal_codes():
    codes = prompt_codes(torch.tensor([[1, 2], [1, 3], [1, 2]]))
    assert codes[0] == codes[2] != codes[1]
    column = code_column(codes, torch.zeros(3, 2))
    assert (column.shape, column.dtype) == ((3, 1), torch.int64)


def test_the_prompt_of_a_message_log_ends_at_its_length():
    def log(*messages):
        return [{"token_ids": torch.tensor(ids)} for ids in messages]

    logs = [log([1, 2], [3], [9]), log([1, 2, 3], [8]), log([1, 2], [4], [9])]
    codes = message_codes(logs, torch.tensor([3, 3, 3]))
    assert codes[0] == codes[1] != codes[2]
    with pytest.raises(ValueError, match="shorter"):
        message_codes(logs, torch.tensor([3, 3]))


def test_rows_without_a_vote_follow_their_group():
    codes, votes = np.array([0, 0, 0, 1, 1]), np.array([True, False, True, False, False])
    value = torch.tensor([0.2, 9.0, 0.4, 9.0, 9.0])
    assert group_statistics(value, codes, votes, "amax").tolist() == pytest.approx([0.2, 0.4, 0.4, 0, 0])
    assert group_statistics(value, codes, votes, "mean").tolist() == pytest.approx([0.2, 0.3, 0.4, 0, 0])
    nobody = np.zeros(0, dtype=int)
    assert group_statistics(torch.zeros(0), nobody, nobody.astype(bool), "amax").shape == (0,)


class Recorder:
    """Group statistics that remember what they were called with."""

    def __init__(self):
        self.calls = []

    def __call__(self, groups, rewards, valid, *args, **kwargs):
        self.calls.append((groups[:, 0].tolist(), rewards.tolist(), valid.tolist(), args, kwargs))
        return rewards + 1, rewards + 2


@pytest.mark.parametrize(
    ("groups", "calls"),
    [
        ([[1], [1], [0], [0]], 1),  # no more rows than one call takes
        ([[0, 5], [0, 5], [1, 5], [1, 5], [2, 5]], 1),  # prompts that were not numbered
        ([[0], [1], [2], [0], [1]], 2),
    ],
)
def test_only_many_numbered_rows_are_split_into_calls(groups, calls, monkeypatch):
    monkeypatch.setattr(rows_module, "_CHUNK", 4)
    host, rewards = Recorder(), torch.arange(float(len(groups)))
    first, second = group_by_group(host, torch.tensor(groups), rewards, rewards > 0)
    assert len(host.calls) == calls
    assert (host.calls[0][0] == [group[0] for group in groups]) is (calls == 1)
    assert (first.tolist(), second.tolist()) == ((rewards + 1).tolist(), (rewards + 2).tolist())


@pytest.mark.parametrize("chunk", [2, 8])
def test_what_the_host_passes_besides_reaches_it_for_the_same_rows(chunk, monkeypatch):
    monkeypatch.setattr(rows_module, "_CHUNK", chunk)
    host, groups = Recorder(), torch.tensor([[1], [0], [1], [0]])
    rewards, valid, std = (
        torch.tensor([1.0, 2.0, 3.0, 4.0]),
        torch.ones(4),
        torch.tensor([5.0, 6.0, 7.0, 8.0]),
    )
    group_by_group(host, groups, rewards, valid, True, std_rewards=std)
    got = [(*call[:4], call[4]["std_rewards"].tolist()) for call in host.calls]
    ones = [1.0, 1.0]
    assert got == (
        [([1, 0, 1, 0], [1, 2, 3, 4], ones * 2, (True,), [5, 6, 7, 8])]
        if chunk == 8
        else [([0, 0], [2, 4], ones, (True,), [6, 8]), ([1, 1], [1, 3], ones, (True,), [5, 7])]
    )


def test_groups_that_hold_the_same_numbers_are_computed_once(monkeypatch):
    monkeypatch.setattr(rows_module, "_CHUNK", 4)
    host, groups = Recorder(), torch.tensor([[0], [1], [2], [0], [1], [2]])
    rewards = torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0, 1.0])
    first, _ = group_by_group(host, groups, rewards, torch.ones(6))
    assert [call[:2] for call in host.calls] == [([0, 0, 1, 1], [0, 1, 1, 0])]
    assert first.tolist() == [1, 2, 1, 2, 1, 2]


def test_sorted_rows_are_cut_between_groups(monkeypatch):
    monkeypatch.setattr(rows_module, "_CHUNK", 3)
    assert _cuts(np.array([0, 0, 1, 1, 1, 2, 3])) == [0, 2, 6, 7]
    assert _cuts(np.array([0, 0, 0, 0, 0, 0, 0, 1])) == [0, 8]


@given(groups_of_rows, st.integers(1, 7), st.integers(1, 3))
def test_statistics_of_a_few_groups_at_a_time_are_those_of_one_call(groups, chunk, values):
    before, rows_module._CHUNK = rows_module._CHUNK, chunk
    try:
        codes = prompt_codes(torch.tensor(groups).unsqueeze(1))
        column = code_column(codes, torch.zeros(1))
        rewards = (torch.arange(float(len(groups))) ** 2) % values  # few values: groups that are equal
        once = statistics(column, rewards, torch.ones_like(rewards))
        piecewise = group_by_group(statistics, column, rewards, torch.ones_like(rewards))
        assert all(torch.equal(a, b) for a, b in zip(once, piecewise, strict=True))
    finally:
        rows_module._CHUNK = before


@given(groups_of_rows, st.randoms(use_true_random=False))
def test_codes_name_the_same_groups_in_any_order_of_rows(groups, random):
    order = list(range(len(groups)))
    random.shuffle(order)
    codes = prompt_codes(torch.tensor(groups).unsqueeze(1))
    shuffled = prompt_codes(torch.tensor(groups)[order].unsqueeze(1))
    for one in range(len(order)):
        for other in range(len(order)):
            assert (shuffled[one] == shuffled[other]) == (codes[order[one]] == codes[order[other]])
