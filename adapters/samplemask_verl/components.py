"""Multi-reward estimators: a component not measured for a row is out of that component's statistics only.

verl's gdpo normalises each component of `algorithm.gdpo_reward_keys` within its group by calling
`compute_grpo_outcome_advantage` on that component. A component that a reward function returns as None
or NaN reaches that call as NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch

from samplemask.policy import MaskPolicy, plan_rows
from samplemask_verl.config import estimator_name

_judging: ContextVar[tuple[MaskPolicy, list[int]] | None] = ContextVar("samplemask_components", default=None)


@contextmanager
def component_statistics(policy: MaskPolicy, adv_estimator: Any) -> Iterator[list[int]]:
    """Judge each component by itself while verl's gdpo runs; does nothing for other estimators.

    Args:
        policy: Gives `min_valid`, which holds for each component's group.
        adv_estimator: The estimator that is about to run.

    Yields:
        How many values of each incomplete component were left out; the caller clears it between runs.
    """
    left_out: list[int] = []
    token = _judging.set((policy, left_out) if estimator_name(adv_estimator) == "gdpo" else None)
    try:
        yield left_out
    finally:
        _judging.reset(token)


def wrap_component(original: Callable[..., Any]) -> Callable[..., Any]:
    """Make the wrapper around `core_algos.compute_grpo_outcome_advantage`."""

    def compute_grpo_outcome_advantage(
        token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: Any, *args: Any, **kwargs: Any
    ) -> Any:
        judging = _judging.get()
        if judging is None:
            return original(token_level_rewards, response_mask, index, *args, **kwargs)
        measured_B = torch.isfinite(token_level_rewards.sum(dim=-1))
        if bool(measured_B.all()):
            return original(token_level_rewards, response_mask, index, *args, **kwargs)
        policy, left_out = judging
        left_out.append(int((~measured_B).sum()))
        statistics = MaskPolicy(min_valid=policy.min_valid)
        votes_B = plan_rows(~measured_B.cpu().numpy(), index, statistics).votes_B
        advantages = torch.zeros_like(token_level_rewards)
        if votes_B.any():
            rows = torch.from_numpy(votes_B).to(token_level_rewards.device)
            of_rows, _ = original(
                token_level_rewards[rows], response_mask[rows], index[votes_B], *args, **kwargs
            )
            advantages[rows] = of_rows
        return advantages, advantages

    return compute_grpo_outcome_advantage
