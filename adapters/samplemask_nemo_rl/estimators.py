"""The advantage estimators: run NeMo-RL's own class on the rows that vote and put the result back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from samplemask.policy import MaskPolicy
from samplemask_nemo_rl import decision
from samplemask_nemo_rl.columns import VOTES, all_measured, judged_by_reward, read_columns
from samplemask_nemo_rl.decision import (
    DecidedRows,
    components_of,
    decided_rows,
    ledger,
    plan_and_enter,
    rows_of,
)
from samplemask_nemo_rl.rows import (
    code_column,
    group_by_group,
    prompt_codes,
    scatter_rows,
    select_rows,
)
from samplemask_nemo_rl.session import ATTRIBUTE, Session, announce, is_group_relative, session_of

Function = Callable[..., Any]

_unmeasured: ContextVar[dict[int, torch.Tensor]] = ContextVar("samplemask_unmeasured", default={})  # noqa: B039
"""id of a component column that GDPO is looking at, and which of its rows were measured."""


class Process:
    """The run that this process is in.

    Attributes:
        session: What it was configured to do; None before a run makes its estimator.
        nothing_trains: The policy left no row in the loss of the step at hand.
    """

    session: Session | None = None
    nothing_trains: bool = False


def wrap_create_estimator(original: Function) -> Function:
    """Make the wrapper that reads the policy when a run makes its estimator."""

    def _create_advantage_estimator(master_config: Any) -> Any:
        estimator = original(master_config)
        session = session_of(master_config, estimator)
        setattr(estimator, ATTRIBUTE, session)
        Process.session, Process.nothing_trains = session, False
        ledger.begin()
        announce(session)
        return estimator

    return _create_advantage_estimator


def wrap_compute_advantage(original: Function) -> Function:
    """Make the wrapper of one estimator class's `compute_advantage`."""

    def compute_advantage(
        self: Any, prompt_ids: Any, rewards: Any, mask: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if args and isinstance(args[0], Mapping):
            args, kwargs = args[1:], {**kwargs, "repeated_batch": args[0]}
        codes_B = prompt_codes(prompt_ids)
        decided = _decided(self, codes_B, rewards, kwargs.get("repeated_batch"))
        groups = code_column(codes_B, prompt_ids)
        if decided is None:
            Process.nothing_trains = False
            return _call(original, self, (groups, rewards, mask, *args), kwargs)
        everybody = bool(decided.votes_B.all() and decided.trains_B.all())
        nobody = not _count_trained(mask, decided) and not everybody
        Process.nothing_trains = nobody  # read by the trainer; another thread may have the next batch
        if everybody:
            return _call(original, self, (groups, rewards, mask, *args), kwargs)
        run = _silence if nobody else _on_voters
        return run(original, self, decided, (groups, rewards, mask, *args), kwargs)

    return compute_advantage


def wrap_statistics_of_components(original: Function) -> Function:
    """Make the wrapper of the estimators' group statistics.

    It keeps unmeasured reward components out of their own statistics, and calls in chunks.
    """

    def calculate_baseline_and_std_per_prompt(
        prompts: Any, rewards: Any, valid_mask: Any, *args: Any, **kwargs: Any
    ) -> Any:
        measured_B = _unmeasured.get().get(id(rewards))
        if measured_B is None:
            return group_by_group(original, prompts, rewards, valid_mask, *args, **kwargs)
        rows = measured_B.nonzero().squeeze(1)
        size = len(measured_B)
        chosen = [select_rows(value, rows, size) for value in (prompts, rewards, valid_mask)]
        baseline, std = original(*chosen, *args, **kwargs)
        baseline, std = (scatter_rows(value, rows, ~measured_B) for value in (baseline, std))
        return torch.where(measured_B, baseline, rewards), std

    return calculate_baseline_and_std_per_prompt


def _decided(
    estimator: Any, codes_B: npt.NDArray[np.intp], rewards: Any, batch: Mapping[str, Any] | None
) -> DecidedRows | None:
    """Find the decision of the rows at hand; decide here where nobody did before."""
    handed = decided_rows.get()
    if handed is not None:
        decided_rows.set(None)
        return handed
    if batch is not None and VOTES in batch:
        return rows_of(batch)  # type: ignore[arg-type]
    session = getattr(estimator, ATTRIBUTE, None) or Session(_default_policy(estimator), "default")
    reward_B = _rewards(rewards, batch, len(codes_B))
    verdicts = None if batch is None else read_columns(batch)
    if verdicts is None:
        if session.switched_off or np.isfinite(reward_B).all():
            return None
        verdicts = all_measured(len(reward_B))  # no verdicts here: only rewards that are no numbers count
    verdicts = judged_by_reward(verdicts, reward_B)
    plan = plan_and_enter(verdicts, reward_B, codes_B, session)
    return DecidedRows(plan.votes_B, plan.trains_B)


def _rewards(rewards: Any, batch: Mapping[str, Any] | None, rows: int) -> npt.NDArray[np.float64]:
    """Return the rewards of B rows; GDPO may be given none: NeMo-RL's are the sums of their components."""
    if rewards is not None:
        return decision.as_numbers(rewards)
    components = [decision.as_numbers(column) for column in components_of(batch).values()]
    if not components:
        return np.zeros(rows)
    nothing_measured_B = np.isnan(components).all(axis=0)
    return np.where(nothing_measured_B, np.nan, np.nansum(components, axis=0))


def _default_policy(estimator: Any) -> MaskPolicy:
    return MaskPolicy() if is_group_relative(estimator) else MaskPolicy(min_valid=1)


def _count_trained(mask: torch.Tensor, decided: DecidedRows) -> int:
    """Return how many rows reach the loss, and enter them into the ledger."""
    has_tokens_B = mask.detach().bool().any(dim=1).cpu().numpy()
    trained = int((has_tokens_B & decided.trains_B).sum())
    if not decided.counted:
        ledger.count_trained(trained)
    return trained


def _on_voters(
    original: Function, estimator: Any, decided: DecidedRows, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    size = len(decided.votes_B)
    silent_B = torch.from_numpy(~decided.trains_B)
    rows = torch.from_numpy(np.flatnonzero(decided.votes_B))
    chosen = tuple(select_rows(value, rows, size) for value in args)
    named = {name: select_rows(value, rows, size) for name, value in kwargs.items()}
    return scatter_rows(_call(original, estimator, chosen, named), rows, silent_B)


def _silence(
    original: Function, estimator: Any, decided: DecidedRows, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Return zeros in the form of the estimator's answer: asked on two rows of zeros, which nobody reads."""
    size, rows = len(decided.votes_B), torch.zeros(2, dtype=torch.int64)
    blank = tuple(_blank(select_rows(value, rows, size)) for value in args)
    named = {name: _blank(select_rows(value, rows, size)) for name, value in kwargs.items()}
    answer = original(estimator, *blank, **named)
    return scatter_rows(answer, rows, torch.ones(size, dtype=torch.bool))


def _blank(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch.zeros_like(value)
    if isinstance(value, Mapping):
        blank = {name: _blank(column) for name, column in value.items()}
        return blank if type(value) is dict else type(value)(blank)
    return value


def _call(original: Function, estimator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the host's estimator with unmeasured components (NaN) set aside."""
    batch = kwargs.get("repeated_batch")
    holes = {
        name: column for name, column in components_of(batch).items() if not torch.isfinite(column).all()
    }
    if not holes:
        return original(estimator, *args, **kwargs)
    filled = {name: torch.nan_to_num(column, 0.0, 0.0, 0.0) for name, column in holes.items()}
    measured = {id(filled[name]): torch.isfinite(column) for name, column in holes.items()}
    token = _unmeasured.set(measured)
    try:
        return original(estimator, *args, **{**kwargs, "repeated_batch": {**batch, **filled}})
    finally:
        _unmeasured.reset(token)
