"""One training step of verl's trainers: its counts, its metrics, and whether anything trains."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from samplemask.accounting import PREFIX, StepCounts
from samplemask.errors import SampleMaskError
from samplemask.live import RunCounts
from samplemask_verl.config import acts, policy_of
from samplemask_verl.decision import Decision
from samplemask_verl.loss import EXCLUSION, LEFT_OUT, zero_rows
from samplemask_verl.stage_queue import reading
from samplemask_verl.verdicts import VERDICT_FIELDS, read_rows

Wrapper = Callable[..., Any]

MASKED_COLUMN = "samplemask_masked"
"""Column of the legacy trainer's batch, bool (B,): rows to leave out of its reward metrics."""

NO_SIGNAL = "samplemask_no_signal"
"""Key of the legacy trainer's meta_info: True when no row of the batch trains."""

METRICS = "samplemask_metrics"
"""Key of the legacy trainer's meta_info: the step's `mask_sample/*`."""

ROLLOUTS = "samplemask_rollouts"
"""Key of the legacy trainer's meta_info: the step's RunCounts; None when nothing is masked."""

COMPONENTS = "samplemask_components"
"""Key of the legacy trainer's meta_info: values of gdpo's reward components that were not measured."""

# Most of a batch's memory; selecting rows of it would take several times as long as the metrics do.
NOT_IN_METRICS = (
    "input_ids",
    "position_ids",
    "old_log_probs",
    "rollout_log_probs",
    "ref_log_prob",
    "entropys",
    "routed_experts",
    "loss_mask",
)

_measured: ContextVar[npt.NDArray[np.bool_] | None] = ContextVar("samplemask_measured", default=None)


@dataclass
class StepState:
    """Lives on a V1 trainer from the start of a step to its metrics.

    Attributes:
        counts: Of all batches of the step so far.
        masked_keys: Row keys that the environment masked.
        hidden_keys: Row keys that do not train although their stored response mask says so.
        trains: Whether a row of the batch at hand trains.
        rollouts: All rollouts of the step so far, for the run's account.
    """

    counts: StepCounts = field(default_factory=StepCounts)
    rollouts: RunCounts = field(default_factory=RunCounts)
    masked_keys: set[str] = field(default_factory=set)
    hidden_keys: set[str] = field(default_factory=set)
    trains: bool = True

    def add(self, keys: list[str], decision: Decision, masks_stay: bool = True) -> None:
        """Add one batch; `masks_stay`: the stored response masks of rows that do not train are not zeroed."""
        plan = decision.plan
        self.counts = self.counts + decision.counts
        self.rollouts = self.rollouts + decision.sessions.counts()
        self.trains = bool(plan.trains_B.any())
        if not plan.changes_nothing:
            names = np.asarray(keys, dtype=object)
            self.masked_keys.update(names[plan.masked_B])
            self.hidden_keys.update(names[~plan.trains_B] if masks_stay else ())


class LegacyRun:
    """The account of the legacy trainer, of which a process has one: its metrics are made without it."""

    rollouts = RunCounts()


def state_of(trainer: Any) -> StepState:
    """Return the trainer's step state, made on first use."""
    state = vars(trainer).get("samplemask_step")
    if state is None:
        state = trainer.samplemask_step = StepState()
    return state


