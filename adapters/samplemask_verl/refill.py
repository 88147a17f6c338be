"""Groups that will not train are evicted and replaced through verl's own refill, within a bound (V1 only).

verl's replay buffer already replaces failed groups; groups that the policy drops, or that are too thin,
join them. Its group filter (`algorithm.filter_groups`) judges a group by the rows that vote.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from samplemask.accounting import PREFIX
from samplemask.errors import ContractError, RefillError
from samplemask.live import RunCounts
from samplemask_verl.config import WHERE, VerlPolicy, acts, policy_of

logger = logging.getLogger("samplemask")

Wrapper = Callable[..., Any]
_TRAIN = "train"


@dataclass
class GroupVerdict:
    """What is known of one finished group.

    Attributes:
        votes: Whether any of its rows votes; a group without votes cannot train.
        rows: Its sessions.
        masked: Masked sessions.
        kinds: Masked sessions per failure kind.
        silent_keys: Keys of the rows that do not vote.
        rollouts: Its sessions, for the run's account.
    """

    votes: bool
    rows: int
    masked: int
    kinds: dict[str, int]
    silent_keys: set[str]
    rollouts: RunCounts


Judge = Callable[[dict[str, dict[str, Any]]], dict[str, GroupVerdict]]


@dataclass
class Refill:
    """Lives on verl's replay buffer: the verdicts of its finished groups, and the bound of a step.

    Attributes:
        policy: The policy.
        judge: Judges the groups of rows, given as their tags by key.
        verdicts: Known groups by uid.
        evicted: Groups that were evicted since the step began.
    """

    policy: VerlPolicy
    judge: Judge
    verdicts: dict[str, GroupVerdict] = field(default_factory=dict)
    evicted: dict[str, GroupVerdict] = field(default_factory=dict)

    def read(self, buffer: Any, uids: set[str]) -> dict[str, GroupVerdict]:
        """Return the verdicts of finished groups, judging those that are new."""
        for gone in self.verdicts.keys() - uids:
            del self.verdicts[gone]
        new = uids - self.verdicts.keys()
        rows = {key: tag for key, tag in buffer.partitions[_TRAIN].items() if _uid(key) in new}
        if rows:
            self.verdicts.update(self.judge(rows))
        return self.verdicts

    def evict(self, uids: set[str], step: int) -> None:
        """Take note of groups that are about to be evicted.

        Raises:
            RefillError: More than `max_refills` groups of this step.
        """
        self.evicted.update({uid: self.verdicts[uid] for uid in uids})
        if len(self.evicted) > self.policy.max_refills:
            rows, masked, kinds = self._totals()
            raise RefillError(masked, rows, kinds, len(self.evicted), self.policy.max_refills, step)

    @property
    def rollouts(self) -> RunCounts:
        """The rollouts of the evicted groups."""
        return sum((group.rollouts for group in self.evicted.values()), RunCounts())

    def take_metrics(self) -> dict[str, float]:
        """Return the metrics of the evicted groups and begin a new step."""
        if not self.evicted:
            return {}
        rows, masked, kinds = self._totals()
        metrics = {"groups": float(len(self.evicted)), "rows": float(rows), "masked_rows": float(masked)}
        metrics.update({f"kind/{kind}": float(count) for kind, count in kinds.items()})
        self.evicted = {}
        return {f"{PREFIX}refilled/{name}": value for name, value in metrics.items()}

    def _totals(self) -> tuple[int, int, dict[str, int]]:
        groups = self.evicted.values()
        kinds: Counter[str] = Counter()
        for group in groups:
            kinds.update(group.kinds)
        return sum(group.rows for group in groups), sum(group.masked for group in groups), dict(kinds)


def wrap_build_replay_buffer(
    make_judge: Callable[[Any, VerlPolicy], Judge],
) -> Callable[[Wrapper], Wrapper]:
    """Return the maker of the wrapper that gives verl's replay buffer the policy.

    Args:
        make_judge: Takes the trainer and the policy; see `Refill.judge`.
    """

    def make(original: Wrapper) -> Wrapper:
        def _build_replay_buffer(self: Any) -> Any:
            policy = policy_of(self.config.algorithm)
            if policy.max_refills:
                _check_refill(self.config)
            buffer = original(self)
            if acts(policy) and policy.action != "ignore":
                buffer.samplemask_refill = Refill(policy, make_judge(self, policy))
            return buffer

        return _build_replay_buffer

    return make


def wrap_eviction_reasons(original: Wrapper) -> Wrapper:
    """Add the groups that will not train to those that verl evicts and refills as failed."""

    def _terminal_eviction_reasons(self: Any, global_steps: int, partition_id: str) -> Any:
        stale, filtered, failed, counts = original(self, global_steps, partition_id)
        refill = vars(self).get("samplemask_refill")
        if refill is None or not refill.policy.max_refills or partition_id != _TRAIN:
            return stale, filtered, failed, counts
        finished = self.finished_keys[partition_id] | self.failure_keys[partition_id]
        verdicts = refill.read(self, finished)
        silent = {uid for uid, group in verdicts.items() if not group.votes}
        refill.evict(silent - stale - filtered - failed, global_steps)
        return stale, filtered, failed | silent, counts

    return _terminal_eviction_reasons


def wrap_group_filter(original: Wrapper) -> Wrapper:
    """Let verl's group filter see only the rows that vote; a group without any is not its business."""

    def _dapo_filtered_keys(self: Any, partition_id: str) -> Any:
        refill = vars(self).get("samplemask_refill")
        if refill is None or partition_id != _TRAIN or self.filter_groups_metric is None:
            return original(self, partition_id)
        verdicts = refill.read(self, self.finished_keys[partition_id] | self.failure_keys[partition_id])
        voting = {uid: group for uid, group in verdicts.items() if group.votes}
        hidden = {key for group in voting.values() for key in group.silent_keys}
        partition, finished = self.partitions[partition_id], self.finished_keys[partition_id]
        self.partitions[partition_id] = {key: tag for key, tag in partition.items() if key not in hidden}
        self.finished_keys[partition_id] = finished - (verdicts.keys() - voting.keys())
        try:
            return original(self, partition_id)
        finally:
            self.partitions[partition_id], self.finished_keys[partition_id] = partition, finished

    return _dapo_filtered_keys


