"""Every place where samplemask touches NeMo-RL. Checked against commit 7ea279a (2026-08-22)."""

from __future__ import annotations

from samplemask.seams import Seam

CHECKED = "7ea279a"

_ESTIMATORS = "nemo_rl.algorithms.advantage_estimator"
_GRPO = "nemo_rl.algorithms.grpo"
_GRPO_SYNC = "nemo_rl.algorithms.grpo_sync"
_PPO = "nemo_rl.algorithms.ppo"
_CONTROLLER = "nemo_rl.algorithms.single_controller"
_ACTOR = "__ray_metadata__.modified_class"
_EXCLUDES = "NeMo-RL excludes environment-masked rows from group and batch statistics itself, on every path."
_CARRIES = "NeMo-RL carries the verdict of the verify response's top level to this path."
_LOGS = "NeMo-RL's metrics can be added to by a plugin."


def _seam(
    module: str, attribute: str, parameters: str, why: str, removable_when: str, more_allowed: bool = False
) -> Seam:
    source = f"{module.replace('.', '/')}.py at {CHECKED}"
    return Seam(module, attribute, tuple(parameters.split()), source, why, removable_when, more_allowed)


def _estimator(name: str) -> Seam:
    why = "Runs the host's own estimator on the rows that vote; numbers the prompts, which is much faster."
    # Newer estimators take valid_mask; every argument with B rows is selected like the others.
    return _seam(
        _ESTIMATORS, f"{name}.compute_advantage", "self prompt_ids rewards mask", why, _EXCLUDES, True
    )


ESTIMATORS = (
    _estimator("GRPOAdvantageEstimator"),
    _estimator("GDPOAdvantageEstimator"),
    _estimator("ReinforcePlusPlusAdvantageEstimator"),
    _estimator("RawRewardAdvantageEstimator"),
    _estimator("GeneralizedAdvantageEstimator"),
    _estimator("OPDAdvantageEstimator"),
)

_STATISTICS_PARAMETERS = "prompts rewards valid_mask leave_one_out_baseline std_rewards"
_STATISTICS = "calculate_baseline_and_std_per_prompt"
COMPONENT_STATISTICS = _seam(
    _ESTIMATORS, _STATISTICS, _STATISTICS_PARAMETERS,
    "Keeps a reward component that was not measured out of its own statistics (GDPO).",
    "GDPO accepts a mask per component.", True,
)  # fmt: skip

_CREATE = "_create_advantage_estimator"
_CREATE_WHY = "Reads and checks adv_estimator.mask_sample and the switch when a run makes its estimator."
_CREATE_REMOVABLE = "NeMo-RL validates sections of plugins in its configuration."
CREATE_ESTIMATOR = tuple(
    _seam(module, _CREATE, "master_config", _CREATE_WHY, _CREATE_REMOVABLE)
    for module in (_GRPO, _GRPO_SYNC, _PPO, "nemo_rl.algorithms.single_controller_utils.setup")
)

SCALE_REWARDS = tuple(
    _seam(
        module, "scale_rewards", "repeated_batch reward_scaling_cfg",
        "A batch has just arrived at a synchronous loop: decide it.", _EXCLUDES,
    )
    for module in (_GRPO, _GRPO_SYNC, _PPO)
)  # fmt: skip

STATISTICS = tuple(
    _seam(
        module, _STATISTICS, _STATISTICS_PARAMETERS,
        "Dynamic sampling filters by the statistics of the rows that vote; prompts are numbered.",
        _EXCLUDES, True,
    )
    for module in (_GRPO, _GRPO_SYNC)
)  # fmt: skip

FROM_BATCHES = _seam(
    "nemo_rl.distributed.batched_data_dict", "BatchedDataDict.from_batches", "cls batches pad_value_dict",
    "A batch has just been put together by an asynchronous loop: decide it.", _EXCLUDES, True,
)  # fmt: skip

COMPONENT_KEYS = _seam(
    _GRPO_SYNC, "get_gdpo_reward_component_keys", "batch",
    "Lets the decision travel with the columns that the data plane loop gives its estimator.",
    "The data plane loop gives its estimator the whole batch.",
)  # fmt: skip

PENALTIES = _seam(
    _GRPO, "_apply_configured_message_level_advantage_penalties",
    "train_data message_logs master_config log_config",
    "Adds mask_sample/* to the metrics of grpo_train and async_grpo_train.", _LOGS, True,
)  # fmt: skip

LOG_INFORMATION = _seam(
    _GRPO_SYNC, "_log_mixed_rewards_and_advantages_information",
    "logger total_steps metrics baseline advantages",
    "Adds mask_sample/* to the metrics of the data plane loop.", _LOGS, True,
)  # fmt: skip

