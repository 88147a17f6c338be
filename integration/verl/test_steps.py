"""Real verl trainers' step: what is published, and that nothing is updated when nothing trains."""

import math

import numpy as np
import pytest

pytest.importorskip("verl", reason="verl is not installed in this environment")
import torch
from omegaconf import OmegaConf
from transfer_queue import KVBatchMeta
from verl import DataProto
from verl.trainer.ppo import ray_trainer
from verl.trainer.ppo.v1 import trainer_base

from samplemask.accounting import StepCounts
from samplemask_verl.steps import state_of

pytestmark = pytest.mark.usefixtures("plugin")


class V1Trainer(trainer_base.PPOTrainer):
    on_sample_end = on_step_end = None


def v1_trainer(**algorithm):
    trainer = object.__new__(V1Trainer)
    trainer.config = OmegaConf.create({"algorithm": {"adv_estimator": "grpo", **algorithm}})
    return trainer


def metrics_batch(rewards, **columns):
    size = len(rewards)
    tokens = torch.zeros(size, 3)
    tokens[:, 2] = torch.tensor(rewards)
    tensors = {
        "token_level_scores": tokens,
        "token_level_rewards": tokens,
        "advantages": torch.ones(size, 3),
        "returns": torch.ones(size, 3),
        "response_mask": torch.ones(size, 3).long(),
        "prompts": torch.ones(size, 2).long(),
        "responses": torch.ones(size, 3).long(),
        "attention_mask": torch.ones(size, 5).long(),
    }
    return DataProto.from_dict(tensors=tensors, non_tensors=columns)


def test_an_update_without_a_training_row_is_skipped_in_v1():
    trainer = v1_trainer()
    trainer.actor_rollout_wg = trainer.critic_wg = None  # touching a worker group would raise
    state_of(trainer).trains = False
    metrics = {}
    assert trainer._update_actor("batch", metrics) == "batch"
    assert trainer._update_critic("batch", metrics) == "batch"
    assert metrics == {}
    state_of(trainer).trains = True
    with pytest.raises(AttributeError):
        trainer._update_actor("batch", metrics)


def test_an_update_without_a_training_row_is_skipped_in_the_legacy_trainer():
    trainer = object.__new__(ray_trainer.RayPPOTrainer)
    data = metrics_batch(
        [1.0, 1.0], uid=np.array(["a", "a"], dtype=object), mask_sample=np.array([True, True])
    )
    data = ray_trainer.compute_advantage(data, adv_estimator="grpo", config=OmegaConf.create({}))
    for update in (trainer._update_actor, trainer._update_critic):
        assert update(data).meta_info == {"metrics": {}}
    metrics = ray_trainer.compute_data_metrics(batch=data, use_critic=False)
    assert metrics["mask_sample/no_signal_step"] == 1.0
    assert "critic/score/mean" not in metrics
    assert all(math.isfinite(value) for value in metrics.values())


def test_verls_reward_metrics_leave_masked_rows_out():
    data = metrics_batch(
        [1.0, float("nan"), 0.0, 0.0],
        uid=np.array(["a"] * 4, dtype=object),
        mask_sample=np.array([False, True, False, False]),
    )
    data = ray_trainer.compute_advantage(
        data, adv_estimator="grpo", norm_adv_by_std_in_grpo=False, config=OmegaConf.create({})
    )
    metrics = ray_trainer.compute_data_metrics(batch=data, use_critic=False)
    assert metrics["critic/score/mean"] == pytest.approx(1 / 3)
    assert metrics["critic/advantages/max"] == pytest.approx(2 / 3)
    assert metrics["mask_sample/masked_pct"] == 25.0


def test_a_healthy_step_publishes_exactly_stock_verls_keys():
    data = metrics_batch(
        [1.0, 0.0], uid=np.array(["a", "a"], dtype=object), mask_sample=np.array([False, False])
    )
    data = ray_trainer.compute_advantage(data, adv_estimator="grpo", config=OmegaConf.create({}))
    stock = ray_trainer.compute_data_metrics.__wrapped__(batch=data, use_critic=False)
    assert ray_trainer.compute_data_metrics(batch=data, use_critic=False) == stock
    assert set(data.non_tensor_batch) == {"uid", "mask_sample"}


