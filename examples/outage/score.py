"""What a policy is worth, and how far it is from another: sums over all rollouts, so without noise."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from outage.learner import Learner
from outage.task import (
    ANSWERS,
    CLEAR,
    QUESTIONS,
    SEEN,
    START,
    TOOL,
    WAIT,
    chance_of_answers,
    every_input,
    seen_after,
)


@dataclass(frozen=True)
class Score:
    """One policy per seed, judged without any failure.

    Attributes:
        reward_S: Expected true reward.
        tool_S: Share of rollouts that use the tool.
        wait_S: Share of rollouts that wait for the timeout.
        turn1: Log-probabilities of turn 1, (S, QUESTIONS, 2).
        turn2: Log-probabilities of turn 2, (S, QUESTIONS, SEEN, ANSWERS + 1).
    """

    reward_S: torch.Tensor
    tool_S: torch.Tensor
    wait_S: torch.Tensor
    turn1: torch.Tensor
    turn2: torch.Tensor


@torch.no_grad()
def score(learner: Learner) -> Score:
    """Score policies over all questions, answers and replies, each weighted by its chance."""
    parts = learner.log_probabilities(every_input())
    turn1, turn2 = (part.unflatten(1, (QUESTIONS, SEEN)) for part in parts)
    turn1 = turn1[:, :, START]
    arrival = _arrival(turn1)
    chosen = turn2.exp()[:, :, _seen()]  # (S, question, way, answer, action)
    right = chosen[..., :ANSWERS].diagonal(dim1=-2, dim2=-1)
    waits = (arrival * chosen[..., WAIT]).sum((1, 2, 3))
    return Score((arrival * right).sum((1, 2, 3)), turn1[..., TOOL].exp().mean(1), waits, turn1, turn2)


def divergence(reference: Score, other: Score) -> torch.Tensor:
    """Return KL(reference || other) of a whole rollout in nats, (S,)."""
    first = _kl(reference.turn1, other.turn1).mean(1)
    second = _kl(reference.turn2, other.turn2)[:, :, _seen()]
    return first + (_arrival(reference.turn1) * second).sum((1, 2, 3))


def _seen() -> torch.Tensor:
    """What is seen in turn 2 by way (no tool, clear reply, hint) and right answer, (3, ANSWERS)."""
    tool, clear = torch.tensor([[False], [True], [True]]), torch.tensor([[False], [True], [False]])
    return seen_after(tool, clear, torch.arange(ANSWERS).expand(3, ANSWERS))


def _arrival(turn1: torch.Tensor) -> torch.Tensor:
    """Chance of each question, way and right answer, (S, QUESTIONS, 3, ANSWERS)."""
    direct, tool = turn1.exp().unbind(-1)
    ways = torch.stack([direct, tool * CLEAR, tool * (1 - CLEAR)], dim=-1)
    return ways.unsqueeze(-1) * chance_of_answers().unsqueeze(1) / QUESTIONS


def _kl(reference: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return (reference.exp() * (reference - other)).sum(-1)
