"""samplemask in TRL's GRPOTrainer: one call in your rollout function, and one reward function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from samplemask import MaskPolicy, plan_rows, read_verdict


def with_verdicts(
    rollouts: Mapping[str, Any], responses: Sequence[Any], group_size: int, policy: MaskPolicy
) -> dict[str, Any]:
    """Add to the result of a `rollout_func` what TRL must know of each row.

    Args:
        rollouts: `prompt_ids`, `completion_ids`, `logprobs`, and `env_mask` where there is one.
        responses: (B,) verify responses, in the same order.
        group_size: TRL's `num_generations`; the rows of a prompt are neighbours in one process.
        policy: The policy.
    """
    verdicts = [read_verdict(response) for response in responses]
    groups = [row // group_size for row in range(len(verdicts))]
    kinds = [verdict.failure_kind for verdict in verdicts]
    plan = plan_rows([verdict.mask_sample for verdict in verdicts], groups, policy, kinds)
    trained = rollouts.get("env_mask") or [[1] * len(ids) for ids in rollouts["completion_ids"]]
    return {
        **rollouts,
        # Trains: no token of the row is in the loss, its denominator, the KL or the entropy term.
        "env_mask": [mask if plan.trains_B[row] else [0] * len(mask) for row, mask in enumerate(trained)],
        # Votes: TRL leaves a row without a score out of its group's mean and standard deviation.
        "score": [verdict.reward if plan.votes_B[row] else None for row, verdict in enumerate(verdicts)],
    }


def score(completions: Sequence[Any], score: Sequence[float | None], **_: Any) -> Sequence[float | None]:
    """Be the trainer's only reward function: a None of one among several would count as 0 there."""
    return score
