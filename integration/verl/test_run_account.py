"""The account that a run publishes is the audit of the files of its rollouts, exactly."""

import json

import numpy as np
import pytest

pytest.importorskip("verl", reason="verl is not installed in this environment")
tq = pytest.importorskip("transfer_queue", reason="TransferQueue is not installed")
import torch
from omegaconf import OmegaConf
from verl import DataProto
from verl.trainer.ppo import ray_trainer
from verl.trainer.ppo.v1 import trainer_base
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from samplemask.audit import audit_files
from samplemask.live import RunCounts
from samplemask_verl.steps import LegacyRun

GROUP = 4
LOST = {"reward": 0.0, "mask_sample": True, "failure_kind": "session_lost"}
STEPS = [
    [{"reward": 0.5}, {"reward": 0.25}, {"reward": 1.0}, {"reward": 0.0}],
    [{"reward": 0.5}, LOST, {"reward": 0.125}, {"reward": 0.0, "_ng_failure_class": "NodeFailure"}],
    [{"reward": 0.75}, {"reward": 0.0}, {**LOST, "failure_kind": None}, {"reward": 0.25}],
]
"""Rewards that 32 bits hold exactly: verl keeps them so."""


pytestmark = pytest.mark.usefixtures("plugin")


@pytest.fixture
def expected(tmp_path):
    """The audit's numbers under the names of the run's metrics."""
    path = tmp_path / "rollouts.jsonl"
    lines = [
        {"_ng_task_index": task, "_ng_rollout_index": rollout, **response}
        for task, step in enumerate(STEPS)
        for rollout, response in enumerate(step)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    document = audit_files([path]).to_json()
    assert document["dispositions"]["failed"] == 1
    numbers = {name: document["dispositions"][name] for name in ("scored", "masked", "failed")}
    numbers |= {"reward": document["reward"]["all"], "reward_unmasked": document["reward"]["unmasked"]}
    numbers |= {f"kind/{kind}": count for kind, count in document["kinds"].items()}
    return {f"mask_sample_run/{name}": value for name, value in numbers.items()}


def of_the_run(metrics):
    return {name: value for name, value in metrics.items() if name.startswith("mask_sample_run/")}


class Trainer(trainer_base.PPOTrainer):
    """Real steps and a real advantage stage; its rollouts are those of `STEPS`."""

    on_sample_end = on_step_end = None
    parameter_sync_step = 1

    def __init__(self):
        algorithm = {"adv_estimator": "grpo", "norm_adv_by_std_in_grpo": False, "use_kl_in_reward": False}
        self.config = OmegaConf.create(
            {
                "algorithm": {**algorithm, "gamma": 1.0, "lam": 1.0},
                "actor_rollout_ref": {"rollout": {"n": GROUP}},
                "data": {"train_batch_size": 1},
            }
        )
        self.steps, self.replay_buffer = iter(enumerate(STEPS)), type("Buffer", (), {})()

    def prepare_step(self):
        return {}

    def _step_once(self, metrics, timing, size):
        number, responses = next(self.steps)
        rows = [
            {
                "uid": f"account{number}",
                "response_mask": torch.ones(2).long(),
                "loss_mask": torch.ones(2).long(),
                "rm_scores": torch.tensor([0.0, response["reward"]]),
                "extra_fields": {"reward_extra_info": {"mask_sample": False, **response}},
            }
            for response in responses
        ]
        batch = tq.kv_batch_put(
            keys=[f"account{number}_{row}_0" for row in range(len(rows))],
            partition_id="train",
            fields=list_of_dict_to_tensordict(rows),
            tags=[{}] * len(rows),
        )
        return self._compute_advantage(batch, metrics)


def test_v1_steps_add_up_to_the_audit(transfer_queue, expected):
    trainer, published = Trainer(), []
    for _ in STEPS:
        metrics = {}
        trainer.step(metrics, {})
        published.append(of_the_run(metrics))
    assert published[0] == {}
    assert published[2] == expected


def test_legacy_steps_add_up_to_the_audit(expected, monkeypatch):
    monkeypatch.setattr(LegacyRun, "rollouts", RunCounts())
    published = []
    for responses in STEPS:
        rewards = torch.tensor([[0.0, response["reward"]] for response in responses])
        tokens = torch.ones(GROUP, 4, dtype=torch.long)
        columns = {
            name: [response.get(name) for response in responses]
            for name in ("mask_sample", "failure_kind", "_ng_failure_class")
        }
        data = DataProto.from_dict(
            tensors={
                "responses": tokens[:, 2:],
                "prompts": tokens[:, :2],
                "attention_mask": tokens,
                "response_mask": tokens[:, 2:],
                "token_level_scores": rewards,
                "token_level_rewards": rewards,
            },
            non_tensors={
                "uid": np.array(["a"] * GROUP, dtype=object),
                **{name: np.array(values, dtype=object) for name, values in columns.items()},
            },
        )
        data = ray_trainer.compute_advantage(data, adv_estimator="grpo", config=OmegaConf.create({}))
        published.append(of_the_run(ray_trainer.compute_data_metrics(batch=data, use_critic=False)))
    assert published[0] == {}
    assert published[2] == expected
