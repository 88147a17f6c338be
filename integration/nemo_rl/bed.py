"""Drives NeMo-RL's own training loops for a step, in this process, with rollouts from a scripted Gym.

Real: the loops, rollout post-processing, estimators, dynamic sampling, metrics. Stand-ins: the Gym
actor (it hands out prepared verify responses), the policy's model, Ray.
"""

import asyncio
import copy
import pickle
from contextlib import contextmanager
from types import SimpleNamespace
from unittest.mock import MagicMock, patch

import torch
from nemo_rl.algorithms import grpo, grpo_sync, single_controller
from nemo_rl.algorithms.advantage_estimator import AdvEstimatorConfig
from nemo_rl.algorithms.async_utils import replay_buffer
from nemo_rl.algorithms.single_controller_utils import setup as grpo_setup
from nemo_rl.algorithms.single_controller_utils.config import AdvantageConfig
from nemo_rl.data_plane import KVBatchMeta
from nemo_rl.distributed.batched_data_dict import BatchedDataDict
from nemo_rl.experience import rollout_manager, rollouts, sync_rollout_actor
from nemo_rl.experience.rollouts import should_mask_flagged_samples
from tensordict import TensorDict
from tests.unit.algorithms import test_grpo as host_tests

PLACES = ("nested", "top", "both", "conflict")
TOKENS = 3


def response(reward, masked=False, place="top", **extra):
    """A verify response; `place` says where its flag stands when it is masked."""
    top = {"nested": False, "conflict": False}.get(place, masked)
    nested = masked if place in ("nested", "both", "conflict") else None
    fields = {"reward": reward, "mask_sample": top, "response": {"output": []}, **extra}
    if masked and nested is not None:
        fields["instance_config"] = {"mask_sample": True}
    if masked and place == "conflict":
        fields["mask_sample"] = False
    return fields


def result(verify_response, prompt=(1, 2, 3)):
    """What the NemoGym actor streams for one rollout."""
    user = {"role": "user", "content": "", "token_ids": torch.tensor(prompt)}
    answer = {
        "role": "assistant",
        "content": "",
        "token_ids": torch.arange(10, 10 + TOKENS),
        "generation_logprobs": torch.zeros(TOKENS),
    }
    return {"message_log": [user, answer], "input_message_log": [user], "full_result": verify_response}