def judge_groups(keys: list[str], decision: Any, kinds_B: list[str | None]) -> dict[str, GroupVerdict]:
    """Sum a decision up per group.

    Args:
        keys: Row keys `{uid}_{session}_{index}`.
        decision: Their decision.
        kinds_B: Failure kinds of the rows.
    """
    rows_of, sessions_of = _positions(map(_uid, keys)), _positions(decision.sessions.group_S)
    plan, verdicts = decision.plan, {}
    for uid, rows in rows_of.items():
        sessions = {keys[row].rpartition("_")[0]: kinds_B[row] for row in rows}
        masked = {keys[row].rpartition("_")[0] for row in rows if plan.masked_B[row]}
        verdicts[uid] = GroupVerdict(
            votes=bool(plan.votes_B[rows].any()),
            rows=len(sessions),
            masked=len(masked),
            kinds=dict(Counter(sessions[session] or "samplemask:unspecified" for session in masked)),
            silent_keys={keys[row] for row in np.array(rows)[~plan.votes_B[rows]]},
            rollouts=decision.sessions.counts(sessions_of.get(uid, [])),
        )
    return verdicts


def _positions(uids: Iterable[str]) -> dict[str, list[int]]:
    """Return the positions of each uid."""
    positions: dict[str, list[int]] = {}
    for position, uid in enumerate(uids):
        positions.setdefault(uid, []).append(position)
    return positions


def _check_refill(config: Any) -> None:
    """Refuse what cannot work; make verl fetch single prompts, as it does for its own refill."""
    reward_model = config.reward.reward_model
    if reward_model.enable and not reward_model.enable_resource_pool:
        raise ContractError.of(
            f"{WHERE}.max_refills", "0 with a colocated reward model", "rewards after sampling",
            "Groups are judged before they are sampled: set reward.reward_model.enable_resource_pool=True.",
        )  # fmt: skip
    if config.data.get("gen_batch_size", None) != 1:
        from omegaconf import open_dict

        logger.info("samplemask: data.gen_batch_size set to 1, so that single groups can be refilled")
        with open_dict(config):
            config.data.gen_batch_size = 1


def _uid(key: str) -> str:
    return key.split("_")[0]
