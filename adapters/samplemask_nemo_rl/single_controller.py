"""SingleController: the verdicts lie in the data plane; decide there before the host's advantage stage.

The wrappers here belong to a Ray actor's class and travel to it by value: they may refer to
functions of this package, not to objects.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from samplemask.failure_kinds import warn_once
from samplemask.policy import RowPlan
from samplemask_nemo_rl import decision
from samplemask_nemo_rl.columns import DETAILS, MASKED, judged_by_reward, read_columns
from samplemask_nemo_rl.rows import keep_rows, prompt_codes
from samplemask_nemo_rl.session import ATTRIBUTE, Session

Function = Callable[..., Any]


def wrap_advantage_stage(original: Function) -> Function:
    """Make the wrapper that decides a chunk of complete prompt groups and writes its sample mask."""

    async def _advantage_stage(self: Any, meta: Any, **tracing: Any) -> Any:
        session = getattr(self._advantage_estimator, ATTRIBUTE, None)
        if session is not None and carries_verdicts(meta):
            await decide_chunk(self._call_dp, self._advantage_cfg, meta, session)
        try:
            return await original(self, meta, **tracing)
        finally:
            forget()

    return _advantage_stage


def wrap_newer_stage(original: Function) -> Function:
    """Make the same wrapper for newer NeMo-RL, where the stage is an object of its own."""

    async def run(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        session = getattr(self._advantage_estimator, ATTRIBUTE, None)
        if session is not None and carries_verdicts(request.meta):
            call = caller_of(self._dp_client)
            await decide_chunk(call, self._config.advantage, request.meta, session)
        try:
            return await original(self, request, *args, **kwargs)
        finally:
            forget()

    return run


def wrap_pump_metrics(original: Function) -> Function:
    """Make the wrapper that adds the step's `mask_sample/*` to SingleController's metrics."""

    def reduce_advantage_pump_metrics(*args: Any, **kwargs: Any) -> Any:
        return {**original(*args, **kwargs), **publish()}

    return reduce_advantage_pump_metrics


def publish() -> dict[str, float]:
    """Return the step's metrics and start the next step."""
    return decision.ledger.publish()


def forget() -> None:
    """Withdraw a decision that no estimator asked for: the host skips it for a chunk without tokens."""
    decision.decided_rows.set(None)


def carries_verdicts(meta: Any) -> bool:
    """Tell whether the rows of a data plane batch have verdict columns."""
    return MASKED in (meta.fields or ())


def caller_of(client: Any) -> Function:
    """Return a function that calls a data plane client, be it an object or a Ray actor."""

    async def call(method: str, **arguments: Any) -> Any:
        bound = getattr(client, method)
        answer = (getattr(bound, "remote", None) or bound)(**arguments)
        return await answer if inspect.isawaitable(answer) else answer

    return call


async def decide_chunk(call: Function, config: Any, meta: Any, session: Session) -> None:
    """Read a chunk's verdicts from the data plane, decide, write its masks, hand the votes on.

    Args:
        call: Calls a method of the data plane.
        config: NeMo-RL's AdvantageConfig, which names the columns.
        meta: NeMo-RL's KVBatchMeta of complete prompt groups.
        session: The run's session.
    """
    fields = [config.prompt_ids_field, config.reward_field, config.sample_mask_field, MASKED]
    wanted = fields + [DETAILS] * (DETAILS in (meta.fields or ()))
    where = {"sample_ids": meta.sample_ids, "partition_id": meta.partition_id}
    stored = await call("get_samples", select_fields=wanted, **where)
    chunk = {name: _dense(stored[name]) for name in wanted}
    rewards = decision.as_numbers(chunk[config.reward_field])
    verdicts = read_columns(chunk)
    assert verdicts is not None
    verdicts = judged_by_reward(verdicts, rewards)
    plan = decision.plan_and_enter(verdicts, rewards, prompt_codes(chunk[config.prompt_ids_field]), session)
    _report_if_empty(plan)
    masks = _changed_masks(chunk, config.sample_mask_field, plan)
    if masks:
        await call("put_samples", fields=_fields_for_put(meta, masks), **where)
    decision.decided_rows.set(decision.DecidedRows(plan.votes_B, plan.trains_B))


def _changed_masks(chunk: dict[str, torch.Tensor], sample_mask_field: str, plan: RowPlan) -> dict[str, Any]:
    """Return the sample mask and the flags as the policy has them, where they differ from those stored."""
    stored = {name: chunk[name].reshape(-1) for name in (sample_mask_field, MASKED)}
    decided = {
        sample_mask_field: keep_rows(stored[sample_mask_field], plan.trains_B),
        MASKED: torch.from_numpy(plan.masked_B & ~plan.trains_B).to(stored[MASKED].dtype),
    }
    return {name: mask for name, mask in decided.items() if not torch.equal(mask, stored[name])}


def _report_if_empty(plan: RowPlan) -> None:
    if not plan.trains_B.any():
        warn_once(
            "nemo_rl:empty chunk",
            "no row of a chunk trains (%d of %d masked). SingleController skips the chunk; when no chunk of "
            "a step trains, it ends the run with 'no valid response tokens'. Said once.",
            int(plan.masked_B.sum()),
            len(plan.masked_B),
        )


def _fields_for_put(meta: Any, fields: dict[str, torch.Tensor]) -> Any:
    from nemo_rl.algorithms.single_controller_utils.utils import fields_for_put

    return fields_for_put(meta, fields)


def _dense(value: torch.Tensor) -> torch.Tensor:
    return torch.nested.to_padded_tensor(value, padding=0) if value.is_nested else value
