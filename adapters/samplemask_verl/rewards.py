"""What a verl reward function returns. Needs no verl."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from samplemask.failure_kinds import check_kind
from samplemask.verdict import MAX_REASON_LENGTH, read_verdict


def reward_dict(response: Mapping[str, Any] | BaseModel | bytes | str) -> dict[str, Any]:
    """Turn one verify response of NeMo Gym into the dict that a verl reward function returns.

    Args:
        response: The body of `POST /verify`: a mapping, a pydantic model, or JSON.

    Returns:
        `score`, `mask_sample`, `failure_kind`, `failure_reason`: always all four and always of the
        same types, because verl takes its columns from the first sample and its validation fails on
        None. A masked row's score is 0.0, which nothing reads.

    Raises:
        ContractError: The response cannot be read.
    """
    verdict = read_verdict(response)
    return {
        "score": 0.0 if verdict.reward is None else verdict.reward,
        "mask_sample": verdict.mask_sample,
        "failure_kind": verdict.failure_kind or "",
        "failure_reason": verdict.failure_reason or "",
    }


def scored(reward: float) -> dict[str, Any]:
    """Return the reward dict of a rollout whose reward is a measurement.

    Args:
        reward: The reward; one that is None or not finite gives a masked row instead.

    Raises:
        ContractError: `reward` is not a number.
    """
    return reward_dict({"reward": reward})


def masked(kind: str, reason: str = "") -> dict[str, Any]:
    """Return the reward dict of a rollout whose reward is not a measurement.

    Args:
        kind: What went wrong: a name of `samplemask.failure_kinds.FAILURE_KINDS`, or `<server>:<kind>`.
        reason: Free text for people; the first 2,000 characters are kept.
    """
    return {
        "score": 0.0,
        "mask_sample": True,
        "failure_kind": check_kind(kind),
        "failure_reason": reason[:MAX_REASON_LENGTH],
    }
