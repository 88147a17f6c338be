"""A small policy, many seeds at once: every tensor's first axis is the seed, and no seed touches another."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from outage.task import ANSWERS, QUESTIONS, SEEN

HIDDEN = 24
_TURN_1 = 2
_FIRST, _SECOND, _EPSILON = 0.9, 0.999, 1e-8  # Adam's, as in verl
MAX_NORM = 1.0
"""Gradients are clipped to this norm, seed by seed, as verl does."""


class Learner:
    """Policies of S seeds, one hidden layer each, and their Adam optimizers."""

    def __init__(self, seeds: Sequence[int], learning_rate: float) -> None:
        shapes = ((QUESTIONS + SEEN, HIDDEN), (HIDDEN, _TURN_1 + ANSWERS + 1))
        self.weights = [_initial(seeds, layer, shape) for layer, shape in enumerate(shapes)]
        self._means = [torch.zeros_like(weight) for weight in self.weights]
        self._squares = [torch.zeros_like(weight) for weight in self.weights]
        self._updates_S = torch.zeros(len(seeds), 1, 1)
        self._learning_rate = learning_rate

    def log_probabilities(self, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the log-probabilities of turn 1 (S, N, 2) and turn 2 (S, N, ANSWERS + 1).

        Args:
            inputs: One-hot (S, N, inputs), or (N, inputs) for all seeds alike.
        """
        logits = torch.tanh(inputs @ self.weights[0]) @ self.weights[1]
        return logits[..., :_TURN_1].log_softmax(-1), logits[..., _TURN_1:].log_softmax(-1)

    def step(self, loss_S: torch.Tensor, trains_S: torch.Tensor) -> None:
        """Take one clipped Adam step for each seed that trains; the others stay exactly as they are."""
        gradients = torch.autograd.grad(loss_S.sum(), self.weights)
        norm_S = torch.stack([(gradient**2).sum((1, 2)) for gradient in gradients]).sum(0).sqrt()
        scale = (MAX_NORM / (norm_S + 1e-6)).clamp(max=1.0)[:, None, None]
        trains = trains_S[:, None, None]
        self._updates_S += trains
        with torch.no_grad():
            for place, gradient in enumerate(gradients):
                self._update(place, gradient * scale, trains)

    def _update(self, place: int, gradient: torch.Tensor, trains: torch.Tensor) -> None:
        mean = self._means[place].lerp(gradient, 1 - _FIRST)
        square = self._squares[place].lerp(gradient**2, 1 - _SECOND)
        age = self._updates_S.clamp(min=1)
        move = (mean / (1 - _FIRST**age)) / ((square / (1 - _SECOND**age)).sqrt() + _EPSILON)
        self._means[place] = torch.where(trains, mean, self._means[place])
        self._squares[place] = torch.where(trains, square, self._squares[place])
        self.weights[place] -= torch.where(trains, self._learning_rate * move, 0.0)


def _initial(seeds: Sequence[int], layer: int, shape: tuple[int, int]) -> torch.Tensor:
    drawn = [
        torch.randn(shape, generator=torch.Generator().manual_seed(1000 * seed + layer)) for seed in seeds
    ]
    return (torch.stack(drawn) * (0.7 if layer == 0 else 0.1)).requires_grad_()
