"""Puts the adapter into verl and takes it out again."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from samplemask.errors import SeamError
from samplemask.seams import MakeWrapper, Patches, Seam
from samplemask_verl import host_seams as seams

logger = logging.getLogger("samplemask")
logger.setLevel(os.getenv("VERL_LOGGING_LEVEL", "INFO"))  # verl leaves the root logger at WARNING

_patches = Patches()
_HELP = "To run verl without samplemask, uninstall it or set VERL_USE_EXTERNAL_PLUGINS=none."


def install() -> None:
    """Patch verl in this process, importing its trainers. Harmless when already done.

    Raises:
        SeamError: This verl is not one that the adapter was checked against; nothing was patched.
    """
    for module, patch in HOOKS.items():
        if host_has(module):
            patch(importlib.import_module(module))


def host_has(module: str) -> bool:
    """Tell whether this verl has a module; verl 0.8 has no V1 trainer."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def uninstall() -> None:
    """Put verl's own functions back in this process.

    Raises:
        SeamError: Something wrapped them after samplemask.
    """
    _patches.uninstall()


def is_active() -> bool:
    """Tell whether verl is patched in this process."""
    return bool(_patches.seams)


def _patch_legacy(module: ModuleType) -> None:
    from samplemask_verl import advantage, components, legacy_stage, steps

    skip = steps.wrap_legacy_update(module)
    on_voting_rows = legacy_stage.on_voting_rows(advantage.voting_rows(module))
    _patch(  # first what others rest on: who finds the outer function patched finds the inner one patched
        [
            (seams.COMPONENT, components.wrap_component),
            (seams.COMPUTE_ADVANTAGE, advantage.wrap_compute_advantage(module)),
            (seams.LEGACY_METRICS, steps.wrap_data_metrics),
            (seams.LEGACY_START, _checking_policy),
            (seams.LEGACY_UPDATE_ACTOR, skip),
            (seams.LEGACY_UPDATE_CRITIC, skip),
            (seams.LEGACY_VALIDATION, steps.wrap_validation),
            (seams.LEGACY_KL, on_voting_rows),
            (seams.LEGACY_CORRECTION, on_voting_rows),
            (seams.LEGACY_FIT, legacy_stage.wrap_fit),
        ]
    )


def _patch_v1(module: ModuleType) -> None:
    from samplemask_verl import refill, stage_queue, steps, v1

    _patch(
        [
            (seams.V1_READ, stage_queue.wrap_get),
            (seams.V1_WRITE, stage_queue.wrap_put),
            (seams.V1_STORE, stage_queue.wrap_async_put),
            (seams.V1_REWARD, stage_queue.wrap_reward),
            (seams.V1_ADVANTAGE, v1.wrap_compute_advantage(module)),
            (seams.V1_START, _checking_policy),
            (seams.V1_STEP, steps.wrap_step),
            (seams.V1_UPDATE_ACTOR, steps.wrap_v1_update),
            (seams.V1_UPDATE_CRITIC, steps.wrap_v1_update),
            (seams.V1_COMPUTE_METRICS, steps.wrap_v1_metrics),
            (seams.V1_METRICS, steps.wrap_data_metrics),
            (seams.V1_VALIDATION, steps.wrap_validation),
            (seams.V1_BUFFER, refill.wrap_build_replay_buffer(v1.make_judge(module))),
            (seams.EVICTION, refill.wrap_eviction_reasons),
            (seams.EVICTION_ASYNC, refill.wrap_eviction_reasons),
            (seams.GROUP_FILTER, refill.wrap_group_filter),
        ]
    )


def _patch_engine(module: ModuleType) -> None:
    from verl.utils import tensordict_utils

    from samplemask_verl import loss

    _patch([(seams.TRAIN_BATCH, loss.wrap_train_batch(module, tensordict_utils))])


HOOKS: dict[str, Callable[[ModuleType], None]] = {  # what to do with a verl module once it is there
    "verl.trainer.ppo.ray_trainer": _patch_legacy,
    "verl.trainer.ppo.v1.trainer_base": _patch_v1,
    "verl.workers.engine.base": _patch_engine,
}


def _patch(wrappers: list[tuple[Seam, MakeWrapper]]) -> None:
    try:
        _patches.install(wrappers)
    except SeamError as error:
        raise SeamError(f"samplemask cannot work with this verl.\n{error}\n{_HELP}") from error


def _checking_policy(original: Callable[..., Any]) -> Callable[..., Any]:
    """Make a trainer's constructor read the policy first: an error at start, not in step 400."""
    from samplemask_verl.config import policy_of

    def __init__(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        policy = policy_of(config.algorithm)
        logger.info("samplemask active in verl: %s", policy)
        original(self, config, *args, **kwargs)

    return __init__
