"""Advantages from the real verl, with samplemask active in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from verl import DataProto
from verl.trainer.ppo import ray_trainer

import samplemask_verl

TURNS = 2


def advantages(
    reward: torch.Tensor, masked: torch.Tensor, kinds: np.ndarray, mask_sample: Mapping[str, Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run verl's GRPO on the batches of all seeds.

    Groups are all that GRPO compares, so the seeds share one call. Only the outage rule looks at a whole
    batch; a policy that has one is asked seed by seed.

    Args:
        reward: float (S, P, n), as the environment reports it.
        masked: bool (S, P, n), the environment's verdict.
        kinds: Failure kinds, None where there is none, object (S, P, n).
        mask_sample: verl's `algorithm.mask_sample`.

    Returns:
        Advantages and verl's response mask, without rows that do not train, both (S, P, n, TURNS).
    """
    samplemask_verl.install()
    if "max_masked_fraction" not in mask_sample:
        return _run(reward, masked, kinds, mask_sample)
    runs = [
        _run(reward[seed : seed + 1], masked[seed : seed + 1], kinds[seed : seed + 1], mask_sample)
        for seed in range(len(reward))
    ]
    estimated, trained = zip(*runs, strict=True)
    return torch.cat(estimated), torch.cat(trained)


def _run(
    reward: torch.Tensor, masked: torch.Tensor, kinds: np.ndarray, mask_sample: Mapping[str, Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    shape, rows = reward.shape, reward.numel()
    tokens = torch.zeros(rows, TURNS)
    tokens[:, -1] = reward.flatten()
    groups = np.repeat(np.arange(shape[0] * shape[1]), shape[2])
    data = DataProto.from_dict(
        tensors={"token_level_rewards": tokens, "response_mask": torch.ones(rows, TURNS, dtype=torch.long)},
        non_tensors={
            "uid": groups,
            "mask_sample": masked.flatten().numpy(),
            "failure_kind": kinds.reshape(-1),
        },
    )
    data = ray_trainer.compute_advantage(
        data,
        adv_estimator="grpo_vectorized",
        norm_adv_by_std_in_grpo=True,
        config={"mask_sample": dict(mask_sample)},
    )
    return tuple(data.batch[name].reshape(*shape, TURNS) for name in ("advantages", "response_mask"))
