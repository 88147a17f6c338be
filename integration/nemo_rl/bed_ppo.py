"""Drives NeMo-RL's own PPO loops for a step, like `bed` does for GRPO's."""

from types import SimpleNamespace
from unittest.mock import MagicMock, patch

import bed
import torch
from nemo_rl.algorithms import async_utils, ppo
from nemo_rl.algorithms.ppo import PPOConfig
from nemo_rl.algorithms.reward_functions import RewardShapingConfig
from tests.unit.algorithms import test_ppo as host_tests

GAE = {
    "name": "gae", "gae_lambda": 1.0, "gae_gamma": 1.0, "normalize_advantages": True,
    "gae_lambda_value": None, "gae_lambda_policy": None, "length_adaptive_alpha": 0.0,
}  # fmt: skip


def components(groups, generations, mask_sample=None, asynchronous=False):
    """Models, data and configuration of one PPO step."""
    parts = bed.components(groups, generations)
    estimator = {**GAE, **({"mask_sample": mask_sample} if mask_sample is not None else {})}
    config = parts["master_config"]
    parts["master_config"] = SimpleNamespace(
        ppo=PPOConfig(
            async_ppo={"enabled": asynchronous},
            max_num_steps=1, max_num_epochs=-1 if asynchronous else 1,
            max_rollout_turns=1, num_prompts_per_step=groups, num_generations_per_prompt=generations,
            ppo_epochs=1, reward_scaling={"enabled": False},
            reward_shaping=RewardShapingConfig(enabled=False),
            val_at_start=False, val_at_end=False, val_period=0, adv_estimator=estimator,
        ),
        policy=config.policy, env=config.env, logger=config.logger, loss_fn=host_tests._make_loss_config(),
        checkpointing={
            "enabled": False, "checkpoint_must_save_by": None, "save_period": 100, "metric_name": None,
        },
        cluster=config.cluster, data=config.data,
    )  # fmt: skip
    parts["master_config"].loss_fn.use_importance_sampling_correction = True
    parts["master_config"].policy["generation"]["colocated"] = {"enabled": False}
    parts["policy"].train.return_value["all_mb_metrics"] = {}
    value = parts["value_model"] = MagicMock()
    value.get_values.side_effect = lambda data: {"values": torch.zeros(*data["input_ids"].shape, 1)}
    value.train.return_value = {
        "loss": torch.tensor([0.2]),
        "grad_norm": torch.tensor([2.0]),
        "all_mb_metrics": {},
    }
    parts["grpo_config"] = config
    return parts


def _arguments(parts):
    return [
        parts["policy"], bed._generation(parts), parts["value_model"], parts["train_dataloader"], None,
        parts["tokenizer"], MagicMock(), MagicMock(), parts["task_to_env"], None, parts["logger"],
        parts["checkpointer"], ppo._default_ppo_save_state(), parts["master_config"],
    ]  # fmt: skip


def _step(parts):
    (data,) = parts["trained"] or [{}]
    if not data:
        return SimpleNamespace(metrics=bed.logged(parts), trained=False)
    return SimpleNamespace(
        advantages=data["advantages"][:, bed.TOKENS].tolist(),
        sample_mask=data["sample_mask"].tolist(),
        data=data,
        metrics=bed.logged(parts),
        trained=True,
    )


def _patched():
    return (
        patch("nemo_rl.utils.memory_tracker.MemoryTracker.snapshot_start_of_stage"),
        patch.object(ppo, "refit_policy_generation", return_value={}),
        patch.object(ppo, "print_performance_metrics", return_value={}),
    )


def run(parts, results):
    """One step of the real ppo_train."""
    parts["task_to_env"] = {"nemo_gym": bed.Gym([results])}
    tracker, refit, performance = _patched()
    with tracker, refit, performance:
        ppo.ppo_train(*_arguments(parts))
    return _step(parts)


def run_async(parts, results, groups=1):
    """One step of the real async_ppo_train; the replay buffer holds what the real rollout code made."""
    config = SimpleNamespace(
        policy=parts["master_config"].policy,
        env=parts["master_config"].env,
        grpo=parts["grpo_config"].grpo,
    )
    collected = bed.rollout_groups({**parts, "master_config": config}, results, groups)
    buffer, collector = MagicMock(), MagicMock()
    buffer.has_complete_batch.remote.return_value = True
    buffer.sample.remote.return_value = {
        "trajectories": [
            {"batch": group.final_batch, "rollout_metrics": group.rollout_metrics} for group in collected
        ],
        "avg_trajectory_age": 0.0,
    }
    buffer.size.remote.return_value = groups
    collector.check_health.remote.return_value = None
    collector.get_efficiency_metrics.remote.return_value = {}
    buffer_class, collector_class = MagicMock(), MagicMock()
    buffer_class.options.return_value.remote.return_value = buffer
    collector_class.options.return_value.remote.return_value = collector
    tracker, refit, performance = _patched()
    with (
        tracker, refit, performance,
        patch.object(async_utils, "ReplayBuffer", buffer_class),
        patch.object(async_utils, "AsyncTrajectoryCollector", collector_class),
        patch.object(ppo, "make_actor_runtime_env", lambda _: {}),
        patch.object(ppo, "print_efficiency_summary", lambda *_, **__: {}),
        patch("ray.get", lambda value, **_: value),
        patch("ray.kill", lambda _: None),
    ):  # fmt: skip
        ppo.async_ppo_train(*_arguments(parts))
    return _step(parts)
