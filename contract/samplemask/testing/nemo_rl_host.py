"""A `GrpoBatch` as NeMo-RL's batch. Imports torch and nemo_rl when called.

Checked against NVIDIA-NeMo/RL at commit 7ea279a, `nemo_rl/distributed/batched_data_dict.py` and
`nemo_rl/algorithms/advantage_estimator.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from samplemask.groups import group_codes
from samplemask.testing.batches import GrpoBatch, pad_tokens
from samplemask.testing.properties import Estimator


def to_nemo_rl(batch: GrpoBatch) -> Any:
    """Return the batch as a BatchedDataDict, padded to 8 tokens, with the columns that NeMo-RL's GRPO reads.

    `prompt_ids` is one number per prompt, `mask_sample` is the verdict as the adapter carries it,
    `loss_multiplier` is 0 in masked and padding rows as NeMo-RL's own masking leaves it, and each row's
    `extra_env_info` holds its verify response.
    """
    torch = import_module("torch")
    codes_B, _ = group_codes(batch.group_B, len(batch))
    silent_B = batch.masked_B | batch.padding_B
    components = np.stack([batch.reward_B, np.ones(len(batch))], axis=1).astype(np.float32)
    responses = iter(batch.rows())
    columns = {
        "prompt_ids": torch.from_numpy(codes_B.astype(np.int64))[:, None],
        "total_reward": torch.from_numpy(batch.reward_B.astype(np.float32)),
        "reward/quality": torch.from_numpy(components[:, 0].copy()),
        "reward/format": torch.from_numpy(components[:, 1].copy()),
        "mask_sample": torch.from_numpy(batch.masked_B.copy()),
        "loss_multiplier": torch.from_numpy(np.where(silent_B, 0.0, 1.0).astype(np.float32)),
        "token_mask": torch.from_numpy(pad_tokens(batch.response_mask())),
        "length": torch.from_numpy(batch.length_B.copy()),
        "idx": list(range(len(batch))),
        "extra_env_info": [
            {"padding": True} if padding else {"full_result": next(responses)} for padding in batch.padding_B
        ],
    }
    return import_module("nemo_rl.distributed.batched_data_dict").BatchedDataDict(columns)


def nemo_rl_estimator(estimator: Any, compute: Callable[..., Any] | None = None) -> Estimator:
    """Return one of NeMo-RL's advantage estimators as a function of a batch.

    Args:
        estimator: An instance, such as `GRPOAdvantageEstimator(...)`.
        compute: What to call instead of its `compute_advantage`, such as the adapter's wrapper.
    """

    def advantages(batch: GrpoBatch) -> npt.NDArray[np.float64]:
        columns = to_nemo_rl(batch)
        result = (compute or estimator.compute_advantage)(
            prompt_ids=columns["prompt_ids"],
            rewards=columns["total_reward"],
            mask=columns["token_mask"],
            repeated_batch=columns,
        )
        first = result[0] if isinstance(result, tuple) else result
        return np.asarray(first.double())

    return advantages
