"""The place where verl's legacy trainer computes advantages: select rows, call verl, scatter."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextvars import ContextVar
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from samplemask.failure_kinds import warn_once
from samplemask.groups import group_codes
from samplemask.policy import RowPlan
from samplemask_verl.components import component_statistics
from samplemask_verl.config import VerlPolicy, acts, estimator_name, is_group_relative, policy_for, policy_of
from samplemask_verl.decision import Decision, Rows, decide, with_signal
from samplemask_verl.in_place import zero_rows_of
from samplemask_verl.loss import EXCLUSION, MASKS, exclusion_column
from samplemask_verl.steps import COMPONENTS, MASKED_COLUMN, METRICS, NO_SIGNAL, ROLLOUTS
from samplemask_verl.verdicts import RowVerdicts, places_of, read_flags, with_rewards
from samplemask_verl.verify import check_unmoved, perturbed

decided: ContextVar[bool] = ContextVar("samplemask_decided", default=False)
"""True while verl computes advantages on rows that samplemask already selected."""

RESULTS = ("advantages", "returns")

# Wide columns that no estimator is given, so that their rows need no copy.
_TEXT = ("prompts", "responses", "input_ids", "attention_mask", "position_ids")

_HIDES_A_REWARD = ("gdpo", "grpo_passk")
"""gdpo computes with components instead, and grpo_passk with the best two rewards of a group."""

_NO_VERDICT = (
    "no rollout of this step carries a verdict (mask_sample), so nothing can be masked. Return it from the "
    "reward function (samplemask_verl.reward_dict, scored, masked) or set it in the agent loop's "
    "extra_fields. Said once."
)


def wrap_compute_advantage(host: ModuleType) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the maker of the wrapper around `compute_advantage`.

    Args:
        host: The module verl.trainer.ppo.ray_trainer.
    """

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def compute_advantage(data: Any, adv_estimator: Any, *args: Any, **kwargs: Any) -> Any:
            if decided.get() or not acts(policy := policy_of(_config(args, kwargs))):
                return original(data, adv_estimator, *args, **kwargs)
            if "response_mask" not in data.batch.keys():  # noqa: SIM118 - a TensorDict, not a dict
                data.batch["response_mask"] = host.compute_response_mask(data)
            estimator = host.core_algos.get_adv_estimator_fn(adv_estimator)
            group_relative = is_group_relative(estimator)
            if group_relative and "uid" not in data.non_tensor_batch:
                return original(data, adv_estimator, *args, **kwargs)  # verl's own error says it best
            fitted = policy_for(policy, adv_estimator, group_relative)
            codes_B, count = group_codes(_groups(data), len(data))
            numbered = estimator in _sorting_uids(host.core_algos)
            isolates = numbered or estimator_name(adv_estimator) == "grpo"

            def run(rows: Any) -> Any:
                return original(rows, adv_estimator, *args, **kwargs)

            def estimate(data: Any, plan: RowPlan) -> None:
                if isolates and "uid" in data.non_tensor_batch:
                    _estimate_isolated(run, data, plan, codes_B)
                else:
                    _estimate(run, data, plan, estimator_name(adv_estimator) == "gdpo")

            with component_statistics(fitted, adv_estimator) as left_out:
                said = _said(data, policy)
                warn_if_silent(said)
                if _is_healthy(said, codes_B, count, fitted):
                    result = _with_codes(run, data, codes_B) if numbered else run(data)
                    if _is_measured(result, adv_estimator):
                        result.meta_info.update({ROLLOUTS: None, COMPONENTS: sum(left_out)})
                        return result
                left_out.clear()
                decision = _decision(data, said, codes_B, fitted)
                data.meta_info[ROLLOUTS] = decision.sessions.counts()
                before = None
                if decision.plan.changes_nothing:
                    data = run(data)
                else:
                    before = perturbed(data, decision.plan) if policy.verify else None
                    estimate(data, decision.plan)
                data.meta_info[COMPONENTS] = sum(left_out)
                if before is not None:
                    _verify(data, before, codes_B, decision.plan, fitted, estimate)
            return data if decision.plan.changes_nothing else _excluding(data, decision, policy.denominator)

        return compute_advantage

    return make


