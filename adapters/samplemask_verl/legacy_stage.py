"""What verl's legacy trainer works out over the whole batch before it computes advantages.

The KL penalty in the reward steers an adaptive controller with the batch's mean KL, and rollout
correction can normalise its weights over the batch. Both must see only the rows that vote; the V1
trainer does both inside its advantage stage, which samplemask runs on those rows anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch

from samplemask_verl.config import acts, policy_of

Wrapper = Callable[..., Any]
Votes = Callable[[Any, Any], Any]

_algorithm: ContextVar[Any] = ContextVar("samplemask_legacy_algorithm", default=None)


def wrap_fit(original: Wrapper) -> Wrapper:
    """Make the algorithm section known to the functions that are not given it, while training runs."""

    def fit(self: Any) -> Any:
        token = _algorithm.set(self.config.algorithm)
        try:
            return original(self)
        finally:
            _algorithm.reset(token)

    return fit


def on_voting_rows(votes: Votes) -> Callable[[Wrapper], Wrapper]:
    """Return the maker of the wrapper around a function that takes a batch and returns it with metrics.

    Args:
        votes: Takes the batch and the algorithm section; returns bool (B,).
    """

    def make(original: Wrapper) -> Wrapper:
        def stage(*args: Any, **kwargs: Any) -> Any:
            algorithm = _algorithm.get()
            if algorithm is None or not args or not acts(policy_of(algorithm)):
                return original(*args, **kwargs)
            data = args[0]
            votes_B = votes(data, algorithm)
            if votes_B.all():
                return original(*args, **kwargs)
            if not votes_B.any():
                data.batch["token_level_rewards"] = data.batch["token_level_scores"]
                return data, {}
            voting = data.select_idxs(np.flatnonzero(votes_B))
            result, metrics = original(voting, *args[1:], **kwargs)
            _take_over(data, result, torch.from_numpy(votes_B))
            return data, metrics

        return stage

    return make


def _take_over(data: Any, result: Any, votes_B: torch.Tensor) -> None:
    """Copy a result's columns into the voting rows; the other rows keep what they have.

    A column that is new is zero there, but rewards are the scores: what is no number must stay visible.
    """
    for name, value in result.batch.items():
        known = data.batch.get(name)
        if known is None and name == "token_level_rewards":
            known = data.batch["token_level_scores"]
        full = value.new_zeros((len(votes_B), *value.shape[1:])) if known is None else known.clone()
        full[votes_B] = value
        data.batch[name] = full
