"""A reference loss in numpy, and `check_loss`: what must hold of a policy loss, its KL and entropy terms."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from samplemask.errors import ContractError
from samplemask.policy import MaskPolicy, plan_rows
from samplemask.testing.batches import BoolArray, GrpoBatch
from samplemask.testing.conformance import Report, conformance_batches, run_properties
from samplemask.testing.properties import Named, named
from samplemask.testing.reference import reference_advantage
from samplemask.testing.synthetic import Stream

Mode = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"]


def reference_loss(loss_BT: npt.ArrayLike, mask_BT: npt.ArrayLike, mode: Mode = "token-mean") -> float | None:
    """Return the mean loss over what the mask keeps; None where it keeps nothing.

    A row without a kept token is no sequence. Masked entries are replaced, never multiplied by zero.

    Args:
        loss_BT: float (B, T).
        mask_BT: bool or 0 and 1, (B, T).
        mode: "token-mean", or a mean over sequences of their token sums or token means.
    """
    kept = np.asarray(mask_BT).astype(bool)
    loss = np.where(kept, np.asarray(loss_BT, dtype=np.float64), 0.0)
    length_B = kept.sum(axis=1)
    if not length_B.any():
        return None
    if mode == "token-mean":
        return float(loss.sum() / length_B.sum())
    sum_S = loss.sum(axis=1)[length_B > 0]
    if mode == "seq-mean-token-sum":
        return float(sum_S.mean())
    if mode == "seq-mean-token-mean":
        return float((sum_S / length_B[length_B > 0]).mean())
    expected = '"token-mean", "seq-mean-token-sum" or "seq-mean-token-mean"'
    raise ContractError.of("mode", expected, mode, "Choose one of these.")


@dataclass(frozen=True)
class LossInputs:
    """What a policy loss is given: torch tensors of shape (B, T) in float64.

    Attributes:
        logprobs: Log-probabilities under the policy; they require gradients.
        entropy: Entropy of the policy; it requires gradients.
        old_logprobs: Log-probabilities under the policy that sampled.
        ref_logprobs: Log-probabilities under the reference policy.
        advantages: Advantages; those of rows that do not train hold whatever the row held.
        mask: int64. 1 at the response tokens of rows that train.
        trains: bool (B,). The rows that train.
    """

    logprobs: Any
    entropy: Any
    old_logprobs: Any
    ref_logprobs: Any
    advantages: Any
    mask: Any
    trains: Any


Loss = Callable[[LossInputs], Any]


@dataclass(frozen=True)
class LossTrial:
    """One loss under test."""

    loss: Loss
    atol: float

    def run(self, batch: GrpoBatch, rows: BoolArray | None = None, trash: float | None = None) -> _Result:
        """Return loss and gradients.

        Args:
            batch: The batch.
            rows: bool (B,), the rows that are given to the loss; all by default.
            trash: What all tensors hold in rows that do not train; a usual value by default.
        """
        torch = import_module("torch")
        inputs = _inputs(batch, trash, np.ones(len(batch), dtype=bool) if rows is None else rows)
        value = self.loss(inputs)
        leaves = [inputs.logprobs, inputs.entropy]
        if not value.requires_grad:
            return _Result(float(value), [np.zeros(leaf.shape) for leaf in leaves])
        gradients = torch.autograd.grad(value, leaves, allow_unused=True)
        zeros = [torch.zeros_like(leaf) for leaf in leaves]
        found = [zero if grad is None else grad for grad, zero in zip(gradients, zeros, strict=True)]
        return _Result(float(value), [np.asarray(grad) for grad in found])

    def differ(self, found: _Result, expected: _Result) -> str | None:
        """Say where two results differ; None where they do not."""
        if not abs(found.loss - expected.loss) <= self.atol * max(1.0, abs(expected.loss)):
            return f"the loss is {found.loss:.6g}, not {expected.loss:.6g}"
        for name, one, other in zip(("log-probability", "entropy"), found.grads, expected.grads, strict=True):
            if not np.allclose(one, other, rtol=0.0, atol=self.atol):
                return f"the {name} gradient has norm {_norm(one):.6g}, not {_norm(other):.6g}"
        return None


@dataclass(frozen=True)
class _Result:
    loss: float
    grads: list[npt.NDArray[np.float64]]

    def of(self, rows: BoolArray) -> _Result:
        return _Result(self.loss, [grad[rows] for grad in self.grads])


def check_loss(
    loss: Loss, *, name: str | None = None, atol: float = 1e-6, batches: Iterable[GrpoBatch] | None = None
) -> Report:
    """Try a policy loss, with its KL and entropy terms, against what must hold of rows that do not train.

    Args:
        loss: A function of `LossInputs` that returns a torch scalar.
        name: Name in the report.
        atol: Largest difference accepted; relative to the value where that is above 1.
        batches: Batches to try instead of the built-in ones.
    """
    tried = list(conformance_batches() if batches is None else batches)
    trial = LossTrial(loss, atol)
    return run_properties(name or str(getattr(loss, "__name__", loss)), LOSS_PROPERTIES, trial, tried, {})


def loss_deletion_equivalence(trial: LossTrial, batch: GrpoBatch) -> str | None:
    """Loss and gradients are those of the batch without the rows that do not train: its denominators too."""
    trains = _trains(batch)
    if not trains.any():
        return None
    return trial.differ(trial.run(batch).of(trains), trial.run(batch, trains))


def no_gradient_in_masked_rows(trial: LossTrial, batch: GrpoBatch) -> str | None:
    """No term, be it loss, KL or entropy, has a gradient in a row that does not train."""
    silent = ~_trains(batch)
    for name, grad in zip(("log-probability", "entropy"), trial.run(batch).grads, strict=True):
        if (grad[silent] != 0).any():
            return f"the {name} gradient of a row that does not train has norm {_norm(grad[silent]):.6g}"
    return None


def loss_ignores_masked_content(trial: LossTrial, batch: GrpoBatch) -> str | None:
    """Whatever a row that does not train holds (1e6, NaN, inf), loss and gradients do not move."""
    trains = _trains(batch)
    if not trains.any():
        return None
    for trash in (1e6, math.nan, math.inf):
        if problem := trial.differ(trial.run(batch, trash=trash).of(trains), trial.run(batch).of(trains)):
            return f"{problem}, with {trash} in the rows that do not train"
    return None


def empty_batch_has_no_gradient(trial: LossTrial, batch: GrpoBatch) -> str | None:
    """A batch in which no row trains gives a finite loss and zero gradients: no NaN, no error."""
    silent = batch.select(~_trains(batch))
    if not len(silent) or _trains(silent).any():
        return None
    found = trial.run(silent)
    if not math.isfinite(found.loss):
        return f"with no row to train, the loss is {found.loss}"
    if any((grad != 0).any() for grad in found.grads):
        return f"with no row to train, a gradient has norm {max(map(_norm, found.grads)):.6g}"
    return None


LOSS_PROPERTIES: dict[str, Named] = named(
    loss_deletion_equivalence,
    no_gradient_in_masked_rows,
    loss_ignores_masked_content,
    empty_batch_has_no_gradient,
)
"""Every property of a loss by name."""


def _trains(batch: GrpoBatch) -> BoolArray:
    return plan_rows(batch.masked_B | batch.padding_B, batch.group_B, MaskPolicy()).trains_B


def _inputs(batch: GrpoBatch, trash: float | None, rows: BoolArray) -> LossInputs:
    torch = import_module("torch")
    trains, response = _trains(batch), batch.response_mask()
    columns = [_noise(batch, response.shape[1], salt) for salt in range(4)]
    columns.append(np.broadcast_to(reference_advantage(batch)[:, None], response.shape).copy())
    if trash is not None:
        columns = [np.where(trains[:, None], column, trash) for column in columns]
    tensors = [torch.tensor(column[rows], dtype=torch.float64) for column in columns]
    mask = torch.tensor(np.where(trains[:, None], response, 0)[rows])
    for leaf in tensors[:2]:
        leaf.requires_grad_()
    logprobs, entropy, old_logprobs, ref_logprobs, advantages = tensors
    trains_B = torch.tensor(trains[rows])
    return LossInputs(logprobs, entropy, old_logprobs, ref_logprobs, advantages, mask, trains_B)


def _noise(batch: GrpoBatch, width: int, salt: int) -> npt.NDArray[np.float64]:
    seeds = [zlib.crc32(f"{salt}:{session}".encode()) for session in batch.session_B]
    noise = [Stream(seed).uniform(width) - 1.0 for seed in seeds]
    return np.stack(noise) if noise else np.zeros((0, width))


def _norm(grad: npt.NDArray[np.float64]) -> float:
    return float(np.sqrt((grad**2).sum()))
