"""Who trains and who votes in one verl batch: sessions, padding, and then the shared policy. numpy only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from samplemask.accounting import StepCounts
from samplemask.failure_kinds import REWARD_NOT_FINITE, warn_once, without_pardon
from samplemask.groups import group_codes
from samplemask.live import RunCounts
from samplemask.policy import MaskPolicy, RowPlan, plan_rows
from samplemask_verl.verdicts import RowVerdicts

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Rows:
    """The rows of one batch, in its order.

    Attributes:
        group_B: Group ids (verl's uid).
        reward_B: float (B,), token scores summed.
        session_B: Session ids; rows of one session share one verdict and one vote. None: a row a session.
        order_B: int (B,), position of the row within its session; the last one stands for the session.
        padding_B: bool (B,), rows that verl added to fill the batch. None: there are none.
    """

    group_B: npt.NDArray[Any]
    reward_B: npt.NDArray[np.floating[Any]]
    session_B: Sequence[str] | None = None
    order_B: npt.NDArray[np.intp] | None = None
    padding_B: BoolArray | None = None


@dataclass(frozen=True)
class Sessions:
    """The rollouts of a batch, S of them, without padding; what their verdicts say before any policy.

    Attributes:
        group_S: Group ids.
        reward_S: float (S,).
        masked_S: bool (S,).
        failed_S: bool (S,), those of the masked ones that are recorded failures.
        kinds_S: Failure kinds, None where there is none.
    """

    group_S: npt.NDArray[Any]
    reward_S: npt.NDArray[np.float64]
    masked_S: BoolArray
    failed_S: BoolArray
    kinds_S: list[str | None]

    def counts(self, chosen: Sequence[int] | None = None) -> RunCounts:
        """Count them, or those at `chosen` positions, for the run's account."""
        if chosen is None:
            return RunCounts.of(self.masked_S, self.reward_S, self.kinds_S, self.failed_S)
        kinds = [self.kinds_S[session] for session in chosen]
        return RunCounts.of(self.masked_S[chosen], self.reward_S[chosen], kinds, self.failed_S[chosen])


@dataclass(frozen=True)
class Decision:
    """The plan for the rows, and the counts of the step.

    Attributes:
        plan: Row plan of shape (B,). Padding rows neither train nor vote and are not masked.
        counts: In sessions, without padding; `trained` in rows.
        sessions: What was counted.
    """

    plan: RowPlan
    counts: StepCounts
    sessions: Sessions

    @property
    def metrics(self) -> dict[str, float]:
        """`mask_sample/*`; empty for a healthy step."""
        return self.counts.metrics()


def decide(rows: Rows, verdicts: RowVerdicts, policy: MaskPolicy) -> Decision:
    """Apply the policy to a batch.

    Args:
        rows: The batch's rows.
        verdicts: Their verdicts.
        policy: The policy, with `min_valid` fitted to the estimator.

    Raises:
        OutageError: The batch is an outage and the policy says to raise.
    """
    reward_B = np.asarray(rows.reward_B, dtype=np.float64)
    group_B = np.asarray(rows.group_B)
    if rows.session_B is None and rows.padding_B is None:
        said = Sessions(group_B, reward_B, verdicts.masked_B, verdicts.failed_B, verdicts.kinds_B)
        return _decide_sessions(said, policy)
    real = np.flatnonzero(~rows.padding_B) if rows.padding_B is not None else np.arange(len(reward_B))
    if rows.order_B is not None:
        real = real[np.argsort(rows.order_B[real], kind="stable")]
    codes, final = _sessions(rows, real)
    masked_S, failed_S = np.zeros((2, len(final)), dtype=bool)
    masked_S[codes[verdicts.masked_B[real]]] = True
    failed_S[codes[verdicts.failed_B[real]]] = True
    kinds_S = _session_kinds(verdicts, real, codes, final, policy)
    said = Sessions(group_B[final], reward_B[final], masked_S, failed_S, kinds_S)
    decision = _decide_sessions(said, policy)
    columns = {}
    for name in ("trains_B", "votes_B", "masked_B"):
        columns[name] = np.zeros(len(reward_B), dtype=bool)
        columns[name][real] = getattr(decision.plan, name)[codes]
    counts = replace(decision.counts, trained=int(columns["trains_B"].sum()))
    return replace(decision, plan=replace(decision.plan, **columns), counts=counts)


def _decide_sessions(said: Sessions, policy: MaskPolicy) -> Decision:
    measured_S = np.isfinite(said.reward_S)
    kinds_S = without_pardon(said.kinds_S, measured_S, policy.scored_kinds, REWARD_NOT_FINITE)
    judged = policy.scored_kinds or policy.masked_kinds or policy.max_masked_fraction is not None
    plan = plan_rows(said.masked_S, said.group_S, policy, kinds_S if judged else None)
    if plan.thin_groups:
        _warn_of_singletons(said.group_S)
    counts = StepCounts.of(plan, said.reward_S, kinds_S)
    if policy.action != "ignore" and not measured_S.all():
        # loss_multiplier lets masked rows vote; a row without a number has none to give.
        plan.votes_B[:] &= measured_S
    return Decision(plan, counts, said)


def with_signal(decision: Decision, tokens_B: npt.NDArray[Any]) -> Decision:
    """Return the decision, or one in which nobody trains when the voting rows cannot be estimated.

    Args:
        decision: The decision.
        tokens_B: int (B,), response tokens of each row; with fewer than two, verl's whitening raises.
    """
    plan = decision.plan
    if not plan.votes_B.any() or tokens_B[plan.votes_B].sum() >= 2:
        return decision
    nobody = np.zeros_like(plan.votes_B)
    counts = replace(decision.counts, trained=0)
    return replace(decision, plan=replace(plan, trains_B=nobody, votes_B=nobody), counts=counts)


def _warn_of_singletons(group_S: npt.NDArray[Any]) -> None:
    """Say once that most groups hold one rollout: most likely they are grouped by the wrong id."""
    codes, count = group_codes(group_S, len(group_S))
    lone = int((np.bincount(codes, minlength=count) == 1).sum())
    if 2 * lone > count:
        warn_once(
            "verl:singletons",
            "%d of %d groups hold a single rollout, so they have no group statistics and none of them trains "
            "(min_valid). Check what sets uid and rollout.n; algorithm.mask_sample.min_valid=1 keeps verl's "
            "own rule for such groups. Said once.",
            lone,
            count,
        )


def _sessions(rows: Rows, real: npt.NDArray[np.intp]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Return each real row's session code, and the last row of each session."""
    if rows.session_B is None:
        return np.arange(len(real)), real
    codes, count = group_codes([rows.session_B[row] for row in real], len(real))
    final = np.zeros(count, dtype=np.intp)
    final[codes] = real  # numpy keeps the last assignment
    return codes, final


def _session_kinds(
    verdicts: RowVerdicts,
    real: npt.NDArray[np.intp],
    codes: npt.NDArray[np.intp],
    final: npt.NDArray[np.intp],
    policy: MaskPolicy,
) -> list[str | None]:
    """Return the kind that decides each session.

    That of its last flagged row whose kind is not scored, else of its last flagged row, else of its
    final row: one row that is scored although masked must not pardon another.
    """
    kinds: list[str | None] = [verdicts.kinds_B[row] for row in final]
    if len(final) == len(real):
        return kinds
    weights = [3 if kind in policy.masked_kinds else 0 for kind in kinds]
    for row, session in zip(real, codes, strict=True):
        weight = _weight(verdicts.kinds_B[row], policy) if verdicts.masked_B[row] else 0
        if weight and weight >= weights[session]:
            weights[session], kinds[session] = weight, verdicts.kinds_B[row]
    return kinds


def _weight(kind: str | None, policy: MaskPolicy) -> int:
    """Rank the kind of a flagged row: one that stays scored comes last, no kind before it."""
    return 1 if kind in policy.scored_kinds else 3 if kind else 2
