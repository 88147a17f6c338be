"""The shared vocabulary of failure kinds.

The names are those of NeMo Gym 0.7.0 (`nemo_gym/failure_kinds.py`); `integration/gym` holds the
two equal. A kind says what went wrong and nothing else: it never decides whether a row is masked.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

logger = logging.getLogger("samplemask")

FAILURE_KINDS: Final = frozenset(
    {
        "agent_command_not_allowed",
        "agent_request_failed",
        "agent_run_error",
        "agent_timeout",
        "cancelled",
        "cohort_incomplete",
        "judge_failed",
        "judge_unparseable",
        "kill_shaped",
        "persistence_failed",
        "provider_oom_killed",
        "provider_quota_exhausted",
        "provider_unavailable",
        "session_expired",
        "session_lost",
        "session_release_failed",
        "shutdown",
        "transport_local_resource",
        "transport_peer_drop",
        "transport_timeout",
        "transport_unreachable",
        "verifier_error",
    }
)

REWARD_MISSING: Final = "samplemask:reward_missing"
REWARD_NOT_FINITE: Final = "samplemask:reward_not_finite"

UNSPECIFIED: Final = "samplemask:unspecified"
"""Counts masked rows whose environment named no kind."""

MAX_KIND_LENGTH: Final = 200
"""Longest kind that is kept, in characters: kinds become metric names."""

_NAMESPACED = re.compile(r"[a-z][a-z0-9_]*:[a-z][a-z0-9_]*")
_reported: set[str] = set()
_reported_lock = threading.Lock()
_MAX_REPORTED = 1000


def is_registered(kind: str) -> bool:
    """Tell whether `kind` belongs to the shared vocabulary."""
    return kind in FAILURE_KINDS


def is_namespaced(kind: str) -> bool:
    """Tell whether `kind` has the form `<server>:<kind>`, an environment's own extension."""
    return _NAMESPACED.fullmatch(kind) is not None


def without_pardon(
    kinds_B: list[str | None], measured_B: npt.NDArray[np.bool_], scored_kinds: Collection[str], reason: str
) -> list[str | None]:
    """Return the kinds with `reason` in place of one that would score a row without a reward.

    Args:
        kinds_B: B failure kinds, None where there is none.
        measured_B: bool (B,), the row has a reward.
        scored_kinds: The policy's kinds that stay scored.
        reason: The kind of a row that has no reward.
    """
    if not scored_kinds:
        return kinds_B
    kinds = kinds_B.copy()
    for row in (~measured_B).nonzero()[0].tolist():
        if kinds[row] in scored_kinds:
            kinds[row] = reason
    return kinds


def check_kind(kind: str) -> str:
    """Return `kind` unchanged; log one warning per name that is neither registered nor namespaced.

    It never fails: an unknown name that is visible is better than a lost failure.
    """
    if kind in FAILURE_KINDS or kind in _reported or is_namespaced(kind):
        return kind
    warn_once(
        kind,
        "unknown failure_kind %r: kept and counted as it is. Use a name of NeMo Gym's vocabulary "
        "or the form '<server>:<kind>'. Said once per name.",
        kind,
    )
    return kind


def warn_once(topic: str, message: str, *args: object) -> None:
    """Log `message` at WARNING the first time that `topic` comes up in this process.

    The memory of topics is bounded: names come from environments and may be random.
    """
    with _reported_lock:
        if topic in _reported or len(_reported) >= _MAX_REPORTED:
            return
        _reported.add(topic)
    logger.warning(message, *args)
