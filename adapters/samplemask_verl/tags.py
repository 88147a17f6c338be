"""The verdict and the reward of a row in its TransferQueue tag, where verl's V1 trainer has them for nothing.

A tag comes with the row's key; fields have to be fetched. The tag is written when the row is, from the
fields themselves (`stage_queue.tagged`), and the fields stay what counts: a row whose fields cannot be
told in a tag gets None there, and the trainer reads them. numpy only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from samplemask.errors import ContractError
from samplemask.failure_kinds import check_kind
from samplemask_verl.verdicts import Place, RowVerdicts, read_flags

TAG = "samplemask"
"""Key of a tag: the reward alone where a verdict calls it measured and names no kind; else a list of
reward, stated, masked, failed, kind; None: the trainer has to read the row's fields."""

COLUMNS = "samplemask_columns"
"""Key of a tag: the verdict fields that a reward model wrote after the rollout. In this process only."""


def places_of(extra_fields: Sequence[Mapping[str, Any]]) -> list[Place]:
    """Return where V1's field `extra_fields` of B rows may hold verdicts, most trusted first."""
    return [[fields.get("reward_extra_info") for fields in extra_fields], extra_fields]


def tag_of(extra_fields: Mapping[str, Any], reward: float) -> float | list[Any] | None:
    """Return what the tag of one row says of it.

    Args:
        extra_fields: The row's field of that name.
        reward: Its token scores summed.
    """
    try:
        said = read_flags(places_of([extra_fields]), 1, every_kind=True)
    except ContractError:  # said by the trainer, which reads the field again: a rollout must not fail of it
        return None
    if not math.isfinite(reward):  # decides by itself, and a reward model may yet write another
        return None
    masked, failed, (kind,) = bool(said.masked_B[0]), bool(said.failed_B[0]), said.kinds_B
    if said.stated and not masked and kind is None:
        return reward
    return [reward, said.stated, masked, failed, kind]


def verdicts_of(tags: Sequence[Any]) -> tuple[RowVerdicts, npt.NDArray[np.float64]] | None:
    """Read what `tag_of` wrote for B rows: their verdicts and rewards; None when it is not there for each."""
    said: list[Any] = [[tag, True, False, False, None] if type(tag) is float else tag for tag in tags]
    if not said or not all(isinstance(tag, (list, tuple)) and len(tag) == 5 for tag in said):
        return None
    rewards, stated, masked, failed, kinds = ([tag[place] for tag in said] for place in range(5))
    for kind in {*kinds} - {None}:
        check_kind(kind)  # an unknown one was reported where the rollout ran; people look here
    return RowVerdicts(np.array(masked), kinds, any(stated), np.array(failed)), np.array(rewards)


def split_key(key: str) -> tuple[str, int] | None:
    """Split verl's row key `{uid}_{session}_{index}` into session and index; None for another form."""
    session, _, index = key.rpartition("_")
    return (session, int(index)) if index.isdecimal() and "_" in session else None


def uid_of(key: str) -> str | None:
    """Return the uid in verl's row key; None for a key of another form."""
    named = split_key(key)
    return None if named is None else named[0].rpartition("_")[0]
