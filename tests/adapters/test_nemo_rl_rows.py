"""Selecting rows, putting results back, numbering prompts: no host."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed here")
import torch
from hypothesis import given
from hypothesis import strategies as st
from nemo_rl_standins import calculate_baseline_and_std_per_prompt as statistics

from samplemask_nemo_rl.rows import (
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


def test_equal_prompts_get_equal_codes():
    codes = prompt_codes(torch.tensor([[1, 2], [1, 3], [1, 2]]))
    assert codes[0] == codes[2] != codes[1]
    assert code_column(codes, torch.zeros(3, 2)).shape == (3, 1)


def test_the_prompt_of_a_message_log_ends_at_its_length():
    def log(*messages):
        return [{"token_ids": torch.tensor(ids)} for ids in messages]

    logs = [log([1, 2], [3], [9]), log([1, 2, 3], [8]), log([1, 2], [4], [9])]
    codes = message_codes(logs, torch.tensor([3, 3, 3]))
    assert codes[0] == codes[1] != codes[2]


def test_rows_without_a_vote_follow_their_group():
    codes, votes = np.array([0, 0, 0, 1, 1]), np.array([True, False, True, False, False])
    value = torch.tensor([0.2, 9.0, 0.4, 9.0, 9.0])
    assert group_statistics(value, codes, votes, "amax").tolist() == pytest.approx([0.2, 0.4, 0.4, 0, 0])
    assert group_statistics(value, codes, votes, "mean").tolist() == pytest.approx([0.2, 0.3, 0.4, 0, 0])


@given(groups_of_rows, st.integers(1, 7), st.integers(1, 3))
def test_statistics_of_a_few_groups_at_a_time_are_those_of_one_call(groups, chunk, values):
    import samplemask_nemo_rl.rows as rows

    before, rows._CHUNK = rows._CHUNK, chunk
    try:
        codes = prompt_codes(torch.tensor(groups).unsqueeze(1))
        column = code_column(codes, torch.zeros(1))
        rewards = (torch.arange(float(len(groups))) ** 2) % values  # few values: groups that are equal
        once = statistics(column, rewards, torch.ones_like(rewards))
        piecewise = group_by_group(statistics, column, rewards, torch.ones_like(rewards))
        assert all(torch.equal(a, b) for a, b in zip(once, piecewise, strict=True))
    finally:
        rows._CHUNK = before


@given(groups_of_rows, st.randoms(use_true_random=False))
def test_codes_name_the_same_groups_in_any_order_of_rows(groups, random):
    order = list(range(len(groups)))
    random.shuffle(order)
    codes = prompt_codes(torch.tensor(groups).unsqueeze(1))
    shuffled = prompt_codes(torch.tensor(groups)[order].unsqueeze(1))
    for one in range(len(order)):
        for other in range(len(order)):
            assert (shuffled[one] == shuffled[other]) == (codes[order[one]] == codes[order[other]])
