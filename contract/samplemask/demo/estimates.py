"""The advantages of the recorded batch without and with samplemask: real verl where it is installed."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
import numpy.typing as npt

from samplemask.policy import MaskPolicy, plan_rows
from samplemask.testing.batches import GrpoBatch, objects
from samplemask.testing.reference import reference_advantage

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Estimates:
    """Advantages of B rows.

    Attributes:
        source: What computed them.
        stock_B: Without samplemask, float64 (B,).
        masked_B: With samplemask.
        trains_B: bool (B,): rows that carry loss with samplemask; without it, all do.
    """

    source: str
    stock_B: FloatArray
    masked_B: FloatArray
    trains_B: npt.NDArray[np.bool_]


def estimate(batch: GrpoBatch) -> Estimates:
    """Estimate with verl's GRPO, or with the reference in plain numpy where verl is not installed."""
    trains_B = plan_rows(batch.masked_B, batch.group_B, MaskPolicy()).trains_B
    if importlib.util.find_spec("verl") is None:
        source = "a reference GRPO in numpy: verl is not installed here (`make demo` runs the real one)"
        stock = reference_advantage(batch, policy=MaskPolicy(action="ignore"))
        return Estimates(source, stock, reference_advantage(batch), trains_B)
    stock, masked = _with_verl(batch)
    return Estimates(f"the real verl {version('verl')}", stock, masked, trains_B)


def _with_verl(batch: GrpoBatch) -> tuple[FloatArray, FloatArray]:
    """Return verl's own advantages with our plugin taken out, and put in; leaves it as it was."""
    plugin = importlib.import_module("samplemask_verl")
    with _quiet():
        importlib.import_module("verl.trainer.ppo.ray_trainer")
    was_active = plugin.is_active()
    plugin.uninstall()
    try:
        stock = _verl_grpo(batch)
        plugin.install()
        return stock, _verl_grpo(batch)
    finally:
        (plugin.install if was_active else plugin.uninstall)()


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep back what verl says at import about engines and accelerators, none of which the demo uses."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def _verl_grpo(batch: GrpoBatch) -> FloatArray:
    """Run verl's `compute_advantage`, the rewards and verdicts where its trainer has them."""
    torch = importlib.import_module("torch")
    protocol = importlib.import_module("verl.protocol")
    trainer = importlib.import_module("verl.trainer.ppo.ray_trainer")
    infos: list[dict[str, Any]] = [
        {"score": float(reward), "mask_sample": bool(flag), "failure_kind": kind or ""}
        for reward, flag, kind in zip(batch.reward_B, batch.masked_B, batch.kinds_B, strict=True)
    ]
    data = protocol.DataProto.from_dict(
        tensors={
            "token_level_rewards": torch.from_numpy(batch.token_reward()),
            "response_mask": torch.from_numpy(batch.response_mask()),
        },
        non_tensors={"uid": batch.group_B, "reward_extra_info": objects(infos)},
    )
    result = trainer.compute_advantage(data, adv_estimator="grpo", norm_adv_by_std_in_grpo=False)
    advantages: FloatArray = result.batch["advantages"][:, 0].double().numpy()
    return advantages
