"""One arm in one environment, all seeds at once."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from outage.arms import Arm
from outage.estimation import advantages
from outage.failures import HEALTHY, SESSION_LOST, TIMEOUT, Environment, Rollouts
from outage.learner import Learner
from outage.score import Score, score
from outage.task import CLEAR, START, TOOL, UNIFORMS, WAIT, encode, prompts_of, seen_after, uniforms
from samplemask import MaskPolicy, plan_rows

PROMPTS, GROUP = 8, 8
LEARNING_RATE = 0.01


@dataclass(frozen=True)
class Batch:
    """One step's rollouts of S seeds in P groups of n.

    Attributes:
        inputs: One-hot inputs of both turns, (2, S, P, n, inputs).
        actions: Actions of both turns, (2, S, P, n).
        reward: As the environment reports it, (S, P, n): 0 for a lost session.
        masked: The environment's verdict, (S, P, n).
        kinds: Failure kinds, object (S, P, n).
    """

    inputs: torch.Tensor
    actions: torch.Tensor
    reward: torch.Tensor
    masked: torch.Tensor
    kinds: np.ndarray


@dataclass(frozen=True)
class Run:
    """What an arm did.

    Attributes:
        scores: After each step.
        lost_S: Steps in which nothing trained.
        refilled_S: Groups sampled in place of others.
    """

    scores: list[Score]
    lost_S: np.ndarray
    refilled_S: np.ndarray


def train(arm: Arm, environment: Environment, seeds: range, steps: int) -> Run:
    """Train the policies of all seeds for some steps."""
    learner = Learner(seeds, LEARNING_RATE)
    if not arm.fails:
        environment = replace(HEALTHY, credit=environment.credit)
    scores, lost, refilled = [], np.zeros(len(seeds)), np.zeros(len(seeds))
    for step in range(1, steps + 1):
        batch, groups_S, complete_S = _collect(learner, arm, environment, seeds, step)
        refilled += groups_S
        advantage, mask = advantages(batch.reward, batch.masked, batch.kinds, arm.mask_sample)
        trains_S = mask.sum((1, 2, 3)).bool() & complete_S
        learner.step(_loss(learner, batch, advantage, mask), trains_S)
        lost += ~trains_S.numpy()
        scores.append(score(learner))
    return Run(scores, lost, refilled)


def _loss(learner: Learner, batch: Batch, advantage: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the policy gradient loss of each seed, its mean over the tokens that train, (S,)."""
    turns = []
    for turn in (0, 1):
        logs = learner.log_probabilities(batch.inputs[turn].flatten(1, 2))[turn]
        chosen = logs.gather(-1, batch.actions[turn].flatten(1, 2).unsqueeze(-1)).squeeze(-1)
        turns.append(chosen.unflatten(1, advantage.shape[1:3]))
    summed = (torch.stack(turns, dim=-1) * advantage * mask).sum((1, 2, 3))
    return -summed / mask.sum((1, 2, 3)).clamp(min=1)


def _collect(
    learner: Learner, arm: Arm, environment: Environment, seeds: range, step: int
) -> tuple[Batch, np.ndarray, torch.Tensor]:
    """Sample a step's batch; with refill, replace groups that would not train, up to the arm's bound.

    Returns:
        The batch, groups sampled in place of others (S,), and whether the batch is complete (S,). Where
        the bound is too low verl stops the run; here the step is lost and the run goes on.
    """
    batch = _sample(learner, environment, seeds, step, 0)
    everyone = torch.ones(len(seeds), dtype=torch.bool)
    if not arm.refills:
        return batch, np.zeros(len(seeds)), everyone
    used = np.full(len(seeds), 0)
    for attempt in range(1, 1 + -(-arm.refills // PROMPTS)):
        good = _groups_that_train(batch, arm)
        if good.all():
            break
        used += np.where(good.all(1), 0, (~good).sum(1))
        fresh = _sample(learner, environment, seeds, step, attempt)
        batch = _replaced(batch, fresh, torch.from_numpy(~good))
    good_S = torch.from_numpy(_groups_that_train(batch, arm).all(1) & (used <= arm.refills))
    return batch, used, good_S


def _groups_that_train(batch: Batch, arm: Arm) -> np.ndarray:
    """Tell which groups have a voter, bool (S, P)."""
    shape = batch.masked.shape
    group = np.repeat(np.arange(shape[0] * shape[1]), shape[2])
    plan = plan_rows(batch.masked.flatten().numpy(), group, MaskPolicy(**arm.mask_sample))
    return plan.votes_B.reshape(shape).any(-1)


def _replaced(batch: Batch, fresh: Batch, bad_SP: torch.Tensor) -> Batch:
    """Put fresh groups in the place of bad ones."""
    bad = bad_SP.unsqueeze(-1)
    return Batch(
        torch.where(bad.unsqueeze(-1), fresh.inputs, batch.inputs),
        torch.where(bad, fresh.actions, batch.actions),
        torch.where(bad, fresh.reward, batch.reward),
        torch.where(bad, fresh.masked, batch.masked),
        np.where(bad.numpy(), fresh.kinds, batch.kinds),
    )


@torch.no_grad()
def _sample(learner: Learner, environment: Environment, seeds: range, step: int, attempt: int) -> Batch:
    drawn = uniforms(seeds, step, attempt, PROMPTS, GROUP)
    prompts = prompts_of(drawn[..., :2])
    reply, first, second, luck = drawn[..., 2:].unflatten(-1, (UNIFORMS, GROUP)).unbind(2)
    question = prompts.question_SP.unsqueeze(-1).expand_as(reply)
    answer = prompts.answer_SP.unsqueeze(-1).expand_as(reply)
    inputs1 = encode(question, torch.full_like(question, START))
    action1 = _choose(learner.log_probabilities(inputs1.flatten(1, 2))[0], first)
    inputs2 = encode(question, seen_after(action1 == TOOL, reply < CLEAR, answer))
    action2 = _choose(learner.log_probabilities(inputs2.flatten(1, 2))[1], second)
    done = Rollouts(action1 == TOOL, action2 == answer, action2 == WAIT, luck)
    lost = environment.lost(done, step)
    timeout = done.waits & ~lost & environment.forgives_timeouts
    kinds = np.where(lost.numpy(), SESSION_LOST, np.where(timeout.numpy(), TIMEOUT, None))
    earned = torch.where(done.right, 1.0, torch.where(done.waits, 0.0, environment.credit))
    reward = torch.where(lost, 0.0, earned)
    return Batch(
        torch.stack([inputs1, inputs2]), torch.stack([action1, action2]), reward, lost | timeout, kinds
    )


def _choose(log_probabilities: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Choose actions with uniform random numbers, (S, P, n)."""
    steps = log_probabilities.exp().cumsum(-1).unflatten(1, uniform.shape[1:])
    chosen = (uniform.unsqueeze(-1) > steps).sum(-1)
    return chosen.clamp(max=steps.shape[-1] - 1)
