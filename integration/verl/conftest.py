"""Makes the test bed importable (pytest's importlib mode does not); one Ray cluster; the plugin."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def transfer_queue():
    """A second cluster in the same process could not be reached."""
    ray = pytest.importorskip("ray")
    tq = pytest.importorskip("transfer_queue", reason="TransferQueue is not installed")
    # Logical CPUs: TransferQueue waits for ever when Ray believes that there are only two.
    ray.init(num_cpus=16, include_dashboard=False, log_to_driver=False)
    tq.init()
    yield tq
    ray.shutdown()


@pytest.fixture(scope="module")
def plugin():
    """samplemask installed in this process; modules ask for it with `pytest.mark.usefixtures`."""
    samplemask_verl = pytest.importorskip("samplemask_verl")
    samplemask_verl.install()
    yield
    samplemask_verl.uninstall()
