"""Real NeMo-RL: tests run against a checkout named by SAMPLEMASK_NEMO_RL_CHECKOUT, and skip without one."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

CHECKOUT = os.environ.get("SAMPLEMASK_NEMO_RL_CHECKOUT")
_SITE = Path(__file__).parent / "site"


def _reason() -> str | None:
    if not CHECKOUT:
        return "SAMPLEMASK_NEMO_RL_CHECKOUT names no NeMo-RL checkout (docs/nemo-rl.md says how to get one)"
    if not (Path(CHECKOUT) / "nemo_rl" / "__init__.py").is_file():
        return f"SAMPLEMASK_NEMO_RL_CHECKOUT={CHECKOUT} is not a NeMo-RL checkout"
    missing = [
        name for name in ("torch", "ray", "pydantic", "wrapt") if importlib.util.find_spec(name) is None
    ]
    return f"NeMo-RL's packages are missing here: {', '.join(missing)}" if missing else None


REASON = _reason()
collect_ignore_glob = ["test_*.py"] if REASON else []

if REASON is None:
    sys.path[:0] = [str(CHECKOUT), str(_SITE), str(_SITE.parent)]
    importlib.import_module("nemo_rl_shim")
    # Ray workers start as new processes: they find the checkout and the shim the same way.
    _paths = [str(_SITE), str(_SITE.parent), str(CHECKOUT), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in _paths if path)


@pytest.fixture(scope="session")
def checkout() -> Path:
    """Folder of the NeMo-RL checkout."""
    assert CHECKOUT is not None
    return Path(CHECKOUT)


@pytest.fixture
def adapter():
    """The adapter, installed for one test."""
    import samplemask_nemo_rl

    samplemask_nemo_rl.install()
    yield samplemask_nemo_rl
    samplemask_nemo_rl.uninstall()
