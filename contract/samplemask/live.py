"""The audit's own accounting, step by step, for a trainer that is still running."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from samplemask.accounting import PREFIX, Disposition
from samplemask.ledger import Ledger
from samplemask.quality import Counting, Summary, summarize
from samplemask.rows import Index, RolloutRow
from samplemask.verdict import Verdict


class RunAccount:
    """Counts every rollout of a run once, from the start; its numbers are those of the audit of its files.

    One rollout takes 60 bytes. A rollout that is recorded again (a retry, a resumed run) is settled as
    the audit settles it.
    """

    def __init__(self) -> None:
        self.ledger = Ledger()

    def record(
        self,
        verdict: Verdict,
        *,
        task: Index = None,
        rollout: Index = None,
        attempt: int | None = None,
        agent: str | None = None,
        error: str | None = None,
    ) -> None:
        """Record one rollout that came back.

        Args:
            verdict: Its reading.
            task: `_ng_task_index`. Rollouts without task and rollout are each counted for themselves.
            rollout: `_ng_rollout_index`.
            attempt: `_ng_attempt_index`.
            agent: The agent's name.
            error: What the environment said instead of a reward, if it did.
        """
        row = RolloutRow(Disposition.of(verdict, {"error": error}), verdict)
        row.task, row.rollout, row.attempt = task, rollout, attempt
        row.agent = agent or row.agent
        self.ledger.add(row)

    def record_step(self, verdicts: Sequence[Verdict], agents: Sequence[str | None] | None = None) -> None:
        """Record the rollouts of one step."""
        for number, verdict in enumerate(verdicts):
            self.record(verdict, agent=agents[number] if agents is not None else None)

    def expect(self, rollouts: int, *, omitted: int = 0) -> None:
        """State how many rollouts there should be by now, and how many of them are known not to have run."""
        self.ledger.declare(expected=rollouts, omitted=omitted)

    def summary(self) -> Summary:
        """Return the numbers so far."""
        return summarize(self.ledger.resolve().rollouts, self.ledger, Counting())

    def metrics(self) -> dict[str, float]:
        """Return the run's metrics so far, under `mask_sample/run/`; none of what was not measured."""
        summary = self.summary()
        values: dict[str, Any] = {name.value: getattr(summary.coverage, name.value) for name in Disposition}
        values["reward"] = summary.reward["all"]
        values["reward_unmasked"] = summary.reward["unmasked"]
        values.update({f"kind/{kind}": count for kind, count in summary.kinds.items()})
        return {f"{PREFIX}run/{name}": float(value) for name, value in values.items() if value is not None}