def wrap_step(original: Wrapper) -> Wrapper:
    """Count afresh in each step, and publish counts that verl's averaging over batches did not touch."""

    def step(self: Any, metrics: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        state = self.samplemask_step = StepState()
        batch = original(self, metrics, *args, **kwargs)
        ours, rollouts = state.counts.metrics(), state.rollouts
        refill = vars(self.replay_buffer).get("samplemask_refill")
        if refill is not None:
            rollouts = rollouts + refill.rollouts
            ours.update(refill.take_metrics())
        run = self.samplemask_run = vars(self).get("samplemask_run", RunCounts()) + rollouts
        metrics.update({**ours, **run.metrics()} if ours else {})
        return batch

    return step


def wrap_v1_update(original: Wrapper) -> Wrapper:
    """Skip an actor or critic update when no row of the batch trains: no step, no scheduler, no decay."""

    def update(self: Any, batch: Any, metrics: dict[str, Any]) -> Any:
        if not state_of(self).trains:
            return batch
        updated = original(self, batch, metrics)
        if EXCLUSION in (batch.fields or ()):
            _check_receipt(original, metrics)
        return updated

    return update


def wrap_legacy_update(host: ModuleType) -> Callable[[Wrapper], Wrapper]:
    """Return the maker of the same for the legacy trainer, whose updates return their metrics.

    Args:
        host: The module verl.trainer.ppo.ray_trainer.
    """

    def make(original: Wrapper) -> Wrapper:
        def update(self: Any, batch: Any) -> Any:
            if batch.meta_info.get(NO_SIGNAL):
                return host.DataProto.from_single_dict(data={}, meta_info={"metrics": {}})
            updated = original(self, batch)
            if EXCLUSION in batch.batch.keys():  # noqa: SIM118 - a TensorDict, not a dict
                _check_receipt(original, updated.meta_info["metrics"])
            return updated

        return update

    return make


def _check_receipt(update: Wrapper, metrics: dict[str, Any]) -> None:
    """Stop when the training processes did not say that they left the excluded rows out.

    Args:
        update: verl's `_update_actor` or `_update_critic`.
        metrics: What it reported.

    Raises:
        SampleMaskError: The plugin is not active where the model is trained.
    """
    role = update.__name__.removeprefix("_update_")
    if f"{role}/{LEFT_OUT}" not in metrics:
        raise SampleMaskError(
            f"the {role}'s training processes: expected them to leave the excluded rows out of the loss and "
            f"to report {role}/{LEFT_OUT}, found no such report. samplemask is not active there: install it "
            "in the Python environment of every node, and let VERL_USE_EXTERNAL_PLUGINS load it everywhere."
        )


def wrap_v1_metrics(original: Wrapper) -> Wrapper:
    """Tell verl's reward and advantage metrics which rows of the step were measured, and which trained."""

    def _compute_metrics(self: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        state = state_of(self)
        real = [
            key for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding", False)
        ]
        measured_B = np.array([key not in state.masked_keys for key in real], dtype=bool)
        hidden_B = torch.tensor([key in state.hidden_keys for key in batch.keys])
        hiding = reading((), partial(_hide, hidden_B)) if hidden_B.any() else nullcontext()
        token = _measured.set(measured_B if state.counts.changed else None)
        try:
            with hiding:
                return original(self, batch, *args, **kwargs)
        finally:
            _measured.reset(token)

    return _compute_metrics


def _hide(hidden_B: torch.Tensor, stored: Any) -> None:
    """Zero the response mask of rows that do not train, in what was read."""
    stored["response_mask"] = zero_rows(stored["response_mask"], hidden_B)


def wrap_data_metrics(original: Wrapper) -> Wrapper:
    """Keep masked rows, and the NaN of a step in which nothing trains, out of verl's data metrics."""

    def compute_data_metrics(batch: Any, *args: Any, **kwargs: Any) -> Any:
        run_metrics = _account(batch)
        masked_B = batch.non_tensor_batch.get(MASKED_COLUMN)
        measured_B = _measured.get() if masked_B is None else ~masked_B.astype(bool)
        ours = {**batch.meta_info.get(METRICS, {}), **_components(batch)}
        if measured_B is None:
            return {**original(batch, *args, **kwargs), **ours}
        ours.update(run_metrics)
        if not measured_B.any():
            return dict(ours)
        metrics = original(_rows_to_measure(batch, measured_B), *args, **kwargs)
        return {**{name: value for name, value in metrics.items() if math.isfinite(value)}, **ours}

    return compute_data_metrics


def _rows_to_measure(batch: Any, measured_B: npt.NDArray[np.bool_]) -> Any:
    """Select rows; of columns that verl's data metrics do not read, none are copied."""
    columns = [name for name in batch.batch.keys() if name not in NOT_IN_METRICS]  # noqa: SIM118
    return batch.select(batch_keys=columns).select_idxs(np.flatnonzero(measured_B))


def _components(batch: Any) -> dict[str, float]:
    """Count the values of reward components that gdpo's statistics left out; nothing where there are none."""
    left_out = batch.meta_info.get(COMPONENTS)
    return {PREFIX + "components_unmeasured": float(left_out)} if left_out else {}


def _account(batch: Any) -> dict[str, float]:
    """Add the legacy trainer's step to the account of its process; return the run so far."""
    if ROLLOUTS not in batch.meta_info:
        return {}
    rollouts = batch.meta_info[ROLLOUTS]
    if rollouts is None:
        rewards = batch.batch["token_level_scores"].sum(dim=-1).double().cpu().numpy()
        rollouts = RunCounts.of(np.zeros(len(rewards), dtype=bool), rewards)
    LegacyRun.rollouts = LegacyRun.rollouts + rollouts
    return LegacyRun.rollouts.metrics()


def wrap_validation(original: Wrapper) -> Wrapper:
    """Keep masked rows out of validation, and say how many there were."""

    def _val_metrics_update(
        self: Any, data_sources: Any, sample_uids: Any, infos: dict[str, Any], *args: Any, **kwargs: Any
    ) -> dict[str, Any]:
        if not acts(policy_of(self.config.algorithm)):
            return original(self, data_sources, sample_uids, infos, *args, **kwargs)
        rewards = np.array(infos.get("reward", np.zeros(len(data_sources))), dtype=np.float64)
        masked_B = read_rows([infos], rewards).masked_B
        if not masked_B.any():
            return original(self, data_sources, sample_uids, infos, *args, **kwargs)
        if kwargs.get("expected_acc_counts"):
            kwargs["expected_acc_counts"] = _without_masked(
                kwargs["expected_acc_counts"], data_sources, sample_uids, masked_B
            )
        kept = np.flatnonzero(~masked_B).tolist()
        columns = {
            name: [values[row] for row in kept]
            for name, values in infos.items()
            if name not in VERDICT_FIELDS
        }
        metrics = original(
            self,
            [data_sources[row] for row in kept],
            [sample_uids[row] for row in kept],
            columns,
            *args,
            **kwargs,
        )
        return {**metrics, PREFIX + "val_masked_pct": 100.0 * float(masked_B.mean())}

    return _val_metrics_update


def _without_masked(
    expected: dict[tuple[str, str], int], data_sources: Any, sample_uids: Any, masked_B: npt.NDArray[np.bool_]
) -> dict[tuple[str, str], int]:
    """Lower verl's expected counts: it takes a missing session for a failed one."""
    lowered = dict(expected)
    for row in np.flatnonzero(masked_B):
        key = (str(data_sources[row]), str(sample_uids[row]))
        if key in lowered:
            lowered[key] -= 1
    return lowered
