"""A real Ray cluster: worker processes install for themselves, and patched actor classes travel by value."""

import os
import sys

import bed
import pytest
import ray
from nemo_rl.algorithms import grpo
from nemo_rl.algorithms.single_controller import SingleControllerActor
from nemo_rl.experience.sync_rollout_actor import SyncRolloutActor

import samplemask_nemo_rl
from samplemask_nemo_rl.workers import worker_hook

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A Ray cluster of this test, started by the wrapped ray.init as a NeMo-RL driver starts it."""
    samplemask_nemo_rl.install()

    def earlier_hook():
        os.environ["SAMPLEMASK_TEST_EARLIER_HOOK"] = "ran"

    environment = {"env_vars": {"SAMPLEMASK_TEST": "kept"}, "worker_process_setup_hook": earlier_hook}
    ray.init(num_cpus=2, include_dashboard=False, runtime_env=environment, log_to_driver=False)
    yield
    ray.shutdown()
    samplemask_nemo_rl.uninstall()


def in_worker(function, *arguments):
    return ray.get(ray.remote(function).remote(*arguments))


def test_a_worker_computes_what_the_driver_computes(cluster):
    def compute():
        import torch
        from nemo_rl.algorithms.advantage_estimator import AdvEstimatorConfig, GRPOAdvantageEstimator

        config = AdvEstimatorConfig(normalize_rewards=False, use_leave_one_out_baseline=False)
        estimator = GRPOAdvantageEstimator(config, None)
        flags = {"mask_sample": torch.tensor([False, True, False, False])}
        rewards = torch.tensor([1.0, float("nan"), 0.0, 0.0])
        prompts, mask = torch.ones(4, 3, dtype=torch.long), torch.ones(4, 1)
        return estimator.compute_advantage(prompts, rewards, mask, repeated_batch=flags)[:, 0].tolist()

    assert in_worker(compute) == pytest.approx([2 / 3, 0.0, -1 / 3, -1 / 3])


def test_a_session_travels_with_the_estimator_that_the_driver_made(cluster):
    estimator = grpo._create_advantage_estimator(bed.components(1, 4, {"min_valid": 3})["master_config"])
    assert in_worker(lambda made: made.samplemask_session.policy.min_valid, estimator) == 3


def test_the_data_planes_rollout_actor_sends_verdicts_from_its_own_process(cluster):
    def roll_out(actor_class):
        import bed

        parts = bed.components(1, 4)
        actor = object.__new__(actor_class)
        actor.policy_generation, actor.tokenizer = bed._generation(parts), parts["tokenizer"]
        actor.task_to_env = {"nemo_gym": bed.Gym([bed.batch_of([1.0, 1.0, 0.0, 0.0], {1})])}
        actor.master_config, actor._dp_client = parts["master_config"], bed.DataPlane()
        carry = actor.rollout_to_tq(bed.prompts(1).repeat_interleave(4), partition_id="p", group_size=4)[1]
        return carry["mask_sample"].tolist(), os.getpid()

    flags, process = in_worker(roll_out, SyncRolloutActor.__ray_metadata__.modified_class)
    assert flags == [False, True, False, False]
    assert process != os.getpid()


def test_single_controllers_stage_decides_in_its_own_process(cluster):
    def run(actor_class, estimator):
        import bed
        from nemo_rl.algorithms import single_controller
        from nemo_rl.algorithms.single_controller_utils import setup

        single_controller.SingleControllerActor.__ray_metadata__.modified_class = actor_class
        setup._create_advantage_estimator = lambda _: estimator  # SingleController gets it from the driver
        step = bed.run_single_controller(bed.components(1, 4), bed.batch_of([1.0, 1.0, 0.0, 0.0], {1}))
        return step.advantages, step.sample_mask

    estimator = grpo._create_advantage_estimator(bed.components(1, 4)["master_config"])
    advantages, sample_mask = in_worker(run, SingleControllerActor.__ray_metadata__.modified_class, estimator)
    assert advantages == pytest.approx([2 / 3, 0.0, -1 / 3, -1 / 3])
    assert sample_mask == [1, 0, 1, 1]


def test_the_environment_and_the_hook_of_the_user_are_kept(cluster):
    def look():
        return os.environ.get("SAMPLEMASK_TEST"), os.environ.get("SAMPLEMASK_TEST_EARLIER_HOOK")

    assert in_worker(look) == ("kept", "ran")


def test_a_worker_without_samplemask_still_starts(cluster):
    def start(hook):
        sys.modules["samplemask_nemo_rl.plugin"] = None  # importing it raises ImportError
        hook()
        del sys.modules["samplemask_nemo_rl.plugin"]
        return "started"

    assert in_worker(start, worker_hook(None)) == "started"
