"""Every place where samplemask touches verl."""

from __future__ import annotations

from samplemask.seams import Seam

_LEGACY = "verl.trainer.ppo.ray_trainer"
_V1 = "verl.trainer.ppo.v1.trainer_base"
_BUFFER = "verl.trainer.ppo.v1.replay_buffer"

COMPUTE_ADVANTAGE = Seam(
    module=_LEGACY,
    attribute="compute_advantage",
    parameters=("data", "adv_estimator", "gamma", "lam", "num_repeat", "norm_adv_by_std_in_grpo", "config"),
    source="verl 0.9.1, verl/trainer/ppo/ray_trainer.py",
    why="Runs verl's own estimator on the rows that vote; the other rows get zero advantages.",
    removable_when="verl forwards non_tensor_batch to every estimator and excludes masked rows itself.",
)

COMPONENT = Seam(
    module="verl.trainer.ppo.core_algos",
    attribute="compute_grpo_outcome_advantage",
    parameters=(
        "token_level_rewards",
        "response_mask",
        "index",
        "epsilon",
        "norm_adv_by_std_in_grpo",
        "config",
    ),
    source="verl 0.9.1, verl/trainer/ppo/core_algos.py",
    why="gdpo: a reward component that was not measured for a row is out of that component's statistics.",
    removable_when="verl's gdpo accepts missing components.",
)

LEGACY_METRICS = Seam(
    module=_LEGACY,
    attribute="compute_data_metrics",
    parameters=("batch", "use_critic"),
    source="verl 0.9.1, verl/trainer/ppo/metric_utils.py",
    why="Keeps masked rows out of the legacy trainer's reward metrics and adds mask_sample/*.",
    removable_when="verl leaves masked rows out of its metrics.",
)

LEGACY_UPDATE_ACTOR = Seam(
    module=_LEGACY,
    attribute="RayPPOTrainer._update_actor",
    parameters=("self", "batch"),
    source="verl 0.9.1, verl/trainer/ppo/ray_trainer.py",
    why="Skips the actor's update when no row trains.",
    removable_when="verl skips an update in which no row has loss.",
)

LEGACY_UPDATE_CRITIC = Seam(
    module=_LEGACY,
    attribute="RayPPOTrainer._update_critic",
    parameters=("self", "batch"),
    source="verl 0.9.1, verl/trainer/ppo/ray_trainer.py",
    why="Skips the critic's update when no row trains.",
    removable_when="verl skips an update in which no row has loss.",
)

LEGACY_VALIDATION = Seam(
    module=_LEGACY,
    attribute="RayPPOTrainer._val_metrics_update",
    parameters=("self", "data_sources", "sample_uids", "reward_extra_infos_dict", "sample_turns"),
    source="verl 0.9.1, verl/trainer/ppo/ray_trainer.py",
    why="Keeps masked rows out of validation.",
    removable_when="verl leaves masked rows out of its metrics.",
)

V1_STEP = Seam(
    module=_V1,
    attribute="PPOTrainer.step",
    parameters=("self", "metrics", "timing_raw"),
    source="verl 0.9.1, verl/trainer/ppo/v1/trainer_base.py",
    why="Publishes mask_sample/* of a step that has several batches as sums, not as averages.",
    removable_when="verl's MetricsAggregator lets a metric choose how it is combined.",
)

V1_UPDATE_ACTOR = Seam(
    module=_V1,
    attribute="PPOTrainer._update_actor",
    parameters=("self", "batch", "metrics"),
    source="verl 0.9.1, verl/trainer/ppo/v1/trainer_base.py",
    why="Skips the actor's update when no row trains.",
    removable_when="verl skips an update in which no row has loss.",
)

V1_UPDATE_CRITIC = Seam(
    module=_V1,
    attribute="PPOTrainer._update_critic",
    parameters=("self", "batch", "metrics"),
    source="verl 0.9.1, verl/trainer/ppo/v1/trainer_base.py",
    why="Skips the critic's update when no row trains.",
    removable_when="verl skips an update in which no row has loss.",
)

V1_COMPUTE_METRICS = Seam(
    module=_V1,
    attribute="PPOTrainer._compute_metrics",
    parameters=("self", "batch", "metrics", "timing_raw", "global_steps", "epoch"),
    source="verl 0.9.1, verl/trainer/ppo/v1/trainer_base.py",
    why="Tells verl's data metrics which rows were measured and which trained.",
    removable_when="verl leaves masked rows out of its metrics.",
)

V1_METRICS = Seam(
    module=_V1,
    attribute="compute_data_metrics",
    parameters=("batch", "use_critic"),
    source="verl 0.9.1, verl/trainer/ppo/metric_utils.py",
    why="Keeps masked rows out of the V1 trainer's reward metrics.",
    removable_when="verl leaves masked rows out of its metrics.",
)

V1_VALIDATION = Seam(
    module=_V1,
    attribute="PPOTrainer._val_metrics_update",
    parameters=(
        "self",
        "data_sources",
        "sample_uids",
        "reward_extra_infos_dict",
        "sample_turns",
        "expected_acc_counts",
    ),
    source="verl 0.9.1, verl/trainer/ppo/v1/trainer_base.py",
    why="Keeps masked rows out of validation.",
    removable_when="verl leaves masked rows out of its metrics.",
)

V1_BUFFER = Seam(
    module=_V1,
    attribute="PPOTrainer._build_replay_buffer",
    parameters=("self",),
    source="verl 0.9.1, verl/trainer/ppo/v1/trainer_base.py",
    why="Gives the replay buffer the policy.",
    removable_when="verl evicts groups by a verdict of the environment.",
)