PPO_MASKING = _seam(
    _PPO, "_apply_ppo_seq_logprob_error_masking", "train_data rewards seq_logprob_error_threshold",
    "Hands the decision to PPO's estimator, adds mask_sample/*, and lets an empty batch pass.",
    _EXCLUDES, True,
)  # fmt: skip

TRAIN = (
    _seam(
        "nemo_rl.models.policy.lm_policy", "Policy.train", "self data loss_fn eval_mode",
        "Does not step the optimizer when no row trains.",
        "NeMo-RL skips a step without a trainable token.", True,
    ),
    _seam(
        "nemo_rl.models.value.lm_value", "Value.train", "self data loss_fn eval_mode",
        "Does not step the critic's optimizer when no row trains.",
        "NeMo-RL skips a step without a trainable token.", True,
    ),
)  # fmt: skip

TRAIN_FROM_META = _seam(
    "nemo_rl.models.policy.tq_policy", "TQPolicy.train_from_meta", "self meta loss_fn eval_mode",
    "Does not step the optimizer when no row trains (data plane).",
    "NeMo-RL skips a step without a trainable token.", True,
)  # fmt: skip

POSTPROCESS_GROUP = _seam(
    "nemo_rl.experience.rollouts", "_postprocess_single_nemo_gym_group", "nemo_gym_rows results",
    "Reads each verify response and adds verdict columns to the rollout batch.", _CARRIES, True,
)  # fmt: skip

SYNC_ROLLOUT = _seam(
    "nemo_rl.experience.sync_rollout_actor", "run_nemo_gym_rollout_sync",
    "policy_generation input_batch tokenizer task_to_env generation_config",
    "Keeps the verdict columns at hand for the data plane's actor, which drops unknown columns.",
    _CARRIES, True,
)  # fmt: skip

ROLLOUT_TO_DATA_PLANE = _seam(
    "nemo_rl.experience.sync_rollout_actor", f"SyncRolloutActor.{_ACTOR}.rollout_to_tq",
    "self input_batch", "Sends the verdict columns to the driver beside the rewards.", _CARRIES, True,
)  # fmt: skip

RESULT_OF_GYM = _seam(
    "nemo_rl.environments.nemo_gym", f"NemoGym.{_ACTOR}._postprocess_nemo_gym_to_nemo_rl_result",
    "self nemo_gym_row nemo_gym_result tokenizer",
    "A masked rollout without generation tokens becomes a placeholder instead of an error.",
    "NeMo-RL accepts masked rollouts without tokens.", True,
)  # fmt: skip

RECORD_TO_BATCH = _seam(
    "nemo_rl.algorithms.async_utils.replay_buffer", "record_to_train_batch", "record",
    "Adds verdict columns to SingleController's rows.", _CARRIES, True,
)  # fmt: skip

RESULT_TO_COMPLETION = _seam(
    "nemo_rl.experience.rollout_manager", "AsyncNemoGymRolloutImpl._result_to_completion", "self result",
    "Makes env.should_mask_flagged_samples hold for the top-level flag too; bears a missing reward.",
    _CARRIES,
)  # fmt: skip

STREAM_ROWS = _seam(
    "nemo_rl.experience.rollout_manager", "AsyncNemoGymRolloutImpl._stream_rows",
    "self nemo_gym_env pending results", "Gives placeholders the prompt of their siblings.",
    "NeMo-RL accepts masked rollouts without tokens.", True,
)  # fmt: skip

ADVANTAGE_STAGE = _seam(
    _CONTROLLER, f"SingleControllerActor.{_ACTOR}._advantage_stage", "self meta",
    "Decides a chunk of prompt groups in the data plane before the host computes advantages.",
    _EXCLUDES, True,
)  # fmt: skip

NEWER_ADVANTAGE_STAGE = _seam(
    "nemo_rl.algorithms.single_controller_utils.advantage_stage",
    "AdvantageComputer.run",
    "self request",
    "What ADVANTAGE_STAGE does, where newer NeMo-RL moved it (read, not run: no such checkout at hand).",
    _EXCLUDES,
    True,
)

PUMP_METRICS = _seam(
    _CONTROLLER, "reduce_advantage_pump_metrics", "",
    "Adds mask_sample/* to SingleController's step metrics.", _LOGS, True,
)  # fmt: skip

RAY_INIT = Seam(
    "ray", "init", ("address",), "ray 2.60.0, ray/_private/worker.py",
    "Installs samplemask in every Ray worker.", "NeMo-RL loads plugins in its workers.", True,
)  # fmt: skip
