"""The task: a question whose answer may be guessed, or asked of a tool.

Turn 1: answer directly, or use the tool. Turn 2: one of four answers, or wait until the session times out.
Every question has a usual answer, right half of the time, so guessing earns 0.5 at best. The tool replies
with the answer in 70 % of the calls, else with a hint that leaves two answers: it earns 0.85 at best.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

QUESTIONS, ANSWERS = 6, 4
DIRECT, TOOL = 0, 1
WAIT = ANSWERS
"""The action of turn 2 that never answers."""

USUAL, CLEAR = 0.5, 0.7
"""Chances that the usual answer is right, and that the tool replies with the answer."""

START, NO_REPLY, FIRST_ANSWER, FIRST_HINT = 0, 1, 2, 2 + ANSWERS
SEEN = FIRST_HINT + ANSWERS // 2
"""Number of things that the policy can see in a turn."""

UNIFORMS = 4
"""Random numbers that one rollout needs: reply, turn 1, turn 2, failure."""


@dataclass(frozen=True)
class Prompts:
    """Prompts of shape (S, P): the question asked, and the answer that is right this time."""

    question_SP: torch.Tensor
    answer_SP: torch.Tensor


def usual_answer(question: torch.Tensor) -> torch.Tensor:
    """Return the usual answer of each question."""
    return question * 3 % ANSWERS


def prompts_of(uniform_SP2: torch.Tensor) -> Prompts:
    """Make prompts from two uniform random numbers each."""
    question = (uniform_SP2[..., 0] * QUESTIONS).long()
    other = ((uniform_SP2[..., 1] - USUAL) / (1 - USUAL) * (ANSWERS - 1)).long().clamp(min=0)
    usual = uniform_SP2[..., 1] < USUAL
    return Prompts(question, (usual_answer(question) + torch.where(usual, 0, 1 + other)) % ANSWERS)


def seen_after(tool: torch.Tensor, clear: torch.Tensor, answer: torch.Tensor) -> torch.Tensor:
    """Return what the policy sees in turn 2."""
    hint = FIRST_HINT + torch.div(answer, 2, rounding_mode="floor")
    return torch.where(tool, torch.where(clear, FIRST_ANSWER + answer, hint), NO_REPLY)


def every_input() -> torch.Tensor:
    """Return all pairs of question and what can be seen, one-hot (QUESTIONS * SEEN, inputs)."""
    question = torch.arange(QUESTIONS).repeat_interleave(SEEN)
    return encode(question, torch.arange(SEEN).repeat(QUESTIONS))


def encode(question: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """Return the policy's input, one-hot (..., QUESTIONS + SEEN)."""
    one_hot = torch.nn.functional.one_hot
    return torch.cat([one_hot(question, QUESTIONS), one_hot(seen, SEEN)], dim=-1).float()


def chance_of_answers() -> torch.Tensor:
    """Return the chance of each answer for each question, (QUESTIONS, ANSWERS)."""
    chances = torch.full((QUESTIONS, ANSWERS), (1 - USUAL) / (ANSWERS - 1))
    return chances.scatter(1, usual_answer(torch.arange(QUESTIONS)).unsqueeze(1), USUAL)


def uniforms(seeds: range, step: int, attempt: int, prompts: int, group: int) -> torch.Tensor:
    """Return the random numbers of one step, (S, prompts, 2 + group * UNIFORMS).

    They depend on the seed, the step and the attempt only, so every arm meets the same prompts and the
    same luck, and a seed's run does not depend on which other seeds run with it.
    """
    shape = (prompts, 2 + group * UNIFORMS)
    drawn = [np.random.default_rng([seed, step, attempt]).random(shape) for seed in seeds]
    return torch.from_numpy(np.stack(drawn)).float()
