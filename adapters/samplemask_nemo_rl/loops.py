"""The training loops `grpo_train`, `async_grpo_train`, `grpo_train_sync`, `ppo_train`, `async_ppo_train`.

A batch is decided as it arrives at its loop; from there on the host's own code does the rest:
`loss_multiplier` becomes the sample mask, the decision's columns reach the estimator.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from samplemask.failure_kinds import warn_once
from samplemask_nemo_rl.columns import DETAILS, MASKED, VOTES
from samplemask_nemo_rl.decision import DecidedRows, decide, decided_rows, ledger
from samplemask_nemo_rl.estimators import Process
from samplemask_nemo_rl.rows import (
    code_column,
    group_by_group,
    group_statistics,
    prompt_codes,
    scatter_rows,
    select_rows,
)

Function = Callable[..., Any]


class _Arrival(threading.local):
    """The decision of the batch that this thread's loop is at."""

    decided: DecidedRows | None = None


_arrival = _Arrival()


def wrap_scale_rewards(original: Function) -> Function:
    """Make the wrapper that decides a batch as it arrives at a synchronous loop."""

    def scale_rewards(repeated_batch: Any, reward_scaling_cfg: Any) -> Any:
        batch = original(repeated_batch, reward_scaling_cfg)
        _arrival.decided = decide(batch, Process.session)
        return batch

    return scale_rewards


def wrap_from_batches(original: Function) -> Function:
    """Make the wrapper that decides a batch as an asynchronous loop puts it together."""

    def from_batches(cls: Any, *args: Any, **kwargs: Any) -> Any:
        batch = original(cls, *args, **kwargs)
        if DETAILS in batch and VOTES not in batch and "message_log" in batch:
            _arrival.decided = decide(batch, Process.session)
        return batch

    return from_batches


def wrap_statistics(original: Function) -> Function:
    """Make the wrapper of the statistics that dynamic sampling filters by and that are logged.

    They are taken over the rows that vote; the other rows follow their group, so that dynamic
    sampling keeps or drops groups as a whole. A group without voters has a standard deviation of 0,
    which dynamic sampling replaces.
    """

    def calculate_baseline_and_std_per_prompt(
        prompts: Any, rewards: Any, valid_mask: Any, *args: Any, **kwargs: Any
    ) -> Any:
        codes_B = prompt_codes(prompts)
        groups = code_column(codes_B, prompts)
        decided, _arrival.decided = _arrival.decided, None
        if decided is None or len(decided.votes_B) != len(rewards) or decided.votes_B.all():
            return group_by_group(original, groups, rewards, valid_mask, *args, **kwargs)
        rows = torch.from_numpy(np.flatnonzero(decided.votes_B))
        nobody = torch.zeros(len(rewards), dtype=torch.bool)
        if not len(rows):
            return torch.zeros_like(rewards), torch.zeros_like(rewards)
        chosen = [select_rows(value, rows, len(rewards)) for value in (groups, rewards, valid_mask, *args)]
        named = {name: select_rows(value, rows, len(rewards)) for name, value in kwargs.items()}
        baseline, std = (
            scatter_rows(value, rows, nobody) for value in group_by_group(original, *chosen, **named)
        )
        votes = decided.votes_B
        return group_statistics(baseline, codes_B, votes, "mean"), group_statistics(
            std, codes_B, votes, "amax"
        )

    return calculate_baseline_and_std_per_prompt


def wrap_reward_components(original: Function) -> Function:
    """Make the wrapper that lets a decision travel with the columns that the data plane gives estimators."""

    def get_gdpo_reward_component_keys(batch: Any) -> Any:
        return [*original(batch), *(name for name in (VOTES, MASKED) if VOTES in batch)]

    return get_gdpo_reward_component_keys


def wrap_penalties(original: Function) -> Function:
    """Make the wrapper that adds the step's `mask_sample/*` where grpo_train and async_grpo_train log."""

    def _apply_configured_message_level_advantage_penalties(*args: Any, **kwargs: Any) -> Any:
        return {**(original(*args, **kwargs) or {}), **_as_arrays(ledger.publish())}

    return _apply_configured_message_level_advantage_penalties


def wrap_log_information(original: Function) -> Function:
    """Make the wrapper that adds the step's `mask_sample/*` to the data plane loop's metrics."""

    def _log_mixed_rewards_and_advantages_information(*args: Any, **kwargs: Any) -> Any:
        kwargs["metrics"].update(_as_arrays(ledger.publish()))
        return original(*args, **kwargs)

    return _log_mixed_rewards_and_advantages_information


def wrap_ppo_masking(original: Function) -> Function:
    """Make the wrapper around PPO's last filter: hands the decision on, and survives an empty batch."""

    def _apply_ppo_seq_logprob_error_masking(train_data: Any, rewards: Any, *args: Any, **kwargs: Any) -> Any:
        decided, _arrival.decided = _arrival.decided, None
        if decided is None or len(decided.votes_B) != len(rewards):
            return original(train_data, rewards, *args, **kwargs)
        decided_rows.set(
            replace(decided, counted=True)
        )  # the metrics are published here, before the estimator
        if decided.trains_B.any():
            advantage_mask, metrics = original(train_data, rewards, *args, **kwargs)
        else:  # the host would raise: there is nothing to train on, so nothing is trained
            advantage_mask, metrics = train_data["token_mask"] * train_data["sample_mask"].unsqueeze(-1), {}
        ledger.count_trained(int(advantage_mask.bool().any(dim=1).sum()))
        return advantage_mask, {**metrics, **ledger.publish()}

    return _apply_ppo_seq_logprob_error_masking


def wrap_train(original: Function) -> Function:
    """Make the wrapper that skips the optimizer when the policy left no row of a batch in the loss."""

    def train(self: Any, data: Any, loss_fn: Any, eval_mode: bool = False, *args: Any, **kwargs: Any) -> Any:
        if eval_mode or not Process.nothing_trains or not _is_empty(data):
            return original(self, data, loss_fn, eval_mode, *args, **kwargs)
        return _nothing_trained(type(self).__name__)

    return train


def wrap_train_from_meta(original: Function) -> Function:
    """Make the wrapper that skips the optimizer of the data plane when no row of the step trains."""

    def train_from_meta(
        self: Any, meta: Any, loss_fn: Any, eval_mode: bool = False, *args: Any, **kwargs: Any
    ) -> Any:
        if eval_mode or not Process.nothing_trains:
            return original(self, meta, loss_fn, eval_mode, *args, **kwargs)
        return _nothing_trained(type(self).__name__)

    return train_from_meta


def _is_empty(data: Mapping[str, Any]) -> bool:
    return "sample_mask" in data and not bool(torch.as_tensor(data["sample_mask"]).bool().any())


def _nothing_trained(model: str) -> dict[str, Any]:
    """Return the training results of a step without training: zeros under the names that the loops read."""
    warn_once(
        "nemo_rl:nothing trained " + model, "no row of this step trains: %s is not updated. Said once.", model
    )
    zero = torch.tensor(0.0)
    names = ("loss", "global_valid_seqs", "global_valid_toks", "gen_kl_error", "token_mult_prob_error")
    return {"loss": zero, "grad_norm": zero.clone(), "all_mb_metrics": {name: [0.0] for name in names[1:]}}


def _as_arrays(metrics: dict[str, float]) -> dict[str, Any]:
    """Give the loops what they sum without a remark: an array of one number."""
    return {name: np.asarray(value) for name, value in metrics.items()}
