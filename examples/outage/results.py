"""What the experiment found, as plain numbers: kept in one file, so that figures can be drawn again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from outage.arms import ARMS, CEILING, SCORED, Arm
from outage.failures import Environment
from outage.score import divergence
from outage.training import PROMPTS, Run, train

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Result:
    """One arm in one environment: T steps, S seeds.

    Attributes:
        reward: True reward after each step, (T, S): the share answered right when nothing fails.
        tool: Share of rollouts that use the tool, (T, S).
        wait: Share of rollouts that wait for the timeout, (T, S).
        distance: KL(ceiling || this arm) of a whole rollout in nats, (T, S).
        lost: Steps in which nothing trained, (S,).
        extra: Groups sampled in place of others, per group of the batches, (S,).
    """

    reward: Floats
    tool: Floats
    wait: Floats
    distance: Floats
    lost: Floats
    extra: Floats


Results = dict[tuple[str, str], Result]


def arms_for(environment: Environment) -> list[Arm]:
    """Return the arms that can differ: without forgiven timeouts, scoring them changes nothing."""
    return [arm for arm in ARMS if arm is not SCORED or environment.forgives_timeouts]


def measure(
    environments: Sequence[Environment], seeds: range, steps: int, say: Callable[[str], object]
) -> Results:
    """Run every arm in every environment."""
    results: Results = {}
    ceilings: dict[float, Run] = {}
    for environment in environments:
        for arm in arms_for(environment):
            if arm is CEILING and environment.credit in ceilings:
                run = ceilings[environment.credit]
            else:
                run = train(arm, environment, seeds, steps)
            if arm is CEILING:
                ceilings[environment.credit] = run
            result = summed_up(run, ceilings[environment.credit])
            results[environment.name, arm.name] = result
            say(f"{environment.name:<24} {arm.name:<24} {result.reward[-1].mean():.3f}")
    return results


def summed_up(run: Run, ceiling: Run) -> Result:
    """Reduce a run to numbers, its distance measured from the ceiling's run after the same step."""
    pairs = zip(ceiling.scores, run.scores, strict=True)
    return Result(
        _stacked([score.reward_S for score in run.scores]),
        _stacked([score.tool_S for score in run.scores]),
        _stacked([score.wait_S for score in run.scores]),
        _stacked([divergence(best, score) for best, score in pairs]),
        run.lost_S,
        run.refilled_S / (PROMPTS * len(run.scores)),
    )


def save(results: Results, path: Path) -> None:
    """Write results to an npz file."""
    arrays = {
        f"{environment}/{arm}/{field.name}": getattr(result, field.name)
        for (environment, arm), result in results.items()
        for field in fields(Result)
    }
    np.savez_compressed(path, **arrays)


def load(path: Path) -> Results:
    """Read results that `save` wrote."""
    with np.load(path) as arrays:
        keys = dict.fromkeys(tuple(name.split("/")[:2]) for name in arrays)
        return {
            (environment, arm): Result(
                *(arrays[f"{environment}/{arm}/{field.name}"] for field in fields(Result))
            )
            for environment, arm in keys
        }


def band(values: Floats, draws: int = 2000) -> tuple[Floats, Floats, Floats]:
    """Return the mean over the last axis (seeds) and its 95 % band, by bootstrap over the seeds."""
    seeds = values.shape[-1]
    chosen = np.random.default_rng(0).integers(seeds, size=(draws, seeds))
    means = values[..., chosen].mean(-1)
    low, high = np.quantile(means, [0.025, 0.975], axis=-1)
    return values.mean(-1), low, high


def _stacked(parts: list[torch.Tensor]) -> Floats:
    return torch.stack(parts).double().numpy()
