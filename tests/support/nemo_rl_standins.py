"""Stand-ins for the NeMo-RL functions that the adapter wraps, with their parameters at 7ea279a.

`integration/nemo_rl/test_standins.py` holds these signatures to the checkout's. The bodies are the
textbook formulas, written here; they are no copies.
"""

import torch


def calculate_baseline_and_std_per_prompt(
    prompts, rewards, valid_mask, leave_one_out_baseline=True, std_rewards=None
):
    """Group mean and sample standard deviation of each row's group; (B,) and (B,)."""
    baseline, std = torch.zeros_like(rewards), torch.zeros_like(rewards)
    for prompt in torch.unique(prompts, dim=0):
        rows = (prompts == prompt).all(1)
        baseline[rows] = rewards[rows].mean()
        std[rows] = rewards[rows].std() if rows.sum() > 1 else 0.0
    return baseline, std


class GRPOAdvantageEstimator:
    """Reward minus group mean."""

    use_leave_one_out_baseline = False

    def compute_advantage(self, prompt_ids, rewards, mask, **kwargs):
        """Return advantages (B, T)."""
        baseline, _ = calculate_baseline_and_std_per_prompt(prompt_ids, rewards, torch.ones_like(rewards))
        return (rewards - baseline).unsqueeze(-1).expand(mask.shape)


class RawRewardAdvantageEstimator:
    """The reward itself, whitened over the batch's tokens."""

    def compute_advantage(self, prompt_ids, rewards, mask, **kwargs):
        """Return advantages (B, T) and None."""
        spread = rewards.unsqueeze(-1).expand(mask.shape)
        return spread - (spread * mask).sum() / mask.sum(), None


def scale_rewards(repeated_batch, reward_scaling_cfg):
    """Return the batch as it is."""
    return repeated_batch


def _postprocess_single_nemo_gym_group(
    nemo_gym_rows, results, timer, timer_prefix, policy_generation, input_batch, tokenizer,
    log_full_result_tables, effort_config=None, reward_penalty_config=None, thinking_tags=None,
    mask_env_flagged_samples=True,
):  # fmt: skip
    """Build a batch of rewards from the Gym's results."""
    rewards = torch.tensor([float(result["full_result"]["reward"]) for result in results])
    batch = {"total_reward": rewards, "loss_multiplier": torch.ones(len(results))}
    return type("Group", (), {"final_batch": batch})


def record_to_train_batch(record, *, pad_value_dict):
    """Build SingleController's rows of one prompt group."""
    rewards = torch.tensor([float(completion.reward) for completion in record.completions])
    return {"total_reward": rewards, "sample_mask": torch.ones_like(rewards)}


def _create_advantage_estimator(master_config):
    """Make an estimator."""
    return GRPOAdvantageEstimator()


def _apply_ppo_seq_logprob_error_masking(train_data, rewards, seq_logprob_error_threshold):
    """Return the advantage mask and no metrics; raise when nothing is left, as PPO does."""
    mask = train_data["token_mask"] * train_data["sample_mask"].unsqueeze(-1)
    if not mask.bool().any():
        raise RuntimeError("PPO has no valid response tokens after filtering.")
    return mask, {}


STANDINS = {
    "nemo_rl.algorithms.utils.calculate_baseline_and_std_per_prompt": calculate_baseline_and_std_per_prompt,
    "nemo_rl.algorithms.advantage_estimator.GRPOAdvantageEstimator.compute_advantage": (
        GRPOAdvantageEstimator.compute_advantage
    ),
    "nemo_rl.algorithms.advantage_estimator.RawRewardAdvantageEstimator.compute_advantage": (
        RawRewardAdvantageEstimator.compute_advantage
    ),
    "nemo_rl.algorithms.grpo.scale_rewards": scale_rewards,
    "nemo_rl.experience.rollouts._postprocess_single_nemo_gym_group": _postprocess_single_nemo_gym_group,
    "nemo_rl.experience.payload.record_to_train_batch": record_to_train_batch,
    "nemo_rl.algorithms.grpo._create_advantage_estimator": _create_advantage_estimator,
    "nemo_rl.algorithms.ppo._apply_ppo_seq_logprob_error_masking": _apply_ppo_seq_logprob_error_masking,
}