EVICTION = Seam(
    module=_BUFFER,
    attribute="ReplayBuffer._terminal_eviction_reasons",
    parameters=("self", "global_steps", "partition_id"),
    source="verl 0.9.1, verl/trainer/ppo/v1/replay_buffer.py",
    why="Adds groups that will not train to those that verl evicts and refills (sync).",
    removable_when="verl evicts groups by a verdict of the environment.",
)

EVICTION_ASYNC = Seam(
    module=_BUFFER,
    attribute="ReplayBufferAsync._terminal_eviction_reasons",
    parameters=("self", "global_steps", "partition_id"),
    source="verl 0.9.1, verl/trainer/ppo/v1/replay_buffer.py",
    why="The same for the async trainers.",
    removable_when="verl evicts groups by a verdict of the environment.",
)

GROUP_FILTER = Seam(
    module=_BUFFER,
    attribute="ReplayBuffer._dapo_filtered_keys",
    parameters=("self", "partition_id"),
    source="verl 0.9.1, verl/trainer/ppo/v1/replay_buffer.py",
    why="Lets the group filter judge a group by the rows that vote.",
    removable_when="verl's group filter reads the verdict.",
)

LEGACY_START = Seam(
    module=_LEGACY,
    attribute="RayPPOTrainer.__init__",
    parameters=(
        "self",
        "config",
        "tokenizer",
        "role_worker_mapping",
        "resource_pool_manager",
        "ray_worker_group_cls",
        "processor",
        "train_dataset",
        "val_dataset",
        "collate_fn",
        "train_sampler",
        "device_name",
    ),
    source="verl 0.9.1, verl/trainer/ppo/ray_trainer.py",
    why="Checks algorithm.mask_sample when the legacy trainer starts.",
    removable_when="verl validates plugin sections of its configuration.",
)

V1_ADVANTAGE = Seam(
    module=_V1,
    attribute="PPOTrainer._compute_advantage",
    parameters=("self", "batch", "metrics"),
    source="verl 0.9.1, verl/trainer/ppo/v1/trainer_base.py",
    why="Judges the rows that verl reads and lets verl compute advantages on those that vote.",
    removable_when="verl selects extra_fields for the advantage stage and excludes masked rows itself.",
)

V1_READ = Seam(
    module="transfer_queue",
    attribute="kv_batch_get",
    parameters=("keys", "partition_id", "select_fields"),
    source="TransferQueue 0.1.11, transfer_queue/interface.py",
    why="Shows what V1's advantage stage and metrics read, with verdicts that tags lack; other reads pass.",
    removable_when="verl's advantage stage excludes masked rows itself.",
)

V1_WRITE = Seam(
    module="transfer_queue",
    attribute="kv_batch_put",
    parameters=("keys", "partition_id", "fields", "tags"),
    source="TransferQueue 0.1.11, transfer_queue/interface.py",
    why="Lets V1's advantage stage write all rows, those that do not train as zeros; tags rows as below.",
    removable_when="verl's advantage stage excludes masked rows itself.",
    more_allowed=True,
)

V1_STORE = Seam(
    module="transfer_queue",
    attribute="async_kv_batch_put",
    parameters=("keys", "partition_id", "fields", "tags"),
    source="TransferQueue 0.1.11, transfer_queue/interface.py",
    why="Writes verdict and reward into the tag of each rollout that is stored, so that they need no read.",
    removable_when="verl's agent loop puts the verdict into the tags.",
    more_allowed=True,
)

V1_REWARD = Seam(
    module=_V1,
    attribute="PPOTrainer._compute_reward_colocate",
    parameters=("self", "batch", "metrics"),
    source="verl 0.9.1, verl/trainer/ppo/v1/trainer_base.py",
    why="Notes which verdicts a reward model wrote after the rollout: verl's batch does not say.",
    removable_when="verl's batch names the fields that its reward model wrote.",
)

V1_START = Seam(
    module=_V1,
    attribute="PPOTrainer.__init__",
    parameters=("self", "config"),
    source="verl 0.9.1, verl/trainer/ppo/v1/trainer_base.py",
    why="Checks algorithm.mask_sample when the V1 trainer starts.",
    removable_when="verl validates plugin sections of its configuration.",
)

LEGACY_FIT = Seam(
    module=_LEGACY,
    attribute="RayPPOTrainer.fit",
    parameters=("self",),
    source="verl 0.9.1, verl/trainer/ppo/ray_trainer.py",
    why="Tells the two seams below which policy holds: verl does not give them its configuration.",
    removable_when="the two seams below are removed.",
)

LEGACY_KL = Seam(
    module=_LEGACY,
    attribute="apply_kl_penalty",
    parameters=("data", "kl_ctrl", "kl_penalty"),
    source="verl 0.9.1, verl/trainer/ppo/ray_trainer.py",
    why="Keeps masked rows out of the mean KL that steers the adaptive KL coefficient.",
    removable_when="verl leaves masked rows out of the KL penalty.",
)

LEGACY_CORRECTION = Seam(
    module="verl.trainer.ppo.rollout_corr_helper",
    attribute="compute_rollout_correction_and_add_to_batch",
    parameters=("batch", "rollout_corr_config"),
    source="verl 0.9.1, verl/trainer/ppo/rollout_corr_helper.py",
    why="Keeps masked rows out of the batch mean that normalises the weights of rollout correction.",
    removable_when="verl leaves masked rows out of rollout correction.",
)

TRAIN_BATCH = Seam(
    module="verl.workers.engine.base",
    attribute="BaseEngine.train_batch",
    parameters=("self", "data", "loss_function"),
    source="verl 0.9.1, verl/workers/engine/base.py",
    why="Passes rows that are not excluded through the model and the loss; skips a step that has none.",
    removable_when="verl's losses and denominators leave out excluded rows and it skips empty mini batches.",
)
