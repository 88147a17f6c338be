"""A small host made of real files, and wrappers for it."""

import functools
import importlib
import sys

import pytest

from samplemask.seams import Seam

HOST = '''
def mean(rewards, group):
    """Mean of the rewards."""
    return sum(rewards) / len(rewards)

def total(rewards):
    return sum(rewards)

class Trainer:
    def step(self, batch, *, lr=0.1):
        return ("stock", batch, lr)

    @staticmethod
    def helper(x):
        return x

    @classmethod
    def made(cls, size):
        return cls.__name__, size

not_a_function = 3
'''


def seam(attribute, *parameters, module="tiny_host.core") -> Seam:
    return Seam(module, attribute, parameters, "tiny_host 1.0, core.py", "a test", "never")


MEAN = seam("mean", "rewards", "group")


TOTAL = seam("total", "rewards")


STEP = seam("Trainer.step", "self", "batch", "lr")


@pytest.fixture
def host(tmp_path, monkeypatch):
    package = tmp_path / "tiny_host"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "core.py").write_text(HOST)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield importlib.import_module("tiny_host.core")
    for name in [name for name in sys.modules if name.partition(".")[0] == "tiny_host"]:
        del sys.modules[name]


def add_100(original):
    def wrapper(*args, **kwargs):
        return original(*args, **kwargs) + 100

    return wrapper


def mark(original):
    def wrapper(*args, **kwargs):
        return "ours", original(*args, **kwargs)

    return wrapper


def foreign(original):
    @functools.wraps(original)
    def wrapper(*args, **kwargs):
        return original(*args, **kwargs)

    return wrapper
