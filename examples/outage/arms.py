"""The arms: what training does with failed rollouts. Each is a policy of samplemask, as a user writes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from outage.failures import TIMEOUT


@dataclass(frozen=True)
class Arm:
    """One way to train.

    Attributes:
        name: For readers.
        mask_sample: verl's `algorithm.mask_sample`.
        fails: False: nothing ever fails, the ceiling.
        refills: Prompt groups of a step that may be replaced because they would not train.
    """

    name: str
    mask_sample: Mapping[str, Any] = field(default_factory=dict)
    fails: bool = True
    refills: int = 0


CEILING = Arm("no failures", {"action": "ignore"}, fails=False)
ZEROS = Arm("zeros", {"action": "ignore"})
MULTIPLIER = Arm("loss_multiplier", {"action": "loss_multiplier"})
EXCLUDE = Arm("exclude", {"action": "exclude"})
REFILL = Arm("drop_group, refill", {"action": "drop_group"}, refills=80)
SCORED = Arm("exclude, timeout scored", {"action": "exclude", "scored_kinds": [TIMEOUT]})
OUTAGE = Arm(
    "exclude, outage skipped",
    {"action": "exclude", "max_masked_fraction": 0.5, "on_outage": "skip_step"},
)
ARMS = (CEILING, ZEROS, MULTIPLIER, EXCLUDE, REFILL, SCORED, OUTAGE)
