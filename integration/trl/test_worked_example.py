"""Real TRL: what GRPOTrainer does with a row without a score, and the guide's worked example."""

import math

import pytest

pytest.importorskip("trl", reason="TRL is not installed in this environment (pip install trl==1.16.0)")
import torch
from bed import build_model, train_one_step
from masking import score, with_verdicts

from samplemask import MaskPolicy

REWARDS = (1.0, 1.0, 0.0, 0.0)
LOST = {"reward": 1.0, "mask_sample": True, "failure_kind": "session_lost"}
ALL, OTHERS = (0, 1, 2, 3), (0, 2, 3)
TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return build_model(tmp_path_factory.mktemp("model") / "qwen2")


def norm(moved):
    return math.sqrt(sum(float((value**2).sum()) for value in moved.values()))


def furthest(one, other):
    return max(float((one[name] - other[name]).abs().max()) for name in other)


def masked_step(model, lost=(1,), policy=None, **options):
    responses = [LOST if row in lost else {"reward": REWARDS[row]} for row in ALL]

    def add(rollouts):
        return with_verdicts(rollouts, responses, len(ALL), policy or MaskPolicy())

    return train_one_step(model, ALL, add, score, **options)


def deleted_step(model, **options):
    def add(rollouts):
        return {**rollouts, "score": [REWARDS[row] for row in OTHERS]}

    return train_one_step(model, OTHERS, add, score, **options)


def test_a_reward_of_none_takes_the_vote_but_not_the_tokens(model):
    """Stock TRL: the advantages are right, the default loss still counts the row's 6 of 18 tokens."""

    def add(rollouts):
        return {**rollouts, "score": [1.0, None, 0.0, 0.0]}

    moved, advantages = train_one_step(model, ALL, add, score)
    deleted, _ = deleted_step(model)
    assert advantages == pytest.approx([2 / 3, 0, -1 / 3, -1 / 3])
    assert norm(moved) / norm(deleted) == pytest.approx(12 / 18, abs=1e-4)


@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_with_the_example_the_step_is_that_of_the_batch_without_the_row(model, beta):
    moved, advantages = masked_step(model, beta=beta)
    deleted, of_others = deleted_step(model, beta=beta)
    assert advantages == pytest.approx([2 / 3, 0, -1 / 3, -1 / 3])
    assert [advantages[row] for row in OTHERS] == of_others
    assert norm(deleted) > 1e-3
    assert furthest(moved, deleted) < TOLERANCE


@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo"])
def test_losses_that_divide_by_rows_take_a_smaller_step(model, loss_type):
    """A limit of the example: env_mask cannot change TRL's row count of 4."""
    moved, _ = masked_step(model, loss_type=loss_type)
    deleted, _ = deleted_step(model, loss_type=loss_type)
    assert norm(moved) / norm(deleted) == pytest.approx(3 / 4, abs=1e-4)


def test_a_lost_group_still_moves_stock_trl_when_there_is_a_kl_term(model):
    def add(rollouts):
        return {**rollouts, "score": [None] * len(ALL)}

    assert norm(train_one_step(model, ALL, add, score, beta=0.1)[0]) > 1e-3


def test_a_lost_group_moves_nothing(model):
    moved, advantages = masked_step(model, lost=ALL, beta=0.1)
    assert advantages == [0, 0, 0, 0]
    assert all(torch.equal(value, torch.zeros_like(value)) for value in moved.values())


def test_a_thin_group_moves_nothing(model):
    moved, _ = masked_step(model, lost=(0, 1, 2), beta=0.1)
    assert norm(moved) == 0


def test_loss_multiplier_keeps_the_vote(model):
    _, advantages = masked_step(model, policy=MaskPolicy(action="loss_multiplier"))
    assert advantages == pytest.approx([0.5, 0.5, -0.5, -0.5])
