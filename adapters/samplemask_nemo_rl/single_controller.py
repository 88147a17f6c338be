"""SingleController: the verdicts lie in the data plane; decide there before the host's advantage stage.

The wrappers here belong to a Ray actor's class and travel to it by value: they may refer to
functions of this package, not to objects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

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
            await decide_chunk(self, meta, session)
        try:
            return await original(self, meta, **tracing)
        finally:
            forget()

    return _advantage_stage


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


async def decide_chunk(controller: Any, meta: Any, session: Session) -> None:
    """Read a chunk's verdicts from the data plane, decide, write its sample mask, hand the votes on."""
    config = controller._advantage_cfg
    fields = [config.prompt_ids_field, config.reward_field, config.sample_mask_field, MASKED]
    where = {"sample_ids": meta.sample_ids, "partition_id": meta.partition_id}
    wanted = fields + [DETAILS] * (DETAILS in (meta.fields or ()))
    stored = await controller._call_dp("get_samples", select_fields=wanted, **where)
    chunk = {name: _dense(stored[name]) for name in wanted}
    rewards = decision.as_numbers(chunk[config.reward_field])
    verdicts = read_columns(chunk)
    assert verdicts is not None
    verdicts = judged_by_reward(verdicts, rewards)
    plan = decision.plan_verdicts(verdicts, prompt_codes(chunk[config.prompt_ids_field]), session)
    decision.enter(plan, verdicts, rewards, session)
    mask = chunk[config.sample_mask_field].reshape(-1)
    decided = keep_rows(mask, plan.trains_B)
    if not torch.equal(decided, mask):
        packed = _fields_for_put(meta, {config.sample_mask_field: decided})
        await controller._call_dp("put_samples", fields=packed, **where)
    decision.decided_rows.set(decision.DecidedRows(plan.votes_B, plan.trains_B))


def _fields_for_put(meta: Any, fields: dict[str, torch.Tensor]) -> Any:
    from nemo_rl.algorithms.single_controller_utils.utils import fields_for_put

    return fields_for_put(meta, fields)


def _dense(value: torch.Tensor) -> torch.Tensor:
    return torch.nested.to_padded_tensor(value, padding=0) if value.is_nested else value