def test_v1s_data_metrics_leave_masked_and_padding_rows_out(monkeypatch):
    trainer = v1_trainer()
    state = state_of(trainer)
    state.counts = StepCounts(rows=3, masked=1, trained=2, changed=True)
    state.masked_keys = {"a_1_0"}
    seen = []
    monkeypatch.setattr(
        trainer_base,
        "get_metric_data_with_optional_routed_experts",
        lambda **kwargs: (
            seen.append(trainer_base.compute_data_metrics(metrics_batch([1.0, 9.0, 0.0]), False)) or 1 / 0
        ),
    )
    batch = KVBatchMeta(keys=["a_0_0", "a_1_0", "pad_0_0", "a_2_0"], tags=[{}, {}, {"is_padding": True}, {}])
    trainer.config.actor_rollout_ref = {"rollout": {}}
    trainer._rollout_moe_lb_metrics_accumulator = None
    with pytest.raises(ZeroDivisionError):
        trainer._compute_metrics(batch, {}, {}, 1, 0)
    assert seen[0]["critic/score/max"] == 1.0
    assert seen[0]["critic/score/mean"] == 0.5


def test_a_step_of_several_batches_publishes_sums(monkeypatch):
    trainer = v1_trainer()
    trainer.parameter_sync_step, trainer.prepare_step = 2, dict
    trainer.replay_buffer = type("Buffer", (), {})()
    trainer.config.data = {"train_batch_size": 2}
    parts = [
        StepCounts(rows=4, masked=1, trained=3, changed=True, reward=(0.25, 4), kinds={"agent_timeout": 1}),
        StepCounts(
            rows=4,
            masked=3,
            trained=0,
            groups_thin=1,
            changed=True,
            reward=(0.5, 4),
            kinds={"agent_timeout": 3},
        ),
    ]

    def once(metrics, timing, size):
        state = state_of(trainer)
        part = parts[trainer.local_trigger_step]
        state.counts = state.counts + part
        metrics.update(part.metrics())
        return KVBatchMeta(partition_id="train", keys=[f"k{trainer.local_trigger_step}"], tags=[{}])

    trainer._step_once = once
    metrics = {}
    trainer.step(metrics, {})
    assert metrics["mask_sample/kind/agent_timeout"] == 4.0
    assert metrics["mask_sample/masked_pct"] == 50.0
    assert metrics["mask_sample/groups_thin"] == 1.0
    assert metrics["mask_sample/reward"] == 0.375
    assert metrics["mask_sample/no_signal_step"] == 0.0


VALIDATION = {
    "reward": [1.0, 0.0, 0.0, 1.0],
    "acc": [1.0, 0.0, 0.0, 1.0],
    "mask_sample": [False, True, False, False],
    "failure_kind": ["", "session_lost", "", ""],
}


@pytest.mark.parametrize("kind", ["v1", "legacy"])
def test_validation_leaves_masked_rows_out_and_says_so(kind):
    trainer = v1_trainer() if kind == "v1" else object.__new__(ray_trainer.RayPPOTrainer)
    trainer.config = OmegaConf.create({"algorithm": {}})
    expected = {"expected_acc_counts": {("toy", "p"): 2, ("toy", "q"): 2}} if kind == "v1" else {}
    turns = [1, 1, 1, 1] if kind == "v1" else [np.ones(4)]
    metrics = trainer._val_metrics_update(["toy"] * 4, ["p", "p", "q", "q"], VALIDATION, turns, **expected)
    # p has one measured sample (1.0), q two (0.0 and 1.0): verl averages over prompts.
    assert metrics["val-aux/toy/acc/mean@1"] == 1.0
    assert metrics["val-core/toy/acc/mean@2"] == 0.5
    assert metrics["mask_sample/val_masked_pct"] == 25.0
    assert not any("/mask_sample/mean" in name for name in metrics)


def test_a_healthy_validation_publishes_exactly_stock_verls_keys():
    trainer = v1_trainer()
    infos = {**VALIDATION, "mask_sample": [False] * 4}
    arguments = (["toy"] * 4, ["p", "p", "q", "q"], infos, [1, 1, 1, 1])
    stock = V1Trainer._val_metrics_update.__wrapped__(trainer, *arguments)
    assert trainer._val_metrics_update(*arguments) == stock


def test_a_fully_masked_validation_does_not_fail():
    trainer = v1_trainer()
    infos = {**VALIDATION, "mask_sample": [True] * 4}
    metrics = trainer._val_metrics_update(["toy"] * 4, ["p", "p", "q", "q"], infos, [1, 1, 1, 1])
    assert metrics["mask_sample/val_masked_pct"] == 100.0
    assert not any("acc" in name for name in metrics)
