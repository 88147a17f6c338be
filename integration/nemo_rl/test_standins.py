"""The stand-ins of the fast tests have the parameters of the real functions."""

import functools
import importlib
import inspect
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))
from nemo_rl_standins import STANDINS


def resolve(name):
    """Import the longest module prefix of a dotted name and walk the rest."""
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        try:
            module = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        return functools.reduce(getattr, parts[cut:], module)
    raise AssertionError(name)


@pytest.mark.parametrize("name", STANDINS)
def test_a_standin_has_the_parameters_of_the_host(name):
    real, standin = (inspect.signature(function).parameters for function in (resolve(name), STANDINS[name]))
    assert [(p.name, p.kind) for p in standin.values()] == [(p.name, p.kind) for p in real.values()]
