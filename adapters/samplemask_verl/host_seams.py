"""Every place where samplemask touches verl."""

from __future__ import annotations

from samplemask.seams import Seam

_LEGACY = "verl.trainer.ppo.ray_trainer"
_V1 = "verl.trainer.ppo.v1.trainer_base"

COMPUTE_ADVANTAGE = Seam(
    module=_LEGACY,
    attribute="compute_advantage",
    parameters=("data", "adv_estimator", "gamma", "lam", "num_repeat", "norm_adv_by_std_in_grpo", "config"),
    source="verl 0.9.1, verl/trainer/ppo/ray_trainer.py",
    why="Runs verl's own estimator on the rows that vote; the other rows get zero advantages.",
    removable_when="verl forwards non_tensor_batch to every estimator and excludes masked rows itself.",
)

LEGACY_METRICS = Seam(
    module=_LEGACY,
    attribute="compute_data_metrics",
    parameters=("batch", "use_critic"),
    source="verl 0.9.1, verl/trainer/ppo/metric_utils.py",
    why="Adds mask_sample/* to the step's metrics in the legacy trainer.",
    removable_when="compute_advantage can report metrics.",
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
    why="Reads verdicts from TransferQueue and lets verl compute advantages on the rows that vote.",
    removable_when="verl selects extra_fields for the advantage stage and excludes masked rows itself.",
)

V1_START = Seam(
    module=_V1,
    attribute="PPOTrainer.__init__",
    parameters=("self", "config"),
    source="verl 0.9.1, verl/trainer/ppo/v1/trainer_base.py",
    why="Checks algorithm.mask_sample when the V1 trainer starts.",
    removable_when="verl validates plugin sections of its configuration.",
)

TRAIN_BATCH = Seam(
    module="verl.workers.engine.base",
    attribute="BaseEngine.train_batch",
    parameters=("self", "data", "loss_function"),
    source="verl 0.9.1, verl/workers/engine/base.py",
    why="Runs verl's loss on the rows that are not excluded, and skips a step that has none.",
    removable_when="verl's losses and denominators leave out excluded rows and it skips empty mini batches.",
)
