"""Installs the adapter in this process: the driver's script, or a Ray worker."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import sys
from collections.abc import Iterable, Sequence
from types import ModuleType

from samplemask.doctor import Problem
from samplemask.errors import SeamError
from samplemask.seams import MakeWrapper, Patches, Seam, SeamStatus, seam_status
from samplemask_nemo_rl import host_seams as seams

logger = logging.getLogger("samplemask")

_patches = Patches()
_HELP = "To run NeMo-RL without samplemask, start your script directly."

Pairs = list[tuple[Seam, MakeWrapper]]


def install() -> None:
    """Patch NeMo-RL in this process and in every Ray worker that it starts. Harmless when already done.

    Call it before `ray.init`. Imports NeMo-RL's trainers.

    Raises:
        SeamError: This NeMo-RL is not one that the adapter was checked against; nothing was patched.
    """
    logger.setLevel(os.getenv("NRL_LOG_LEVEL", "INFO"))  # NeMo-RL leaves the root logger at WARNING
    _import_host()
    ray = importlib.import_module("ray")
    if ray.is_initialized() and not is_active():
        logger.warning("Ray runs already, so its workers have no samplemask: call install() before ray.init")
    _patch(_all_pairs())


def install_in_worker() -> None:
    """Patch, in a Ray worker, each host module that rollouts and estimators need when it is imported.

    The trainers' loops and the actors' own methods are not patched here: the loops run in the
    driver, and Ray sends an actor's class to its worker by value, as the driver patched it.
    """
    import wrapt

    for name, pairs in worker_pairs().items():

        def hook(module: ModuleType, pairs: Pairs = pairs) -> None:
            _patch(pairs)

        if name in sys.modules:
            hook(sys.modules[name])
        else:
            wrapt.register_post_import_hook(hook, name)


def uninstall() -> None:
    """Put NeMo-RL's own functions back in this process; workers keep theirs until they end.

    Raises:
        SeamError: Something wrapped them after samplemask.
    """
    _patches.uninstall()


def is_active() -> bool:
    """Tell whether NeMo-RL is patched in this process."""
    return bool(_patches.seams)


def doctor(overrides: Sequence[str] = ()) -> Iterable[str]:
    """Yield lines about NeMo-RL and each seam; imports NeMo-RL's trainers."""
    try:
        host = _import_host()
    except ImportError as error:
        yield f"nemo_rl: not importable here ({error})"
        return
    version = getattr(host, "__version__", "of unknown version")
    yield f"nemo_rl {version} in {_folder(host)}, process {os.getpid()}"
    yield f"checked against commit {seams.CHECKED}"
    for seam in all_seams():
        status = seam_status(seam)
        yield f"{_state(status)}  {seam.name}"
        if status.problem:
            yield Problem(f"    {status.problem}")


def _state(status: SeamStatus) -> str:
    if status.active:
        return "active"
    return "PROBLEM" if status.problem else "fits, not active in this process"


def all_seams() -> list[Seam]:
    """Return every seam, in the order of patching."""
    return [seam for seam, _ in _all_pairs()]


def _all_pairs() -> Pairs:
    """Return first what others rest on: who finds the outer function patched finds the inner one patched."""
    return [*(pair for pairs in worker_pairs().values() for pair in pairs), *driver_pairs()]


def driver_pairs() -> Pairs:
    """Return the seams of the process that runs the training script."""
    from samplemask_nemo_rl import estimators, loops, rollouts, single_controller, workers

    newer = seams.NEWER_ADVANTAGE_STAGE
    return [
        *((seam, estimators.wrap_create_estimator) for seam in seams.CREATE_ESTIMATOR),
        *((seam, loops.wrap_scale_rewards) for seam in seams.SCALE_REWARDS),
        *((seam, loops.wrap_statistics) for seam in seams.STATISTICS),
        (seams.FROM_BATCHES, loops.wrap_from_batches),
        (seams.COMPONENT_KEYS, loops.wrap_reward_components),
        (seams.PENALTIES, loops.wrap_penalties),
        (seams.LOG_INFORMATION, loops.wrap_log_information),
        (seams.PPO_MASKING, loops.wrap_ppo_masking),
        *((seam, loops.wrap_train) for seam in seams.TRAIN),
        (seams.TRAIN_FROM_META, loops.wrap_train_from_meta),
        (seams.SYNC_ROLLOUT, rollouts.wrap_sync_rollout),
        (seams.ROLLOUT_TO_DATA_PLANE, rollouts.wrap_rollout_to_data_plane),
        (seams.RESULT_OF_GYM, rollouts.wrap_result_of_gym),
        *([] if _exists(newer) else [(seams.ADVANTAGE_STAGE, single_controller.wrap_advantage_stage)]),
        (seams.PUMP_METRICS, single_controller.wrap_pump_metrics),
        (seams.RAY_INIT, workers.wrap_ray_init),
    ]


def worker_pairs() -> dict[str, Pairs]:
    """Return the seams that every process needs, per host module."""
    from samplemask_nemo_rl import estimators, rollouts, single_controller

    newer = seams.NEWER_ADVANTAGE_STAGE
    pairs: Pairs = [
        (seams.COMPONENT_STATISTICS, estimators.wrap_statistics_of_components),
        *((seam, estimators.wrap_compute_advantage) for seam in seams.ESTIMATORS),
        (seams.POSTPROCESS_GROUP, rollouts.wrap_postprocess_group),
        (seams.RECORD_TO_BATCH, rollouts.wrap_record_to_train_batch),
        (seams.RESULT_TO_COMPLETION, rollouts.wrap_result_to_completion),
        (seams.STREAM_ROWS, rollouts.wrap_stream_rows),
        *([(newer, single_controller.wrap_newer_stage)] if _exists(newer) else []),
    ]
    by_module: dict[str, Pairs] = {}
    for seam, make in pairs:
        by_module.setdefault(seam.module, []).append((seam, make))
    return by_module


def _exists(seam: Seam) -> bool:
    """Tell whether the host has the module of a seam; imports the module's parents."""
    try:
        return importlib.util.find_spec(seam.module) is not None
    except ImportError:
        return False


def _import_host() -> ModuleType:
    host = importlib.import_module("nemo_rl")
    for seam in all_seams():
        importlib.import_module(seam.module)
    return host


def _patch(pairs: Pairs) -> None:
    try:
        _patches.install(pairs)
    except SeamError as error:
        raise SeamError(f"samplemask cannot work with this NeMo-RL.\n{error}\n{_HELP}") from error


def _folder(module: ModuleType) -> str:
    return next(iter(getattr(module, "__path__", [])), "an unknown folder")
