"""Synthetic batches: the options, and that a seed means one batch everywhere."""

import numpy as np
import pytest

from samplemask import ContractError, read_verdict
from samplemask.testing import GrpoBatch, Stream, grpo_batch, padding_rows


def test_a_seed_gives_these_numbers_on_every_platform():
    assert Stream(0).uniform(2).tolist() == [0.6369616873214543, 0.2697867137638703]
    assert Stream(7).integers(1, 6, 8).tolist() == Stream(7).integers(1, 6, 8).tolist()


def test_two_seeds_give_two_batches_and_one_seed_gives_one():
    one, same, other = grpo_batch(seed=1), grpo_batch(seed=1), grpo_batch(seed=2)
    assert one.reward_B.tolist() == same.reward_B.tolist()
    assert one.group_B.tolist() == same.group_B.tolist()
    assert one.masked_B.tolist() == same.masked_B.tolist()
    assert one.reward_B.tolist() != other.reward_B.tolist()
    assert not set(one.group_B) & set(other.group_B)


def test_groups_and_sizes_are_as_asked():
    batch = grpo_batch(3, 4)
    assert len(batch) == 12
    assert [list(batch.group_B).count(group) for group in dict.fromkeys(batch.group_B)] == [4, 4, 4]


def test_ragged_groups_stay_in_their_range():
    batch = grpo_batch(50, (2, 5))
    sizes = {list(batch.group_B).count(group) for group in set(batch.group_B)}
    assert sizes == {2, 3, 4, 5}


@pytest.mark.parametrize(("rate", "masked"), [(0.0, 0), (0.25, 4), (0.5, 8), (1.0, 16)])
def test_the_failure_rate_is_exact(rate, masked):
    batch = grpo_batch(4, 4, failure_rate=rate)
    assert int(batch.masked_B.sum()) == masked
    assert [kind is not None for kind in batch.kinds_B] == batch.masked_B.tolist()


def test_failures_can_follow_reward_length_or_group():
    low = grpo_batch(4, 4, failures="low_reward")
    assert low.reward_B[low.masked_B].max() < low.reward_B[~low.masked_B].min()
    high = grpo_batch(4, 4, failures="high_reward")
    assert high.reward_B[high.masked_B].min() > high.reward_B[~high.masked_B].max()
    long = grpo_batch(4, 4, failures="long", response_length=(1, 100))
    assert long.length_B[long.masked_B].min() >= long.length_B[~long.masked_B].max()
    whole = grpo_batch(4, 4, failures="whole_groups")
    assert len(set(whole.group_B[whole.masked_B])) == 1


def test_kinds_follow_their_weights():
    batch = grpo_batch(100, 8, failure_rate=1.0, kinds={"session_lost": 3, "judge_failed": 1})
    lost = batch.kinds_B.count("session_lost")
    assert 550 < lost < 650
    assert lost + batch.kinds_B.count("judge_failed") == 800


def test_rewards_follow_their_model():
    assert set(grpo_batch(8, 8, rewards="binary").reward_B) == {0.0, 1.0}
    uniform = grpo_batch(8, 8, rewards="uniform").reward_B
    assert 0 <= uniform.min() < uniform.max() < 1
    normal = grpo_batch(100, 10, rewards="normal").reward_B
    assert abs(normal.mean()) < 0.1
    assert 0.9 < normal.std() < 1.1
    assert set(grpo_batch(2, 2, rewards=lambda stream, count: [7.0] * count).reward_B) == {7.0}


def test_sessions_of_several_rows_share_their_verdict_and_reward():
    batch = grpo_batch(4, 4, rows_per_session=(1, 3))
    assert len(batch) > 16
    for session in set(batch.session_B):
        rows = batch.session_B == session
        assert len(set(batch.masked_B[rows])) == len(set(batch.reward_B[rows])) == 1
        assert batch.order_B[rows].tolist() == list(range(int(rows.sum())))
        assert len(set(batch.group_B[rows])) == 1


