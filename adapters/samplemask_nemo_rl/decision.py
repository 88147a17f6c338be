"""Decides a batch: who trains, who votes; and keeps the account of the step until it is published."""

from __future__ import annotations

import threading
from collections.abc import Mapping, MutableMapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from samplemask.accounting import PREFIX, step_metrics
from samplemask.failure_kinds import REWARD_MISSING, warn_once, without_pardon
from samplemask.live import RunCounts
from samplemask.policy import RowPlan, plan_rows
from samplemask_nemo_rl.columns import COMPONENT, MASKED, VOTES, RowVerdicts, judged_by_reward, read_columns
from samplemask_nemo_rl.rows import keep_rows, message_codes, prompt_codes
from samplemask_nemo_rl.session import Session

_NO_VERDICT = (
    "no rollout of this step carries a verdict (mask_sample), so nothing can be masked. Return it from the "
    "environment's verify(), at the top level or in instance_config. Said once."
)
_NOT_READ = (
    "rollouts of NeMo Gym arrived without samplemask's columns: samplemask is not installed in the process "
    "that ran them, so nothing is masked. Put samplemask on the PYTHONPATH of the workers' environments and "
    "start through `python -m samplemask_nemo_rl` (docs/nemo-rl.md, troubleshooting). Said once."
)


@dataclass(frozen=True)
class DecidedRows:
    """What an advantage estimator must know of a batch.

    Attributes:
        votes_B: bool (B,), the rows that it runs on.
        trains_B: bool (B,), the rows whose result is kept.
        counted: True when the rows that reach the loss were counted already.
    """

    votes_B: npt.NDArray[np.bool_]
    trains_B: npt.NDArray[np.bool_]
    counted: bool = False


decided_rows: ContextVar[DecidedRows | None] = ContextVar("samplemask_decided_rows", default=None)
"""Hands a decision to the estimator on paths that give it no batch (SingleController, PPO)."""


class Ledger:
    """The decisions of the current step, until the metrics are published. Thread-safe.

    Attributes:
        run: All rollouts since the run began in this process.
    """

    def __init__(self) -> None:
        self.run = RunCounts()
        self._lock = threading.Lock()
        self._entries: list[tuple[RowPlan, npt.NDArray[Any], list[str | None]]] = []
        self._rows_trained: int | None = None
        self._unmeasured = 0

    def begin(self) -> None:
        """Forget everything: a run begins."""
        with self._lock:
            self.run, self._entries, self._rows_trained, self._unmeasured = RunCounts(), [], None, 0

    def add(
        self, plan: RowPlan, verdicts: RowVerdicts, reward_B: npt.NDArray[Any], kinds_B: list[str | None]
    ) -> None:
        """Enter the plan of one generated batch; `kinds_B` is what the plan was made of."""
        counts = RunCounts.of(verdicts.masked_B, reward_B, verdicts.kinds_B, verdicts.failed_B)
        with self._lock:
            self.run = self.run + counts
            self._entries.append((plan, reward_B, kinds_B))

    def count_trained(self, rows: int) -> None:
        """Add rows that really reached the loss: dynamic sampling and the host's own filters come after."""
        with self._lock:
            self._rows_trained = rows + (self._rows_trained or 0)

    def count_unmeasured(self, values: int) -> None:
        """Add values of reward components that their statistics leave out although the row votes."""
        with self._lock:
            self._unmeasured += values

    def publish(self) -> dict[str, float]:
        """Return the step's `mask_sample/*` and start the next step; empty for a healthy step."""
        with self._lock:
            entries, self._entries = self._entries, []
            trained, self._rows_trained = self._rows_trained, None
            unmeasured, self._unmeasured = self._unmeasured, 0
        if not entries:
            return {}
        rewards = np.concatenate([reward for _, reward, _ in entries])
        kinds = [kind for _, _, kinds_B in entries for kind in kinds_B]
        metrics = step_metrics(_joined([plan for plan, _, _ in entries]), rewards, kinds)
        if metrics and trained is not None:
            metrics[PREFIX + "rows_trained"] = float(trained)
            metrics[PREFIX + "no_signal_step"] = float(trained == 0)
        components = {PREFIX + "components_unmeasured": float(unmeasured)} if unmeasured else {}
        return {**metrics, **components, **(self.run.metrics() if metrics else {})}


ledger = Ledger()