def batch_of(rewards, masked=(), groups=1, place="top", kind="session_lost"):
    """Results of `groups` prompts; the rows named in `masked` are masked with a kind."""
    responses = [
        response(reward, True, place, failure_kind=kind) if row in masked else response(reward)
        for row, reward in enumerate(rewards)
    ]
    size = len(rewards) // groups
    return [result(each, (1 + row // size, 2, 3)) for row, each in enumerate(responses)]


def run(path, parts, results, groups=1):
    """One step of the loop named by `path`, the first batch of rollouts being `results`."""
    loops = {
        "grpo_train": lambda: run_grpo(parts, [results]),
        "async_grpo_train": lambda: run_async_grpo(parts, results, groups),
        "grpo_train_sync": lambda: run_grpo_sync(parts, [results]),
        "single_controller": lambda: run_single_controller(parts, results, groups),
    }
    return loops[path]()


PATHS = ("grpo_train", "async_grpo_train", "grpo_train_sync", "single_controller")


class Gym:
    """A NemoGym actor that hands out prepared results, one batch after the other."""

    def __init__(self, batches):
        self._batches = iter(batches)
        self.run_rollouts = MagicMock()
        self.run_rollouts.options.return_value.remote = self._stream

    async def _stream(self, rows, *_):
        for index, prepared in enumerate(copy.deepcopy(next(self._batches))):
            yield self._one(index, prepared, {} if index == len(rows) - 1 else None)

    async def _one(self, *row):
        return row


def prompts(count):
    """A batch of the dataloader: `count` prompts [i, 2, 3]."""
    return BatchedDataDict(
        {
            "message_log": [
                [{"role": "user", "content": "", "token_ids": torch.tensor([i, 2, 3])}]
                for i in range(1, count + 1)
            ],
            "task_name": ["nemo_gym"] * count,
            "extra_env_info": [
                {
                    "agent_ref": {"name": "agent"},
                    "responses_create_params": {"input": [{"role": "user", "content": str(i)}]},
                    "_ng_task_index": 0,
                }
                for i in range(count)
            ],
            "loss_multiplier": torch.ones(count),
            "idx": torch.arange(count),
            "length": torch.full((count,), 3),
        }
    )


def components(groups, generations, mask_sample=None, estimator="grpo", **grpo_options):
    """NeMo-RL's own test fixture, set to Gym rollouts and one step."""
    parts = host_tests.mock_grpo_components.__wrapped__()
    config = parts["master_config"]
    estimator_options = {"normalize_rewards": False, "use_leave_one_out_baseline": False}
    estimator_options.update(grpo_options.pop("estimator_options", {}))
    if mask_sample is not None:
        estimator_options["mask_sample"] = mask_sample
    settings = {
        "max_num_steps": 1,
        "val_period": 0,
        "num_prompts_per_step": groups,
        "num_generations_per_prompt": generations,
        "adv_estimator": AdvEstimatorConfig(name=estimator, **estimator_options),
        **grpo_options,
    }
    for name, value in settings.items():
        setattr(config.grpo, name, value)
    generation = config.policy["generation"]
    generation.update(max_new_tokens=8, stop_strings=None, stop_token_ids=None)
    generation["vllm_cfg"].update(max_model_len=64, expose_http_server=True)
    config.env = {"should_use_nemo_gym": True}
    config.logger = {"num_val_samples_to_print": 0, "wandb_enabled": False, "wandb": None}
    config.reward_penalties = grpo.RewardPenaltyConfig()
    parts["train_dataloader"].__iter__ = lambda _: iter([prompts(groups)] * 10)
    policy = parts["policy"]
    policy.get_logprobs.side_effect = lambda data, **_: {"logprobs": torch.zeros(data["input_ids"].shape)}
    policy.get_reference_policy_logprobs.side_effect = lambda data, **_: {
        "reference_logprobs": torch.zeros(data["input_ids"].shape)
    }
    parts["trained"] = []
    stock_result = policy.train.return_value

    def train(data, *_, **__):
        parts["trained"].append(
            {name: value.clone() for name, value in data.items() if torch.is_tensor(value)}
        )
        return stock_result

    policy.train.side_effect = train
    return parts


def logged(parts):
    """The step's training metrics, as the logger got them (rollout metrics come in earlier calls)."""
    calls = [
        call for call in parts["logger"].log_metrics.call_args_list if call.kwargs.get("prefix") == "train"
    ]
    return calls[-1].args[0]


def step(parts):
    """What the step was trained on: the first response token's advantage, and the sample mask."""
    (data,) = parts["trained"]
    return SimpleNamespace(
        advantages=data["advantages"][:, TOKENS].tolist(),
        sample_mask=data["sample_mask"].tolist(),
        metrics=logged(parts),
    )


def _arguments(parts, generation):
    config = parts["master_config"]
    return [
        parts["policy"], generation, parts["train_dataloader"], None, parts["tokenizer"], parts["loss_fn"],
        parts["task_to_env"], None, parts["logger"], parts["checkpointer"],
        grpo._initial_grpo_save_state(), config,
    ]  # fmt: skip


def _generation(parts):
    generation = MagicMock(spec_set=["cfg", *_GENERATION])
    generation.cfg = parts["master_config"].policy["generation"]
    generation.get_logger_metrics.return_value = {}
    generation.blocks_training.return_value = False
    return generation


_GENERATION = (
    "prepare_for_generation", "finish_generation", "clear_logger_metrics", "get_logger_metrics",
    "blocks_training", "wake_carries_weight_updates",
)  # fmt: skip


def run_grpo(parts, batches):
    """One step of the real grpo_train."""
    parts["task_to_env"] = {"nemo_gym": Gym(batches)}
    with (
        patch("nemo_rl.utils.memory_tracker.MemoryTracker.snapshot_start_of_stage"),  # asks a Ray cluster
        patch.object(grpo, "refit_policy_generation", return_value={}),
        patch.object(grpo, "print_performance_metrics", return_value={}),
    ):
        grpo.grpo_train(*_arguments(parts, _generation(parts)))
    return step(parts)


def rollout_groups(parts, results, groups):
    """Run the real asynchronous rollout code over the scripted Gym; one batch for each prompt group."""
    config = parts["master_config"]
    generations = config.grpo.num_generations_per_prompt
    batch = prompts(groups).repeat_interleave(generations)
    for row, info in enumerate(batch["extra_env_info"]):
        info["_ng_task_index"] = row // generations

    async def collect():
        stream = rollouts.run_async_nemo_gym_rollout(
            policy_generation=_generation(parts),
            input_batch=batch,
            tokenizer=parts["tokenizer"],
            task_to_env={"nemo_gym": Gym([results])},
            generation_config=config.policy["generation"],
            num_generations=generations,
            log_full_result_tables=False,
            mask_env_flagged_samples=rollouts.should_mask_flagged_samples(config.env),
        )
        return [group async for group in stream]

    return sorted(asyncio.run(collect()), key=lambda group: group.task_index)


def run_async_grpo(parts, results, groups=1):
    """One step of the real async_grpo_train; the replay buffer holds what the real rollout code made."""
    collected = rollout_groups(parts, results, groups)
    config = parts["master_config"]
    config.policy["generation"]["colocated"]["enabled"] = False
    sample = {
        "trajectories": [
            {"batch": group.final_batch, "rollout_metrics": group.rollout_metrics} for group in collected
        ],
        "avg_trajectory_age": 0.0,
    }
    with host_tests.mock_async_grpo_infrastructure(prompts(1), {"mean_gen_tokens_per_sample": 1.0}):
        buffer = host_tests.StubReplayBuffer
        with (
            patch.object(buffer, "sample", MagicMock(remote=MagicMock(return_value=sample))),
            unmocked_masking(),
        ):
            grpo.async_grpo_train(*_arguments(parts, host_tests._mock_policy_generation()))
    return step(parts)


class DataPlane:
    """Stands for TransferQueue: keeps the rows of one batch, in memory."""

    def __init__(self):
        self.fields = {}

    def put_samples(self, *, fields, **_):
        self.fields.update({name: fields[name] for name in fields.keys()})  # noqa: SIM118 - a TensorDict

    def get_samples(self, *, select_fields, **_):
        size = len(next(iter(self.fields.values())))
        return TensorDict({name: self.fields[name] for name in select_fields}, batch_size=[size])

    def read(self, _meta, select_fields, **_):
        return BatchedDataDict({name: _dense(self.fields[name]) for name in select_fields})


def _dense(column):
    is_nested = torch.is_tensor(column) and column.is_nested
    return torch.nested.to_padded_tensor(column, padding=0) if is_nested else column


def rollout_actor(parts, batches, plane):
    """A real SyncRolloutActor in this process; what it returns is pickled, as Ray does."""
    actor_class = sync_rollout_actor.SyncRolloutActor.__ray_metadata__.modified_class
    actor = object.__new__(actor_class)
    actor.policy_generation, actor.tokenizer = _generation(parts), parts["tokenizer"]
    actor.task_to_env, actor.master_config = {"nemo_gym": Gym(batches)}, parts["master_config"]
    actor._dp_client = plane

    def remote(*args, **kwargs):
        return pickle.loads(pickle.dumps(actor.rollout_to_tq(*args, **kwargs)))

    return SimpleNamespace(rollout_to_tq=SimpleNamespace(remote=remote))


def run_grpo_sync(parts, batches):
    """One step of the real data plane loop grpo_train_sync, rollout actor included."""
    plane, policy = DataPlane(), parts["policy"]
    actor_class = MagicMock()
    actor_class.options.return_value.remote.return_value = rollout_actor(parts, batches, plane)
    parts["master_config"].data_plane = {"enabled": True}
    policy.tq_partition_id = "train"
    policy.get_logprobs_from_meta.side_effect = lambda *_, **__: plane.fields.update(
        prev_logprobs=torch.zeros(_dense(plane.fields["input_ids"]).shape)
    )
    policy.get_reference_policy_logprobs_from_meta.side_effect = lambda *_, **__: plane.fields.update(
        reference_policy_logprobs=torch.zeros(_dense(plane.fields["input_ids"]).shape)
    )
    policy.read_from_dataplane.side_effect = plane.read
    policy.write_to_dataplane.side_effect = lambda _, fields: parts["trained"].append(fields)
    policy.train_from_meta.return_value = policy.train({})
    parts["trained"].clear()
    with (
        patch("nemo_rl.utils.memory_tracker.MemoryTracker.snapshot_start_of_stage"),
        patch.object(grpo_sync, "SyncRolloutActor", actor_class),
        patch.object(grpo_sync, "make_actor_runtime_env", return_value={}),
        patch.object(grpo_sync, "refit_policy_generation", return_value={}),
        patch.object(grpo_sync, "print_performance_metrics", return_value={}),
        patch("ray.get", side_effect=lambda value: value),
    ):
        grpo_sync.grpo_train_sync(*_arguments(parts, _generation(parts)))
    return step(parts)


def run_single_controller(parts, results, groups=1):
    """Rollouts, rows and advantage stage of the real SingleController; one chunk of prompt groups."""
    config, plane = parts["master_config"], DataPlane()
    generations = config.grpo.num_generations_per_prompt
    estimator = grpo_setup._create_advantage_estimator(config)
    records = []
    for group in range(groups):
        prepared = results[group * generations : (group + 1) * generations]
        implementation = rollout_manager.AsyncNemoGymRolloutImpl(
            parts["tokenizer"], {"nemo_gym": Gym([prepared])}, generations, 64, 1,
            {**config.policy["generation"], "top_k": None},
            mask_env_flagged_samples=should_mask_flagged_samples(config.env),
        )  # fmt: skip
        row = prompts(group + 1).slice(group, group + 1)
        sample = {name: row[name][0] for name in ("message_log", "extra_env_info", "idx")}
        records.append(asyncio.run(implementation.run_rollout(sample)))
    pad = {"token_ids": 0}
    batches = [replay_buffer.record_to_train_batch(record, pad_value_dict=pad) for record in records]
    batch = BatchedDataDict.from_batches(batches)
    ids, fields, tags = replay_buffer.pack_payload(batch, weight_version=0, group_id="g")
    plane.put_samples(fields=fields)
    meta = KVBatchMeta(
        partition_id="p", task_name="train", sample_ids=ids, fields=list(fields.keys()), tags=tags
    )
    return advantage_stage(parts, plane, meta, estimator)


def advantage_stage(parts, plane, meta, estimator):
    """Run the real advantage stage on rows that lie in the data plane."""
    controller = object.__new__(single_controller.SingleControllerActor.__ray_metadata__.modified_class)
    controller._dp_client, controller._advantage_estimator = plane, estimator
    controller._advantage_cfg = AdvantageConfig()
    controller._policy_logprobs_required = controller._reference_logprobs_required = False
    controller._master_config = parts["master_config"]
    names = ("rewards", "masked_advantages", "sequence_lengths", "seq_logprob_error_metrics")
    controller._step_log_dict = {name: [] for name in names}
    _, has_tokens = asyncio.run(controller._advantage_stage(meta))
    return SimpleNamespace(
        advantages=_dense(plane.fields["advantages"])[:, TOKENS].tolist(),
        sample_mask=plane.fields["sample_mask"].reshape(-1).tolist(),
        metrics=single_controller.reduce_advantage_pump_metrics(**controller._step_log_dict),
        has_tokens=has_tokens,
    )


@contextmanager
def unmocked_masking():
    """NeMo-RL's test bed replaces the sequence-logprob filter; put the real one back."""
    with patch.object(grpo, "compute_and_apply_seq_logprob_error_masking", _MASKING):
        yield


_MASKING = grpo.compute_and_apply_seq_logprob_error_masking