def test_padding_rows_stand_at_the_end_in_groups_of_their_own():
    batch = grpo_batch(2, 2, padding=3)
    assert batch.padding_B.tolist() == [False] * 4 + [True] * 3
    assert len(set(batch.group_B)) == 5
    assert not batch.masked_B[4:].any()
    assert batch.length_B[4:].tolist() == [1, 1, 1]


def test_shuffling_keeps_the_rows():
    plain, shuffled = grpo_batch(4, 4, seed=3), grpo_batch(4, 4, seed=3, shuffle=True)
    assert plain.reward_B.tolist() != shuffled.reward_B.tolist()
    assert sorted(zip(plain.group_B, plain.reward_B, strict=True)) == sorted(
        zip(shuffled.group_B, shuffled.reward_B, strict=True)
    )


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_rewards_have_the_type_asked_for(dtype):
    assert grpo_batch(dtype=dtype, padding=2).reward_B.dtype == dtype
    assert grpo_batch(dtype=dtype).token_reward().dtype == dtype


def test_an_empty_batch_can_be_made():
    batch = grpo_batch(0)
    assert len(batch) == 0
    assert batch.response_mask().shape == (0, 1)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"groups": -1}, "groups"),
        ({"padding": -1}, "padding"),
        ({"group_size": 0}, "group_size"),
        ({"group_size": (3, 2)}, "group_size"),
        ({"response_length": (-1, 2)}, "response_length"),
        ({"rows_per_session": (0, 1)}, "rows_per_session"),
        ({"failure_rate": 1.5}, "failure_rate"),
        ({"failure_rate": -0.1}, "failure_rate"),
        ({"failures": "always"}, "failures"),
        ({"rewards": "gaussian"}, "rewards"),
        ({"rewards": lambda stream, count: [1.0]}, "rewards"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, name):
    with pytest.raises(ContractError, match=rf"^{name}: expected"):
        grpo_batch(**options)


def test_a_batch_can_be_written_by_hand():
    batch = GrpoBatch.of([1, None, 0.5], [0, 1, 0], ["a", "a", "b"], [3, 1, 0], [None, "session_lost", None])
    assert batch.reward_B.tolist()[0] == 1.0
    assert np.isnan(batch.reward_B[1])
    assert batch.response_mask().tolist() == [[1, 1, 1], [1, 0, 0], [0, 0, 0]]
    assert batch.select([0, 2]).token_reward().tolist() == [[0, 0, 1.0], [0.5, 0, 0]]
    with pytest.raises(ContractError, match=r"^masked_B: expected one value per reward, 2"):
        GrpoBatch.of([1, 0], [0])


def test_select_append_and_relabel():
    batch = GrpoBatch.of([1.0, 2.0, 3.0], [0, 1, 0], ["a", "a", "b"], kinds=[None, "session_lost", None])
    assert batch.select(~batch.masked_B).reward_B.tolist() == [1.0, 3.0]
    assert batch.select([2, 0]).reward_B.tolist() == [3.0, 1.0]
    assert batch.select([1]).kinds_B == ("session_lost",)
    assert batch.append(padding_rows(1)).padding_B.tolist() == [False, False, False, True]
    assert batch.relabel({"a": 1, "b": 2}).group_B.tolist() == [1, 1, 2]
    assert batch.relabel(str.upper).group_B.tolist() == ["A", "A", "B"]
    assert batch.with_masked_reward(9.0).reward_B.tolist() == [1.0, 9.0, 3.0]
    assert batch.reward_B.tolist() == [1.0, 2.0, 3.0]


def test_the_rows_of_a_batch_are_verify_responses():
    batch = GrpoBatch.of([1.0, 0.0], [0, 1], kinds=[None, "session_lost"]).append(padding_rows(2))
    verdicts = [read_verdict(response) for response in batch.rows()]
    assert [verdict.mask_sample for verdict in verdicts] == [False, True]
    assert [verdict.failure_kind for verdict in verdicts] == [None, "session_lost"]
    assert [verdict.reward for verdict in verdicts] == [1.0, 0.0]