def voting_rows(host: ModuleType) -> Callable[[Any, Any], npt.NDArray[np.bool_]]:
    """Return the function that says which rows of a legacy batch vote, before advantages are computed.

    Args:
        host: The module verl.trainer.ppo.ray_trainer.
    """

    def votes(data: Any, algorithm: Any) -> npt.NDArray[np.bool_]:
        policy, name = policy_of(algorithm), algorithm.adv_estimator
        group_relative = is_group_relative(host.core_algos.get_adv_estimator_fn(name))
        fitted = policy_for(policy, name, group_relative)
        codes_B, _ = group_codes(_groups(data), len(data))
        said = _said(data, policy)
        return _decision(data, said, codes_B, fitted).plan.votes_B

    return votes


def _is_healthy(said: RowVerdicts, codes_B: npt.NDArray[np.intp], count: int, policy: VerlPolicy) -> bool:
    """Tell whether no flag masks and no group is thin; rewards are judged by what verl makes of them."""
    if said.masked_B.any() or (
        policy.masked_kinds and any(kind in policy.masked_kinds for kind in said.kinds_B)
    ):
        return False
    return bool((np.bincount(codes_B, minlength=count) >= policy.min_valid).all())


def _is_measured(result: Any, adv_estimator: Any) -> bool:
    """Tell whether no reward was NaN or infinite.

    verl's other estimators show it in the first column of what they made: such a reward is summed,
    subtracted from or multiplied by zero, which leaves NaN. So a healthy batch costs no pass of its
    own over the rewards.
    """
    if estimator_name(adv_estimator) in _HIDES_A_REWARD:
        return bool(np.isfinite(_rewards(result)).all())
    return all(math.isfinite(value[:, 0].sum()) for value in _results(result))


def _results(data: Any) -> list[torch.Tensor]:
    """Return what verl computed; its outcome estimators return one tensor twice."""
    advantages, returns = (data.batch[name] for name in RESULTS)
    return [advantages] if advantages is returns else [advantages, returns]


def _sorting_uids(core_algos: ModuleType) -> tuple[Any, ...]:
    """Name verl's own estimators that sort the uid strings to find the groups; numbers are faster."""
    names = ("compute_grpo_vectorized_outcome_advantage", "compute_rloo_vectorized_outcome_advantage")
    return tuple(getattr(core_algos, name, None) for name in names)


def _with_codes(run: Callable[[Any], Any], data: Any, codes_B: npt.NDArray[np.intp]) -> Any:
    """Run verl with group numbers in place of its uid strings: the same groups, found faster."""
    uid = data.non_tensor_batch.get("uid")
    if uid is None:
        return run(data)
    data.non_tensor_batch["uid"] = codes_B
    try:
        return run(data)
    finally:
        data.non_tensor_batch["uid"] = uid


def _decision(data: Any, said: RowVerdicts, codes_B: npt.NDArray[np.intp], policy: VerlPolicy) -> Decision:
    rewards_B = _rewards(data)
    decision = decide(Rows(codes_B, rewards_B), with_rewards(said, rewards_B), policy)
    mask = data.batch["response_mask"]
    if mask[int(decision.plan.votes_B.argmax())].sum() >= 2:  # as in all but the oddest batches
        return decision
    return with_signal(decision, mask.sum(dim=-1).cpu().numpy())


def _verify(
    data: Any,
    other: Any,
    codes_B: npt.NDArray[np.intp],
    plan: RowPlan,
    policy: VerlPolicy,
    estimate: Callable[[Any, RowPlan], None],
) -> None:
    said = _said(other, policy)
    again = _decision(other, said, codes_B, policy).plan
    estimate(other, again)
    check_unmoved((plan, data.batch["advantages"]), (again, other.batch["advantages"]), "row {}".format)


def warn_if_silent(verdicts: RowVerdicts) -> None:
    """Say once that no row of a step carried a verdict: the plugin is installed but not effective."""
    if not verdicts.stated:
        warn_once("verl:no verdict", _NO_VERDICT)


def _estimate_isolated(
    run: Callable[[Any], Any], data: Any, plan: RowPlan, codes_B: npt.NDArray[np.intp]
) -> None:
    """Run verl's estimator on all rows, those without a vote in a group of their own.

    Only for estimators that compare a row with nothing but its group: what the others hold cannot reach
    it, and no (B, T) row is selected or scattered. Their results are verl's new tensors, so they are
    zeroed in place.
    """
    nobodys_group = codes_B.max(initial=0) + 1
    _with_codes(run, data, np.where(plan.votes_B, codes_B, nobodys_group))
    silent = torch.from_numpy(np.flatnonzero(~plan.trains_B))
    for value in _results(data):
        value.index_fill_(0, silent.to(value.device), 0)


