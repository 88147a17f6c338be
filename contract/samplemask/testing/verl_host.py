"""verl's own advantage estimators as functions of a `GrpoBatch`. Imports torch and verl when called.

Checked against verl 0.9.1, `verl/trainer/ppo/ray_trainer.py::compute_advantage`, the function through
which the legacy trainer and V1 both reach the estimators.
"""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Callable
from importlib import import_module
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from samplemask.testing.batches import GrpoBatch, pad_tokens
from samplemask.testing.properties import Estimator
from samplemask.testing.synthetic import Stream

Treatment = Literal["stock", "response_mask_zeroed", "installed"]
TWINS = {"grpo": "grpo_vectorized", "rloo": "rloo_vectorized"}
_ALGORITHM = {
    "gamma": 1.0,
    "lam": 0.95,
    "norm_adv_by_std_in_grpo": True,
    "use_pf_ppo": False,
    "gdpo_reward_keys": ["quality", "format"],
}


def verl_estimators() -> list[str]:
    """Return the names of the estimators that this verl registers, sorted."""
    registry = import_module("verl.trainer.ppo.core_algos").ADV_ESTIMATOR_REGISTRY
    return sorted(str(getattr(name, "value", name)) for name in registry)


def is_group_relative(name: str) -> bool:
    """Tell whether an estimator compares a row with its group: whether it takes group ids (`index`)."""
    function = import_module("verl.trainer.ppo.core_algos").get_adv_estimator_fn(name)
    return "index" in inspect.signature(function).parameters


def verl_estimator(name: str, treatment: Treatment = "stock") -> Estimator:
    """Return one of verl's estimators as a function of a batch that gives advantages (B, T).

    Args:
        name: Registered name, such as "grpo". Custom estimators work once they are registered.
        treatment: "stock": verl as it is; the verdict is in the batch but nobody reads it.
            "response_mask_zeroed": stock verl after zeroing the response mask of masked rows.
            "installed": verl as this process has it, with the samplemask plugin where it is active.
    """

    def advantages(batch: GrpoBatch) -> npt.NDArray[np.float64]:
        data = to_verl(batch, zero_masked=treatment == "response_mask_zeroed", baselines=name == "remax")
        function = import_module("verl.trainer.ppo.ray_trainer").compute_advantage
        if treatment != "installed":
            function = _stock(function)
        config = import_module("omegaconf").OmegaConf.create(_ALGORITHM)
        result = function(data, adv_estimator=name, gamma=1.0, lam=0.95, config=config)
        return np.asarray(result.batch["advantages"].double())

    advantages.__name__ = f"verl {name}"
    return advantages


def to_verl(batch: GrpoBatch, *, zero_masked: bool = False, baselines: bool = False) -> Any:
    """Return the batch as verl's DataProto, float32, padded to at least 8 response tokens.

    The verdict is in `non_tensor_batch` (`mask_sample`, `failure_kind`). Values, log-probabilities and
    reward components follow from a row's session, so they move with the row; those of a masked row are
    its reward, whatever that is.

    Args:
        batch: The batch.
        zero_masked: Zero the response mask of masked rows.
        baselines: Add `reward_baselines`, which remax needs.
    """
    torch = import_module("torch")
    mask = pad_tokens(batch.response_mask())
    own = _noise(batch, mask.shape[1])
    noise = np.where(batch.masked_B[:, None], batch.reward_B[:, None], own)
    rewards = torch.from_numpy(pad_tokens(batch.token_reward())).float()
    attention = np.concatenate([np.ones((len(batch), 3), dtype=np.int64), mask], axis=1)
    if zero_masked:
        mask = np.where(batch.masked_B[:, None], 0, mask)
    tensors = {
        "token_level_rewards": rewards,
        "token_level_scores": rewards.clone(),
        "response_mask": torch.from_numpy(mask),
        "values": torch.from_numpy(noise).float(),
        "old_log_probs": -torch.from_numpy(np.abs(noise)).float(),
        "sum_pi_squared": torch.from_numpy(noise).float(),
        "prompts": torch.ones(len(batch), 3).long(),
        "attention_mask": torch.from_numpy(attention),
    }
    if baselines:
        tensors["reward_baselines"] = torch.from_numpy(own[:, 0].copy()).float()
    columns = {
        "uid": batch.group_B.copy(),
        "mask_sample": batch.masked_B.copy(),
        "failure_kind": np.array(batch.kinds_B, dtype=object),
        "quality": batch.reward_B.astype(np.float64),
        "format": noise[:, 1].copy(),
    }
    return import_module("verl").DataProto.from_dict(tensors=tensors, non_tensors=columns)


def _stock(function: Callable[..., Any]) -> Callable[..., Any]:
    while hasattr(function, "__samplemask_seam__"):
        function = inspect.getattr_static(function, "__wrapped__")
    return function


def _noise(batch: GrpoBatch, width: int) -> npt.NDArray[np.float64]:
    noise = np.zeros((len(batch), width))
    for row, (session, order) in enumerate(zip(batch.session_B, batch.order_B, strict=True)):
        noise[row] = Stream(zlib.crc32(f"{session}:{order}".encode())).uniform(width)
    return noise
