"""Many threads compute advantages in one process, each with a batch of its own: on stand-ins, no host."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("torch", reason="torch is not installed here")
import nemo_rl_standins as host
import torch

from samplemask.seams import Patches, Seam
from samplemask_nemo_rl import estimators
from samplemask_nemo_rl.columns import MASKED
from samplemask_nemo_rl.decision import ledger

ESTIMATOR = "GRPOAdvantageEstimator.compute_advantage"
SEAM = Seam(
    "nemo_rl_standins", ESTIMATOR, ("self", "prompt_ids", "rewards", "mask"), "here", "a test", "never", True
)
REWARDS = [1.0, 1.0, 0.0, 0.0]
MASKS = [[0, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0], [0, 0, 0, 1], [1, 1, 1, 0]]
INSTALLED = [
    [2 / 3, 0, -1 / 3, -1 / 3],
    [0, 0, 0, 0],
    [1 / 2, 1 / 2, -1 / 2, -1 / 2],
    [1 / 3, 1 / 3, -2 / 3, 0],
    [0, 0, 0, 0],
]
STOCK = [1 / 2, 1 / 2, -1 / 2, -1 / 2]


@pytest.fixture(autouse=True)
def _often_another_thread():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    ledger.begin()
    yield
    ledger.begin()
    sys.setswitchinterval(interval)


def advantages(masked):
    batch = {MASKED: torch.tensor(masked, dtype=torch.bool)}
    prompts, mask = torch.zeros(4, 1, dtype=torch.long), torch.ones(4, 1)
    computed = host.GRPOAdvantageEstimator().compute_advantage(
        prompts, torch.tensor(REWARDS), mask, repeated_batch=batch
    )
    return computed[:, 0].tolist()


def test_each_thread_gets_the_advantages_of_its_own_batch():
    patches = Patches()
    patches.install([(SEAM, estimators.wrap_compute_advantage)])
    try:
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(advantages, MASKS * 40))
    finally:
        patches.uninstall()
    assert found == [pytest.approx(each) for each in INSTALLED] * 40


def test_while_samplemask_comes_and_goes_each_result_is_the_hosts_or_ours():
    patches, done, wrong, errors = Patches(), threading.Event(), [], []

    def call():
        while not done.is_set():
            for masked, ours in zip(MASKS, INSTALLED, strict=True):
                try:
                    found = advantages(masked)
                except Exception as error:  # noqa: BLE001 - shown by the assertion
                    errors.append(error)
                    return
                if found not in (pytest.approx(ours), STOCK):
                    wrong.append((masked, found))

    callers = [threading.Thread(target=call) for _ in range(4)]
    for caller in callers:
        caller.start()
    for _ in range(100):
        patches.install([(SEAM, estimators.wrap_compute_advantage)])
        patches.uninstall()
    done.set()
    for caller in callers:
        caller.join()
    assert (wrong, errors) == ([], [])
    assert advantages(MASKS[0]) == STOCK
