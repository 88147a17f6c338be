"""Environments that fail. Each says which rollouts are no measurement, and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

SESSION_LOST, TIMEOUT = "session_lost", "agent_timeout"
STORM = range(61, 81)
"""Steps of the storm, counted from 1, and its share of lost rollouts: as in the public run."""
STORM_SHARE = 0.916
TOOL_LOSES, WINNING_LOSES, EXIT_LOSES = 0.6, 0.9, 0.2


@dataclass(frozen=True)
class Rollouts:
    """What rollouts of shape (S, P, n) did.

    Attributes:
        tool: Used the tool.
        right: Answered right: the true reward.
        waits: Waited for the timeout.
        luck: Uniform random numbers for the environment.
    """

    tool: torch.Tensor
    right: torch.Tensor
    waits: torch.Tensor
    luck: torch.Tensor


Lost = Callable[[Rollouts, int], torch.Tensor]


@dataclass(frozen=True)
class Environment:
    """An environment.

    Attributes:
        name: Short name.
        title: What fails, for readers.
        lost: Takes rollouts and the step, tells which sessions are lost.
        forgives_timeouts: A timeout is masked too; elsewhere it is a measured zero.
        credit: Reward of a wrong answer, 0 to 1; a right one earns 1 and waiting 0.
    """

    name: str
    title: str
    lost: Lost
    forgives_timeouts: bool = False
    credit: float = 0.0


def at_random(share: float, credit: float) -> Environment:
    """Any rollout is lost with this chance."""
    name = f"random_{round(100 * share):02d}_credit_{credit:g}"
    title = f"{share:.0%} are lost at random; a wrong answer earns {credit:g}"
    return Environment(name, title, lambda done, step: done.luck < share, credit=credit)


def storm(credit: float) -> Environment:
    """Most rollouts are lost for some steps, none before and after."""
    steps = f"steps {STORM[0]} to {STORM[-1]}"
    return Environment(
        f"storm_credit_{credit:g}",
        f"{STORM_SHARE:.1%} are lost in {steps}; a wrong answer earns {credit:g}",
        lambda done, step: (done.luck < STORM_SHARE) & (step in STORM),
        credit=credit,
    )


HEALTHY = Environment("healthy", "nothing fails", lambda done, step: torch.zeros_like(done.tool))
SHARES = (0.05, 0.2, 0.4, 0.6)
CREDITS = (0.0, 0.5)
RANDOM = {credit: tuple(at_random(share, credit) for share in SHARES) for credit in CREDITS}
TOOL_STORM = Environment(
    "storm_of_the_tool",
    f"{STORM_SHARE:.1%} of the rollouts that use the tool are lost in steps {STORM[0]} to {STORM[-1]}",
    lambda done, step: done.tool & (done.luck < STORM_SHARE) & (step in STORM),
)
STORMS = (storm(0.0), storm(0.5), TOOL_STORM)
BEHAVIOUR = Environment(
    "behaviour",
    f"using the tool loses the session with chance {TOOL_LOSES:g}, whatever comes of it",
    lambda done, step: done.tool & (done.luck < TOOL_LOSES),
)
SELECTION = Environment(
    "selection",
    f"winning with the tool loses the session with chance {WINNING_LOSES:g}; losing never does",
    lambda done, step: done.tool & done.right & (done.luck < WINNING_LOSES),
)
EXIT = Environment(
    "exit",
    f"{EXIT_LOSES:.0%} are lost at random, and a timeout, which the policy can cause, is masked too",
    lambda done, step: done.luck < EXIT_LOSES,
    forgives_timeouts=True,
)
ENVIRONMENTS = (*STORMS, BEHAVIOUR, SELECTION, EXIT, *RANDOM[0.0], *RANDOM[0.5])
