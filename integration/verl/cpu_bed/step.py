"""What a test hands to the training workers, and what it gets back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

LOSS_MODES = (
    ("token-mean", None),
    ("token-sum", None),
    ("seq-mean-token-sum", None),
    ("seq-mean-token-mean", None),
    ("seq-mean-token-sum-norm", None),
    ("seq-mean-token-sum-norm", 8),
)
"""verl's loss_agg_mode and loss_scale_factor."""


@dataclass
class Row:
    """One row of a mini batch.

    Attributes:
        prompt: Token ids.
        response: Token ids, L of them.
        numbers: Token-level fields by name, each L numbers.
        mask: The response mask, L times 0 or 1; None: all ones.
        mark: samplemask's exclusion mark.
    """

    prompt: list[int]
    response: list[int]
    numbers: dict[str, list[float]]
    mask: list[int] | None = None
    mark: int = 0


@dataclass
class Step:
    """One training step: what differs from the worker's defaults.

    Attributes:
        role: "actor" or "critic".
        row_count: verl's global_batch_size.
        micro_batch: Rows of one micro batch on each rank.
        mini_batch: Rows of one mini batch over all ranks; None: all of them.
        loss: Fields of verl's actor or critic config.
        policy_loss: Name of verl's policy loss.
        marked: Whether the batch carries samplemask's column at all.
        reset: Whether weights and optimizer start afresh.
        dynamic_tokens: Tokens of one micro batch, when verl is to make them by size; None: by rows.
        return_outputs: Ask verl for the model's outputs, so that every row passes through the model.
    """

    role: str
    row_count: int
    micro_batch: int
    mini_batch: int | None = None
    loss: dict[str, Any] = field(default_factory=dict)
    policy_loss: str = "vanilla"
    marked: bool = True
    reset: bool = True
    dynamic_tokens: int | None = None
    return_outputs: bool = False


@dataclass
class Outcome:
    """What a step did, the same on all ranks.

    Attributes:
        gradients: Before clipping, summed over the step's mini batches; empty when none was taken.
        weights: After the step.
        optimizer: Optimizer state after the step, by parameter and name.
        learning_rate_steps: How often the scheduler was advanced.
        metrics: What the worker returned.
        passes: Tokens of each row of each micro batch that passed through the model, on the first rank.
        counted: Tokens of each row of all ranks, from which the worker works out each mini batch's MFU.
    """

    gradients: dict[str, torch.Tensor]
    weights: dict[str, torch.Tensor]
    optimizer: dict[str, torch.Tensor]
    learning_rate_steps: int
    metrics: dict[str, Any]
    passes: list[list[int]]
    counted: list[list[int]]
