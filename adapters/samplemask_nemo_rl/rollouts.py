"""Where rollouts become NeMo-RL's rows: read each verify response's verdict and let it travel along."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np

from samplemask.failure_kinds import warn_once
from samplemask.verdict import read_verdict
from samplemask_nemo_rl.columns import COMPONENT, DETAILS, MASKED, RowVerdicts, read_results, write_columns
from samplemask_nemo_rl.placeholders import (
    adopt_prompts,
    placeholder_result,
    prompt_key,
    refuse_placeholders,
)

Function = Callable[..., Any]

_COMPONENTS = "reward_components"

# Wrappers of a Ray actor's methods travel to it by value: they may refer to functions, not to objects.
_last_batch: ContextVar[dict[str, Any] | None] = ContextVar("samplemask_last_batch", default=None)
"""The newest rollout batch's verdict columns, for the data plane's actor, which drops unknown columns."""


def wrap_postprocess_group(original: Function) -> Function:
    """Make the wrapper that adds verdict columns to the batch of one or more prompt groups."""
    signature = inspect.signature(original)

    def _postprocess_single_nemo_gym_group(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        results = given["results"]
        if not given.get("mask_env_flagged_samples", True):
            refuse_placeholders([result.get("full_result") or {} for result in results])
            return original(*args, **kwargs)
        adopt_prompts(results, [prompt_key(row) for row in given["nemo_gym_rows"]])
        verdicts = read_results([result["full_result"] for result in results])
        _report_first_of_each_kind([result["full_result"] for result in results], verdicts)
        _put_stand_ins(results, verdicts)
        unmeasured = _set_components_aside(results, verdicts)
        group = original(*args, **kwargs)
        write_columns(group.final_batch, verdicts)
        for name, rows in unmeasured.items():
            if name in group.final_batch:
                group.final_batch[name][rows] = float("nan")
        return group

    return _postprocess_single_nemo_gym_group


def wrap_sync_rollout(original: Function) -> Function:
    """Make the wrapper that lets the data plane's rollout actor keep the verdict columns at hand."""

    def run_nemo_gym_rollout_sync(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        remember_columns(result.final_batch)
        return result

    return run_nemo_gym_rollout_sync


def wrap_rollout_to_data_plane(original: Function) -> Function:
    """Make the wrapper that sends the verdict columns to the driver beside the rewards."""

    def rollout_to_tq(self: Any, *args: Any, **kwargs: Any) -> Any:
        remember_columns({})
        answer = original(self, *args, **kwargs)
        add_remembered_columns(answer[1])
        return answer

    return rollout_to_tq


def remember_columns(batch: Mapping[str, Any]) -> None:
    """Keep a batch's verdict columns at hand in this context."""
    _last_batch.set({name: batch[name] for name in (MASKED, DETAILS)} if DETAILS in batch else None)


def add_remembered_columns(carry: MutableMapping[str, Any]) -> None:
    """Add the columns kept at hand to what the driver gets; validation, which gets rewards only, does not."""
    columns = _last_batch.get()
    if columns is not None and "loss_multiplier" in carry:
        carry.update(columns)


def wrap_result_of_gym(original: Function) -> Function:
    """Make the wrapper that turns a masked rollout without generation tokens into a placeholder."""

    def _postprocess_nemo_gym_to_nemo_rl_result(
        self: Any, nemo_gym_row: Any, nemo_gym_result: Any, tokenizer: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if _has_tokens(nemo_gym_result) or not read_verdict(nemo_gym_result).mask_sample:
            return original(self, nemo_gym_row, nemo_gym_result, tokenizer, *args, **kwargs)
        return placeholder_result(nemo_gym_result, tokenizer)

    return _postprocess_nemo_gym_to_nemo_rl_result


def wrap_record_to_train_batch(original: Function) -> Function:
    """Make the wrapper that adds verdict columns to SingleController's rows of one prompt group."""

    def record_to_train_batch(record: Any, *args: Any, **kwargs: Any) -> Any:
        batch = original(record, *args, **kwargs)
        extras = [completion.env_extras or {} for completion in record.completions]
        if any(_SWITCHED_OFF in extra for extra in extras):
            refuse_placeholders(extras)
        elif _from_gym(record):
            verdicts = read_results(extras)
            _report_first_of_each_kind(extras, verdicts)
            write_columns(batch, verdicts)
        return batch

    return record_to_train_batch


def wrap_result_to_completion(original: Function) -> Function:
    """Make the wrapper that enforces NeMo-RL's switch and gives unmeasured rows a stand-in reward."""

    def _result_to_completion(self: Any, result: Any) -> Any:
        full_result = result["full_result"]
        if not self._mask_env_flagged_samples:
            full_result[_SWITCHED_OFF] = True
            return original(self, result)
        measured = read_verdict(full_result).reward is not None
        found = full_result.get("reward")
        if not measured:
            full_result["reward"] = 0.0
        completion = original(self, result)
        if not measured:  # as text: NeMo-RL's statistics of a NaN or an infinity raise
            full_result["reward"] = None if found is None else str(found)
        return completion

    return _result_to_completion


_SWITCHED_OFF = "_samplemask_switched_off"


def wrap_stream_rows(original: Function) -> Function:
    """Make the wrapper that gives SingleController's placeholders their siblings' prompt."""

    async def _stream_rows(
        self: Any, nemo_gym_env: Any, pending: Any, results: Any, *args: Any, **kwargs: Any
    ) -> Any:
        timing = await original(self, nemo_gym_env, pending, results, *args, **kwargs)
        arrived = [result for result in results if result is not None]
        adopt_prompts(arrived, ["one group"] * len(arrived))
        return timing

    return _stream_rows


def _from_gym(record: Any) -> bool:
    return (getattr(record, "metadata", None) or {}).get("task_name") == "nemo_gym"


def _has_tokens(nemo_gym_result: Any) -> bool:
    if not isinstance(nemo_gym_result, Mapping):
        return True  # the host reports what is wrong with it
    output = (nemo_gym_result.get("response") or {}).get("output") or []
    return any(item.get("generation_token_ids") for item in output)


def _report_first_of_each_kind(responses: Sequence[Mapping[str, Any]], verdicts: RowVerdicts) -> None:
    """Log the reason of the first rollout of each kind: the metrics count kinds, people need one reason."""
    for row in np.flatnonzero(verdicts.masked_B):
        kind = verdicts.kinds_B[row]
        warn_once(
            f"nemo_rl:reason:{kind}",
            "first rollout masked in this process with failure_kind=%s: %s. Said once per kind.",
            kind,
            read_verdict(responses[row]).failure_reason,
        )


def _put_stand_ins(results: Sequence[Mapping[str, Any]], verdicts: RowVerdicts) -> None:
    """Let NeMo-RL build its tensors where there is no reward; `measured_B` keeps such rows out."""
    for row in np.flatnonzero(~verdicts.measured_B):
        results[row]["full_result"]["reward"] = 0.0


def _set_components_aside(
    results: Sequence[Mapping[str, Any]], verdicts: RowVerdicts
) -> dict[str, list[int]]:
    """Replace reward components that were not measured by numbers that NeMo-RL accepts.

    Returns:
        Rows without a measurement per column of NeMo-RL's batch ("reward/<name>").
    """
    unmeasured: dict[str, list[int]] = {}
    for row, result in enumerate(results):
        components = result["full_result"].get(_COMPONENTS)
        if not isinstance(components, Mapping) or not components:
            continue
        missing = [
            name for name, value in components.items() if verdicts.masked_B[row] or not _is_measured(value)
        ]
        if not missing:
            continue
        kept = {name: 0.0 if name in missing else value for name, value in components.items()}
        reward = float(result["full_result"]["reward"])
        # The verifier's rule "reward == sum of components" is checked by NeMo-RL for every row.
        kept[missing[0]] = reward - sum(float(kept[name]) for name in kept)
        result["full_result"][_COMPONENTS] = kept
        for name in missing:
            unmeasured.setdefault(COMPONENT + name, []).append(row)
    return unmeasured


def _is_measured(value: Any) -> bool:
    return read_verdict({"reward": value, "mask_sample": True}).reward is not None