def decide(batch: MutableMapping[str, Any], session: Session | None) -> DecidedRows | None:
    """Decide a batch that has just arrived at a trainer, in place.

    Sets `loss_multiplier` to zero where a row does not train, `mask_sample` to what the policy made
    of it, and adds `samplemask_votes`.

    Args:
        batch: NeMo-RL's rollout batch, or what its data plane carries of one.
        session: The run's session; None when no run has begun in this process.

    Returns:
        The decision, also for a batch that was decided before; None when the batch has no verdicts.

    Raises:
        OutageError: The batch is an outage and the policy says to raise.
    """
    if VOTES in batch:
        return rows_of(batch)
    if session is None:
        return None
    verdicts = read_columns(batch)
    if verdicts is None:
        if "agent_ref" in batch and not session.switched_off:
            warn_once("nemo_rl:not read", _NOT_READ)
        return None
    rewards = as_numbers(batch["total_reward"])
    verdicts = judged_by_reward(verdicts, rewards)
    plan = plan_and_enter(verdicts, rewards, _groups(batch), session)
    ledger.count_unmeasured(_unmeasured_components(batch, plan.votes_B))
    batch[MASKED] = torch.from_numpy(plan.masked_B & ~plan.trains_B)
    batch["loss_multiplier"] = keep_rows(batch["loss_multiplier"], plan.trains_B)
    batch[VOTES] = torch.from_numpy(plan.votes_B)
    return DecidedRows(plan.votes_B, plan.trains_B)


def _unmeasured_components(batch: MutableMapping[str, Any], votes_B: npt.NDArray[np.bool_]) -> int:
    columns = map(as_numbers, components_of(batch).values())
    return sum(int((~np.isfinite(column[votes_B])).sum()) for column in columns)


def components_of(batch: Any) -> dict[str, torch.Tensor]:
    """Return a batch's columns of reward components, by name; none of what is no batch."""
    if not isinstance(batch, Mapping):
        return {}
    return {
        name: column
        for name, column in batch.items()
        if isinstance(name, str) and name.startswith(COMPONENT) and isinstance(column, torch.Tensor)
    }


def rows_of(batch: MutableMapping[str, Any]) -> DecidedRows:
    """Return the decision that a decided batch carries."""
    votes, masked = (np.asarray(batch[name].reshape(-1).cpu()).astype(bool) for name in (VOTES, MASKED))
    return DecidedRows(votes, votes & ~masked)


def plan_and_enter(
    verdicts: RowVerdicts, reward_B: npt.NDArray[Any], codes_B: npt.NDArray[np.intp], session: Session
) -> RowPlan:
    """Apply the session's policy, and enter the plan into the ledger unless the policy leaves all as it is.

    A row without a reward never trains and never votes.

    Args:
        verdicts: The verdicts of B rows.
        reward_B: float (B,) rewards.
        codes_B: intp (B,) group codes.
        session: The run's session.
    """
    if not verdicts.stated_B.any() and not session.switched_off:
        warn_once("nemo_rl:no verdict", _NO_VERDICT)
    policy, measured_B = session.policy, verdicts.measured_B
    kinds_B = without_pardon(verdicts.kinds_B, measured_B, policy.scored_kinds, REWARD_MISSING)
    plan = plan_rows(verdicts.masked_B, codes_B, policy, kinds_B)
    plan.votes_B[:] &= measured_B
    plan.trains_B[:] &= measured_B
    if policy.action != "ignore" or policy.max_masked_fraction is not None:
        ledger.add(plan, verdicts, np.where(measured_B, reward_B, np.nan), kinds_B)
    return plan


def _groups(batch: MutableMapping[str, Any]) -> npt.NDArray[np.intp]:
    if "prompt_ids_for_adv" in batch:
        return prompt_codes(batch["prompt_ids_for_adv"])
    return message_codes(batch["message_log"], batch["length"])


def as_numbers(rewards: torch.Tensor) -> npt.NDArray[np.float64]:
    """Return a reward tensor as float64 (B,)."""
    return rewards.detach().double().reshape(-1).cpu().numpy()


def _joined(plans: list[RowPlan]) -> RowPlan:
    return RowPlan(
        *(
            np.concatenate([getattr(plan, name) for plan in plans])
            for name in ("trains_B", "votes_B", "masked_B")
        ),
        dropped_groups=sum(plan.dropped_groups for plan in plans),
        thin_groups=sum(plan.thin_groups for plan in plans),
    )
