"""`samplemask doctor`: what is installed here and what is active."""

from __future__ import annotations

import importlib
import importlib.util
import platform
import warnings
from collections.abc import Iterator, Sequence
from typing import Final

import samplemask


class Problem(str):
    """A line that says why a run would not work, or not be masked; the exit status is then 1."""


ADAPTERS: Final = ("samplemask_verl", "samplemask_nemo_rl")


def run_doctor(overrides: Sequence[str] = ()) -> int:
    """Print Python, samplemask and what each adapter says about its host; 1 when one has a problem.

    Args:
        overrides: Overrides of a verl run's command line, to see what that run would do.
    """
    healthy = True
    print(f"Python {platform.python_version()} on {platform.system()}, samplemask {samplemask.__version__}")
    for name in ADAPTERS:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # hosts warn of each optional package that is not there
                for line in _lines(name, overrides):
                    print(f"  {line}" if line != name else line)
                    healthy = healthy and not isinstance(line, Problem)
        except ModuleNotFoundError as error:  # its host is not in this environment: nothing is broken
            print(f"  not usable here: {error}")
        except Exception as error:  # noqa: BLE001 - one broken host must not hide the others
            healthy = False
            print(f"  {name} failed: {type(error).__name__}: {error}")
    return 0 if healthy else 1


def _lines(name: str, overrides: Sequence[str]) -> Iterator[str]:
    """Yield what one adapter says about its host."""
    yield name
    if importlib.util.find_spec(name) is None:
        yield "not installed"
        return
    yield from importlib.import_module(name).doctor(overrides)
