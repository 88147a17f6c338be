"""Real verl: many threads, many Ray actors, and samplemask that comes and goes while others compute."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

pytest.importorskip("verl", reason="verl is not installed in this environment")
from samplemask import read_verdict
from samplemask.testing import GrpoBatch, grpo_batch
from samplemask.testing.verl_host import verl_estimator, verl_estimators
from samplemask_verl import host_seams, install, patching, uninstall

pytestmark = pytest.mark.usefixtures("plugin")

BATCHES = [grpo_batch(4, (1, 6), failure_rate=0.4, shuffle=True, seed=seed) for seed in range(4)]
JOBS = [(name, batch) for name in verl_estimators() for batch in BATCHES]


def computed(job):
    name, batch = job
    return verl_estimator(name, "installed")(batch)


def test_eight_threads_compute_what_one_computes():
    serial = [computed(job) for job in JOBS]
    with ThreadPoolExecutor(8) as pool:
        for expected, found in zip(serial * 4, pool.map(computed, JOBS * 4), strict=True):
            np.testing.assert_array_equal(found, expected)


def test_eight_ray_actors_install_for_themselves_and_compute_what_the_driver_computes(transfer_queue):
    ray = pytest.importorskip("ray")

    class Worker:
        def advantages(self, jobs):
            import os

            import samplemask_verl
            from samplemask.testing.verl_host import verl_estimator

            found = [verl_estimator(name, "installed")(batch) for name, batch in jobs]
            return os.getpid(), samplemask_verl.is_active(), found

        def verdicts(self, responses):
            from samplemask import MaskPolicy, plan_rows, read_verdict

            read = [read_verdict(response) for response in responses]
            masked = [verdict.mask_sample for verdict in read]
            return read, plan_rows(masked, [0, 0, 0, 1, 1], MaskPolicy()).trains_B.tolist()

    responses = [{"reward": 1.0}, {"reward": 0.0, "mask_sample": True}, {}, {"reward": 1}, {"reward": 0}]
    workers = [ray.remote(num_cpus=0.5)(Worker).remote() for _ in range(8)]
    serial = [computed(job) for job in JOBS]
    answers = ray.get([worker.advantages.remote(JOBS) for worker in workers])
    assert len({process for process, _, _ in answers}) == 8
    assert [active for _, active, _ in answers] == [True] * 8
    for _, _, found in answers:
        for mine, expected in zip(found, serial, strict=True):
            np.testing.assert_array_equal(mine, expected)
    read = [read_verdict(response) for response in responses]
    said = ray.get([worker.verdicts.remote(responses) for worker in workers])
    assert said == [(read, [False, False, False, True, True])] * 8
    for worker in workers:
        ray.kill(worker)


def test_while_samplemask_comes_and_goes_each_result_is_verls_or_ours():
    batch = GrpoBatch.of([1.0, 1.0, 0.0, 0.0], masked=[0, 1, 0, 0])
    known = {which: verl_estimator("grpo", which)(batch) for which in ("installed", "stock")}
    assert not known["installed"][1].any()
    assert known["stock"][1].any()
    done, seen, errors = threading.Event(), set(), []

    def call():
        while not done.is_set():
            try:
                found = computed(("grpo", batch))
            except Exception as error:  # noqa: BLE001 - shown by the assertion
                errors.append(error)
                return
            seen.add(next((name for name in known if np.array_equal(found, known[name])), str(found)))

    callers = [threading.Thread(target=call) for _ in range(3)]
    for caller in callers:
        caller.start()
    for turn in range(5000):
        uninstall()
        install()
        if errors or (turn >= 200 and len(seen) == 2):
            break
    done.set()
    for caller in callers:
        caller.join()
    assert errors == []
    assert seen == {"installed", "stock"}
    np.testing.assert_array_equal(computed(("grpo", batch)), known["installed"])


def test_what_a_wrapper_rests_on_is_there_before_it_and_longer():
    order = list(patching._patches.seams)
    assert order.index(host_seams.COMPONENT) < order.index(host_seams.COMPUTE_ADVANTAGE)
    assert order.index(host_seams.LEGACY_KL) < order.index(host_seams.LEGACY_FIT)
