"""The experiment of examples/outage keeps its word, on few seeds and steps."""

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("verl", reason="verl is not installed in this environment")

import samplemask_verl

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from outage import arms, failures, results, training

SEEDS = range(2)


@pytest.fixture(autouse=True)
def _leave_verl_as_it_was():
    yield
    samplemask_verl.uninstall()


def trained(arm, environment, steps):
    return training.train(arm, environment, SEEDS, steps)


def test_where_nothing_fails_every_arm_is_the_ceiling_bit_for_bit():
    ceiling = trained(arms.CEILING, failures.HEALTHY, 5)
    assert ceiling.scores[-1].reward_S.mean() > ceiling.scores[0].reward_S.mean()  # it learns
    for arm in arms.ARMS[1:]:
        run = trained(arm, failures.HEALTHY, 5)
        assert run.scores[-1].turn1.equal(ceiling.scores[-1].turn1)
        assert run.scores[-1].turn2.equal(ceiling.scores[-1].turn2)
        assert not run.lost_S.any()
        assert not run.refilled_S.any()


def test_a_seeds_run_does_not_depend_on_the_other_seeds():
    environment = failures.RANDOM[0.5][2]
    both = trained(arms.EXCLUDE, environment, 5)
    alone = training.train(arms.EXCLUDE, environment, SEEDS[1:], 5)
    np.testing.assert_allclose(both.scores[-1].reward_S[1:], alone.scores[-1].reward_S, rtol=1e-4)


def test_a_step_in_which_nothing_trains_leaves_weights_and_optimizer_alone(monkeypatch):
    monkeypatch.setattr(failures, "STORM", range(3, 6))
    run = trained(arms.OUTAGE, failures.storm(0.0), 6)
    rewards = [score.reward_S.tolist() for score in run.scores]
    assert run.lost_S.tolist() == [3.0, 3.0]
    assert rewards[1] == rewards[2] == rewards[4]
    assert rewards[5] != rewards[4]


def test_refill_is_counted_and_gives_up_where_groups_never_complete():
    light, heavy = failures.at_random(0.05, 0.0), failures.at_random(0.9, 0.0)
    run = trained(arms.REFILL, light, 3)
    assert (run.refilled_S > 0).all()
    assert not run.lost_S.any()
    run = trained(arms.REFILL, heavy, 3)
    assert run.lost_S.tolist() == [3.0, 3.0]


def test_where_the_winning_tool_loses_sessions_exclude_ends_nearer_to_the_ceiling_than_zeros():
    steps = 90
    ceiling = trained(arms.CEILING, failures.BEHAVIOUR, steps)
    exclude, zeros = (
        results.summed_up(trained(arm, failures.BEHAVIOUR, steps), ceiling)
        for arm in (arms.EXCLUDE, arms.ZEROS)
    )
    assert (exclude.distance[-1] < zeros.distance[-1]).all()
    assert (exclude.reward[-1] > zeros.reward[-1]).all()
    assert (exclude.tool[-1] > 0.5).all()
    assert (zeros.tool[-1] < 0.5).all()


def test_a_timeout_that_is_always_forgiven_is_learned_unless_it_is_scored():
    steps = 40
    forgiven, scored = (trained(arm, failures.EXIT, steps).scores[-1] for arm in (arms.EXCLUDE, arms.SCORED))
    assert (forgiven.wait_S > 1.5 * scored.wait_S).all()
    assert (forgiven.reward_S < scored.reward_S).all()