def _estimate(run: Callable[[Any], Any], data: Any, plan: RowPlan, reads_batch: bool) -> None:
    """Run verl's estimator on the voting rows and put the result back in place.

    Args:
        run: verl's `compute_advantage`, its other arguments bound.
        data: The batch.
        plan: Who votes.
        reads_batch: The estimator is given the batch itself, as gdpo is, and may read any column.
    """
    voters = np.flatnonzero(plan.votes_B)
    if not len(voters):
        zeros = torch.zeros_like(data.batch["token_level_rewards"])
        data.batch["advantages"], data.batch["returns"] = zeros, zeros.clone()
        return
    known = set(data.batch.keys())
    read = data if reads_batch else data.select(batch_keys=[name for name in known if name not in _TEXT])
    selected = _without_flags(read.select_idxs(voters))
    token = decided.set(True)
    try:
        estimated = run(selected)
    finally:
        decided.reset(token)
    silent = torch.from_numpy(plan.votes_B & ~plan.trains_B)
    rows = torch.from_numpy(voters)
    scattered: dict[int, torch.Tensor] = {}  # verl's outcome estimators return one tensor twice
    for name in set(estimated.batch.keys()) - known | set(RESULTS):
        value = estimated.batch[name]
        if id(value) not in scattered:
            scattered[id(value)] = scatter(value, rows, silent)
        data.batch[name] = scattered[id(value)]


def _excluding(data: Any, decision: Decision, denominator: str) -> Any:
    """Take the rows that do not train out of the loss, and masked rows out of the metrics."""
    plan = decision.plan
    data.batch[EXCLUSION] = exclusion_column(plan.trains_B, None, denominator)
    for name in MASKS:
        if name in data.batch.keys():  # noqa: SIM118
            zero_rows_of(data.batch, name, torch.from_numpy(~plan.trains_B))
    data.meta_info[METRICS] = decision.metrics
    data.meta_info[NO_SIGNAL] = not plan.trains_B.any()
    data.non_tensor_batch[MASKED_COLUMN] = plan.masked_B
    return data


def scatter(value: torch.Tensor, rows: torch.Tensor, silent_B: torch.Tensor) -> torch.Tensor:
    """Put the rows of `value` (V, ...) at `rows` (V,) of a zero tensor (B, ...); zero the silent rows."""
    full = value.new_zeros((len(silent_B), *value.shape[1:])).index_copy_(0, rows, value)
    if silent_B.any():
        full[silent_B] = 0
    return full


def _without_flags(selected: Any) -> Any:
    """Clear the flags of rows that were already decided, so that a host that excludes finds nothing to do."""
    flags = selected.non_tensor_batch.get("mask_sample")
    if flags is not None:
        selected.non_tensor_batch["mask_sample"] = np.zeros(len(flags), dtype=bool)
    if "mask_sample" in selected.batch.keys():  # noqa: SIM118
        selected.batch["mask_sample"] = torch.zeros_like(selected.batch["mask_sample"])
    return selected


def _config(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # compute_advantage(data, adv_estimator, gamma, lam, num_repeat, norm_adv_by_std_in_grpo, config)
    return kwargs.get("config", args[4] if len(args) > 4 else None)


def _said(data: Any, policy: VerlPolicy) -> RowVerdicts:
    """Read what the batch says of its rows, as far as the policy needs it."""
    return read_flags(places_of(data), len(data), every_kind=bool(policy.masked_kinds))


def _groups(data: Any) -> Any:
    uid = data.non_tensor_batch.get("uid")
    return np.arange(len(data)) if uid is None else uid


def _rewards(data: Any) -> Any:
    """Each row's reward as the environment gave it: before verl's KL penalty, where that is known."""
    for name in ("token_level_scores", "rm_scores", "token_level_rewards"):
        if name in data.batch.keys():  # noqa: SIM118
            return data.batch[name].sum(dim=-1).double().cpu().numpy()
    raise KeyError("token_level_rewards")
