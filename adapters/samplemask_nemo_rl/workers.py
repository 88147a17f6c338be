"""Ray workers: a wrapped function pickles by name, so every worker process installs for itself."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

Function = Callable[..., Any]

HOOK = "worker_process_setup_hook"


def wrap_ray_init(original: Function) -> Function:
    """Make the wrapper of `ray.init` that has each worker process install samplemask as it starts."""

    def init(*args: Any, **kwargs: Any) -> Any:
        environment = dict(kwargs.get("runtime_env") or {})
        environment[HOOK] = worker_hook(environment.get(HOOK))
        environment["env_vars"] = with_import_path(environment.get("env_vars") or {})
        return original(*args, **{**kwargs, "runtime_env": environment})

    return init


def worker_hook(earlier: Function | str | None) -> Function:
    """Return the function that a worker process runs as it starts.

    It travels by value: a worker whose environment has no samplemask says so and goes on, because
    most workers (generation, policy) do not need it. The trainer warns when rollouts arrive unread.

    Args:
        earlier: The hook that was set before, which runs first.
    """

    def hook() -> None:
        import importlib
        import logging

        if isinstance(earlier, str):
            module, _, name = earlier.rpartition(".")
            getattr(importlib.import_module(module), name)()
        elif earlier is not None:
            earlier()
        try:
            importlib.import_module("samplemask_nemo_rl.plugin").install_in_worker()
        except ImportError as error:
            logging.getLogger("samplemask").warning("samplemask is not active in this worker: %s", error)

    hook.__module__ = "__main__"  # cloudpickle sends functions of __main__ by value
    return hook


def with_import_path(env_vars: dict[str, str]) -> dict[str, str]:
    """Add samplemask's own source folders to a worker's PYTHONPATH.

    Only source checkouts (editable installs) are added: they hold nothing but samplemask. The
    site-packages of the driver's environment would shadow the worker's own.
    """
    import samplemask
    import samplemask_nemo_rl

    folders = [
        str(Path(str(inspect.getfile(package))).parents[1]) for package in (samplemask, samplemask_nemo_rl)
    ]
    known = env_vars.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    missing = [
        folder
        for folder in dict.fromkeys(folders)
        if Path(folder).name != "site-packages" and folder not in known.split(os.pathsep)
    ]
    path = os.pathsep.join([*missing, *([known] if known else [])])
    return {**env_vars, "PYTHONPATH": path} if path else env_vars
