"""What a reward function hands to verl."""

import math

import pytest

from samplemask import ContractError
from samplemask_verl import masked, reward_dict, scored


def test_all_keys_are_always_there_and_never_none():
    for made in (
        scored(0.7),
        masked("session_lost"),
        reward_dict({"reward": 1}),
        reward_dict({"reward": None}),
    ):
        assert list(made) == ["score", "mask_sample", "failure_kind", "failure_reason"]
        assert [type(value) for value in made.values()] == [float, bool, str, str]


def test_a_scored_rollout():
    assert scored(0.7) == {"score": 0.7, "mask_sample": False, "failure_kind": "", "failure_reason": ""}


def test_a_masked_rollout():
    assert masked("session_lost", "HTTP 410") == {
        "score": 0.0,
        "mask_sample": True,
        "failure_kind": "session_lost",
        "failure_reason": "HTTP 410",
    }
    assert masked(kind="judge_failed", reason="x" * 3000)["failure_reason"] == "x" * 2000


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_no_number_is_masked_not_zero(reward):
    assert scored(reward)["mask_sample"] is True
    assert scored(reward)["failure_kind"] == "samplemask:reward_not_finite"


def test_a_missing_reward_is_masked():
    assert scored(None)["failure_kind"] == "samplemask:reward_missing"


def test_a_reward_of_another_type_is_an_error():
    with pytest.raises(ContractError, match="reward: expected a number or null"):
        scored("good")


def test_json_from_the_wire_is_read():
    body = b'{"reward": 0.0, "mask_sample": false, "instance_config": {"mask_sample": true}}'
    assert reward_dict(body)["mask_sample"] is True
