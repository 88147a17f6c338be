"""The recorded rollouts as one training batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from samplemask.errors import ContractError
from samplemask.rollouts import Lines, find_runs
from samplemask.rows import ROLLOUT_INDEX, TASK_INDEX, decode
from samplemask.testing.batches import GrpoBatch
from samplemask.verdict import read_verdict

NAME: Final = "lost_sessions.jsonl"


def recording() -> Path:
    """Return the recorded run: packaged with the wheel, in examples/ of a checkout.

    Raises:
        ContractError: It is in neither place.
    """
    here = Path(__file__).resolve().parent
    places = [here / "data" / NAME, here.parents[2] / "examples" / NAME]
    for place in places:
        if place.is_file():
            return place
    raise ContractError.of(
        "samplemask demo", f"the recording at {places[0]}", "no file", "Install a complete samplemask wheel."
    )


def read_batch(path: Path) -> GrpoBatch:
    """Read the rows that a trainer would get, by task: scored, masked and failed ones.

    A lost rollout has the reward 0, which is what a trainer that reads rewards alone gets.
    """
    (run,) = find_runs([path])
    responses = [decode(line) for role, file in run if role != "inputs" for line in Lines(file)]
    responses.sort(key=lambda row: (row[TASK_INDEX], row[ROLLOUT_INDEX]))
    verdicts = [read_verdict(response) for response in responses]
    rewards: list[Any] = [0.0 if verdict.mask_sample else verdict.reward for verdict in verdicts]
    return GrpoBatch.of(
        rewards,
        masked=[verdict.mask_sample for verdict in verdicts],
        groups=[response[TASK_INDEX] for response in responses],
        kinds=[verdict.failure_kind for verdict in verdicts],
    )
