"""NeMo-RL's own tests pass with the adapter installed, as they do without it.

They ask for the one Ray cluster of the machine, so they fail while another one runs.
"""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

# Files whose tests need no GPU and no model; the estimators' own tests stand in test_grpo.py.
SUITES = (
    "algorithms/test_grpo.py",
    "algorithms/test_ppo.py",
    "algorithms/test_advantage_estimator.py",
    "algorithms/test_utils.py",
    "experience/test_rollout_manager.py",
    "experience/test_reward_penalties.py",
    "data_plane/test_sync_one_hop.py",
)


@pytest.mark.parametrize("suite", SUITES)
def test_the_hosts_own_tests_pass(checkout, suite):
    command = [sys.executable, "-m", "pytest", "-p", "samplemask_installed", "-o", "addopts=", "-q"]
    conftest = [] if suite != "algorithms/test_ppo.py" else ["--noconftest"]
    run = subprocess.run(
        [*command, *conftest, f"tests/unit/{suite}"],
        cwd=checkout,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    assert " passed" in run.stdout
