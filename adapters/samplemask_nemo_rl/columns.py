"""The verdicts of a batch as tensor columns, so that they survive everything that NeMo-RL does to batches.

NeMo-RL slices, concatenates, pads and sends its batches as tensors; strings do not survive its data
plane. A row's verdict is therefore the host's own column `mask_sample` and one row of bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from samplemask.accounting import Disposition
from samplemask.failure_kinds import MAX_KIND_LENGTH, REWARD_NOT_FINITE
from samplemask.verdict import read_flag, read_verdict
from samplemask_nemo_rl.placeholders import MARK

MASKED = "mask_sample"
"""NeMo-RL's own column: bool (B,), True where the environment masked the row."""

DETAILS = "samplemask_details"
"""uint8 (B, 1 + 200): bits of the row (measured, stated, failed), then its failure kind in UTF-8."""

VOTES = "samplemask_votes"
"""bool (B,), present once a batch was decided: the row enters its group's statistics."""

COMPONENT = "reward/"
"""Prefix of NeMo-RL's own columns of reward components: float (B,), NaN where one was not measured."""

_MEASURED, _STATED, _FAILED = 1, 2, 4
_FLAGS = ("mask_sample", "instance_config", "_ng_failure_class")


@dataclass(frozen=True)
class RowVerdicts:
    """The verdicts of B rows.

    Attributes:
        masked_B: bool (B,).
        measured_B: bool (B,), False where there is no finite reward, or no rollout (a placeholder).
        stated_B: bool (B,), False where the response carried no verdict field at all.
        kinds_B: Failure kind of each row, or None.
        failed_B: bool (B,), masked rows that are recorded failures and not rollouts that ran to their end.
    """

    masked_B: npt.NDArray[np.bool_]
    measured_B: npt.NDArray[np.bool_]
    stated_B: npt.NDArray[np.bool_]
    kinds_B: list[str | None]
    failed_B: npt.NDArray[np.bool_]


def read_results(full_results: Sequence[Mapping[str, Any]]) -> RowVerdicts:
    """Read the verify responses of one batch.

    Raises:
        ContractError: A field cannot be read.
    """
    verdicts = [read_verdict(result) for result in full_results]
    placeholders_B = np.array([MARK in result for result in full_results], dtype=bool)
    return RowVerdicts(
        np.array([verdict.mask_sample for verdict in verdicts], dtype=bool),
        np.array([verdict.reward is not None for verdict in verdicts], dtype=bool) & ~placeholders_B,
        np.array([any(name in result for name in _FLAGS) for result in full_results], dtype=bool),
        [verdict.failure_kind for verdict in verdicts],
        np.array(
            [
                Disposition.of(verdict, result) is Disposition.FAILED
                for verdict, result in zip(verdicts, full_results, strict=True)
            ],
            dtype=bool,
        ),
    )


def all_measured(rows: int) -> RowVerdicts:
    """Return the verdicts of rows of which nobody said anything but their rewards."""
    everywhere = np.ones(rows, dtype=bool)
    return RowVerdicts(~everywhere, everywhere, everywhere, [None] * rows, ~everywhere)


def judged_by_reward(verdicts: RowVerdicts, reward_B: npt.NDArray[np.floating[Any]]) -> RowVerdicts:
    """Mask every row whose reward is not finite, whatever its flags say."""
    finite_B = np.isfinite(reward_B)
    if finite_B.all():
        return verdicts
    kinds = list(verdicts.kinds_B)
    for row in np.flatnonzero(~finite_B & ~verdicts.masked_B):
        kinds[row] = REWARD_NOT_FINITE
    measured_B = verdicts.measured_B & finite_B
    return replace(verdicts, masked_B=verdicts.masked_B | ~finite_B, measured_B=measured_B, kinds_B=kinds)


def write_columns(batch: MutableMapping[str, Any], verdicts: RowVerdicts) -> None:
    """Put verdicts into a batch as `MASKED` and `DETAILS`."""
    details = np.zeros((len(verdicts.masked_B), 1 + MAX_KIND_LENGTH), dtype=np.uint8)
    details[:, 0] = (
        _MEASURED * verdicts.measured_B + _STATED * verdicts.stated_B + _FAILED * verdicts.failed_B
    )
    for row, kind in enumerate(verdicts.kinds_B):
        text = np.frombuffer((kind or "").encode()[:MAX_KIND_LENGTH], dtype=np.uint8)
        details[row, 1 : 1 + len(text)] = text
    batch[MASKED] = torch.from_numpy(verdicts.masked_B.copy())
    batch[DETAILS] = torch.from_numpy(details)


def read_columns(batch: Mapping[str, Any]) -> RowVerdicts | None:
    """Read a batch's verdicts; None when it carries none.

    A batch with `MASKED` alone (written by NeMo-RL itself) has measured rewards and no kinds.
    """
    if MASKED not in batch:
        return None
    flags = batch[MASKED]
    flags = flags.reshape(-1).tolist() if isinstance(flags, torch.Tensor) else list(flags)
    masked = np.array([bool(read_flag(flag, MASKED)) for flag in flags], dtype=bool)
    if DETAILS not in batch:
        return replace(all_measured(len(masked)), masked_B=masked)
    details = batch[DETAILS].cpu().numpy().astype(np.uint8).reshape(len(masked), 1 + MAX_KIND_LENGTH)
    kinds = [row.tobytes().rstrip(b"\0").decode(errors="replace") or None for row in details[:, 1:]]
    measured, stated, failed = ((details[:, 0] & bit) != 0 for bit in (_MEASURED, _STATED, _FAILED))
    return RowVerdicts(masked, measured, stated, kinds, failed)
