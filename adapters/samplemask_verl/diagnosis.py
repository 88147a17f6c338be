"""`samplemask doctor` for verl: is the plugin loaded, does every seam fit, what would a run do."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path

from samplemask.doctor import Problem
from samplemask.errors import SampleMaskError
from samplemask.seams import Seam, seam_status
from samplemask_verl import host_seams
from samplemask_verl.config import WHERE, policy_of
from samplemask_verl.patching import host_has

ALL_SEAMS = tuple(value for value in vars(host_seams).values() if isinstance(value, Seam))
CHECKED = ("0.9.1", "0.8.0")
"""verl versions that integration/verl ran against: the first in CI, 0.8.0 (legacy trainer only) by hand."""

_LOADED = "entry point: verl loads it in every process"


def doctor(overrides: Sequence[str] = ()) -> Iterator[str]:
    """Yield lines about verl in this environment; imports verl's trainers.

    Args:
        overrides: Overrides of a run's command line, such as "+algorithm.mask_sample.action=exclude".
    """
    try:
        found = version("verl")
    except PackageNotFoundError:
        yield "verl is not installed here" + ("; the overrides were not checked" if overrides else "")
        return
    yield f"verl {found}" + ("" if found in CHECKED else f" (checked against {', '.join(CHECKED)})")
    yield _entry_point()
    yield from _policy(overrides)
    yield from _seams()


def _entry_point() -> str:
    """Say whether verl will load the plugin, or why not."""
    if not _loads_plugins():
        if "samplemask_verl.plugin" in os.getenv("VERL_USE_EXTERNAL_MODULES", "").split(","):
            return f"{_LOADED} (VERL_USE_EXTERNAL_MODULES)"
        return Problem(
            "entry point: OFF: this verl does not look for plugins; set "
            "VERL_USE_EXTERNAL_MODULES=samplemask_verl.plugin in the environment of every process"
        )
    if not any(point.name == "samplemask" for point in entry_points(group="verl.plugins")):
        return Problem(
            "entry point: MISSING: samplemask is importable but not installed; "
            "run pip install './samplemask[verl]' in the folder that holds the checkout"
        )
    allowed = os.getenv("VERL_USE_EXTERNAL_PLUGINS", "auto").strip()
    if allowed.lower() != "auto" and "samplemask" not in [name.strip() for name in allowed.split(",")]:
        return Problem(f"entry point: OFF: VERL_USE_EXTERNAL_PLUGINS={allowed} leaves it out")
    if importlib.util.find_spec("wrapt") is None:
        return Problem("entry point: BROKEN: the package wrapt is missing; run pip install wrapt")
    return _LOADED


def _loads_plugins() -> bool:
    """Tell whether this verl loads entry points at all; it does since 0.9."""
    spec = importlib.util.find_spec("verl")
    return spec is not None and spec.origin is not None and "verl.plugins" in Path(spec.origin).read_text()


def _seams() -> Iterator[str]:
    statuses = [seam_status(seam) for seam in ALL_SEAMS if host_has(seam.module)]
    active = sum(status.active for status in statuses)
    yield f"patch points: {active} of {len(statuses)} active in this process"
    for status in statuses:
        yield f"  {'active    ' if status.active else 'NOT ACTIVE'} {status.seam.name}"
        if status.problem:
            yield Problem(f"      {status.problem}")
    if not host_has("verl.trainer.ppo.v1"):
        yield "  this verl has no V1 trainer; its legacy trainer is served"


def _policy(overrides: Sequence[str]) -> Iterator[str]:
    from omegaconf import OmegaConf

    bare = [override for override in overrides if override.startswith(WHERE)]
    if bare:
        yield f"Hydra takes {bare[0]} only with a + before it, unless your own configuration has {WHERE}"
    dotlist = [override.lstrip("+~") for override in overrides]
    config = OmegaConf.from_dotlist(dotlist)
    try:
        policy = policy_of(config.get("algorithm"))
    except SampleMaskError as error:
        yield Problem(f"a run with these overrides would STOP AT START: {error}")
        return
    yield f"a run would use {WHERE}: {policy}"
