"""Keeps excluded rows out of verl's loss, its denominators, its passes and the optimizer step.

The trainer writes one column, `EXCLUSION`, into each batch that has excluded rows; the training engine,
in its own processes, finds it there. It needs no policy of its own, and a batch without the column is
left alone. Rows that verl itself excludes (overlong, padding) have an all-zero mask but no mark, and
keep what verl gives them: a place in the denominator of the seq-mean modes.

verl's own loss runs on the rows that remain, so whatever the other rows hold never reaches it.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from samplemask_verl.passes import rows_to_pass, tell_computed_tokens

EXCLUSION = "samplemask_exclusion"
"""Column of a verl batch: int64 (B,), one of the marks below."""

KEPT, EXCLUDED, EXCLUDED_BUT_COUNTED = 0, 1, 2
"""Marks: trains as verl says; out of the loss; out of the loss but in verl's constant row count."""

LEFT_OUT = "mask_sample/rows_left_out"
"""Metric of each mini batch, and the engine's receipt: the trainer stops when it does not come back."""

MASKS = ("response_mask", "loss_mask")

Loss = Callable[..., tuple[torch.Tensor, dict[str, Any]]]


def exclusion_column(trains_B: npt.NDArray[np.bool_], host_rows_B: Any, denominator: str) -> torch.Tensor:
    """Build the column that tells the training engine which rows to leave out.

    Args:
        trains_B: bool (B,), the plan.
        host_rows_B: bool (B,), rows that verl added as padding and handles itself; None: there are none.
        denominator: `valid` or `host`, see `config.VerlPolicy`.

    Returns:
        int64 (B,).
    """
    mark = EXCLUDED if denominator == "valid" else EXCLUDED_BUT_COUNTED
    excluded_B = ~trains_B if host_rows_B is None else ~trains_B & ~host_rows_B
    return torch.from_numpy(np.where(excluded_B, mark, KEPT).astype(np.int64))


def wrap_train_batch(
    host: ModuleType, tools: ModuleType
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the maker of the wrapper around `BaseEngine.train_batch`.

    Args:
        host: The module verl.workers.engine.base.
        tools: The module verl.utils.tensordict_utils.
    """

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def train_batch(self: Any, data: Any, loss_function: Any) -> Any:
            if EXCLUSION not in data.keys():  # noqa: SIM118 - a TensorDict, not a dict
                return original(self, data, loss_function)
            device = host.get_device_name()
            training, excluded, uncounted = _count(self, data, device)
            if excluded and not training:
                tell_computed_tokens(self, tools, data, [])
                outputs = _nothing_trained(tools, self, data)
            else:
                self._samplemask_trained = not tools.get(data, "update_lr_scheduler", default=False)
                rows = rows_to_pass(self, tools, data, (data[EXCLUSION] == KEPT).tolist(), device)
                if rows is not None:
                    tell_computed_tokens(self, tools, data, rows)
                    data = tools.index_select_tensor_dict(data, rows)
                prepared = _prepared(tools, data, uncounted)
                outputs = original(self, prepared, on_kept_rows(tools, loss_function))
            if self.is_mp_src_rank_with_outputs():
                outputs["metrics"][LEFT_OUT] = [float(excluded)]
            return outputs

        return train_batch

    return make


def on_kept_rows(tools: ModuleType, loss_function: Loss) -> Loss:
    """Make verl's loss function run on the rows of a micro batch that are not excluded.

    A micro batch in which every row is excluded gives a zero that is still connected to the model, so
    that every rank runs the same backward pass, and the metrics of a fully masked micro batch.

    Args:
        tools: The module verl.utils.tensordict_utils.
        loss_function: Such as verl's `ppo_loss` or `value_loss`, with its config bound.
    """

    def loss(*args: Any, **kwargs: Any) -> Any:
        output, data = kwargs.get("model_output"), kwargs.get("data")
        if output is None or data is None or EXCLUSION not in data.keys():  # noqa: SIM118
            return loss_function(*args, **kwargs)  # verl also calls it to post-process logits
        kept_B = data[EXCLUSION] == KEPT
        if bool(kept_B.all()):
            return loss_function(*args, **kwargs)
        if not bool(kept_B.any()):
            kwargs.update(model_output={k: _neutral(v) for k, v in output.items()}, data=_neutral_rows(data))
            return _connected_zero(output), loss_function(*args, **kwargs)[1]
        lengths_B = data["input_ids"].offsets().diff()
        rows = torch.nonzero(kept_B).flatten().tolist()
        kwargs.update(
            model_output={name: select_rows(value, kept_B, lengths_B) for name, value in output.items()},
            data=tools.index_select_tensor_dict(data, rows),
        )
        return loss_function(*args, **kwargs)

    return loss


def select_rows(value: Any, kept_B: torch.Tensor, lengths_B: torch.Tensor) -> Any:
    """Select rows of one model output, keeping its gradient.

    Args:
        value: Jagged (B, T*), flat over the batch's tokens (sum(T), ...), or dense (B, ...); anything
            else is returned as it is.
        kept_B: bool (B,).
        lengths_B: int (B,), tokens of each row, for flat values.
    """
    if not isinstance(value, torch.Tensor) or value.ndim == 0:
        return value
    if value.is_nested:
        lengths_B = value.offsets().diff()
        kept = value.values()[torch.repeat_interleave(kept_B, lengths_B)]
        offsets = torch.nn.functional.pad(lengths_B[kept_B].cumsum(0), (1, 0))
        return torch.nested.nested_tensor_from_jagged(kept, offsets=offsets)
    if value.shape[0] == len(kept_B):
        return value[kept_B]
    if value.shape[0] == int(lengths_B.sum()):
        return value[torch.repeat_interleave(kept_B, lengths_B)]
    return value


def zero_rows(mask: torch.Tensor, excluded_B: torch.Tensor) -> torch.Tensor:
    """Return a copy of a mask, jagged (B, T*) or dense (B, T), that is zero in the excluded rows."""
    if mask.is_nested:
        lengths_B = mask.offsets().diff()
        excluded = torch.repeat_interleave(excluded_B.to(mask.device), lengths_B)
        zeroed, longest = mask.values().masked_fill(excluded, 0), int(lengths_B.max())
        # Without the longest row's length torch pads each row to the tokens of all.
        return torch.nested.nested_tensor_from_jagged(zeroed, offsets=mask.offsets(), max_seqlen=longest)
    return mask.index_fill(0, torch.nonzero(excluded_B).flatten().to(mask.device), 0)


def _count(engine: Any, data: Any, device: str) -> tuple[int, int, int]:
    """Count, over all data-parallel ranks: rows that train, excluded rows, and those not counted by verl."""
    marks_B = data[EXCLUSION]
    mask = data["loss_mask"] if "loss_mask" in data.keys() else data["response_mask"]  # noqa: SIM118
    tokens_B = torch.stack([row.sum() for row in mask.unbind()])
    training = (marks_B == KEPT) & (tokens_B > 0).to(marks_B.device)
    counts = torch.stack([training.sum(), (marks_B != KEPT).sum(), (marks_B == EXCLUDED).sum()])
    group = engine.get_data_parallel_group()
    if group is not None:
        counts = counts.to(device)
        torch.distributed.all_reduce(counts, group=group)
    training_rows, excluded_rows, uncounted_rows = counts.tolist()
    return training_rows, excluded_rows, uncounted_rows


def _prepared(tools: ModuleType, data: Any, uncounted: int) -> Any:
    """Return a shallow copy of a mini batch with the denominators of the rows that remain."""
    data = data.copy()
    excluded_B = data[EXCLUSION] != KEPT
    for name in MASKS:
        if name in data.keys():  # noqa: SIM118
            data[name] = zero_rows(data[name], excluded_B)
    counted = tools.get(data, "global_batch_size", default=None)
    if counted is not None and uncounted:
        tools.assign_non_tensor(data, global_batch_size=max(counted - uncounted, 1))
    return data


def _nothing_trained(tools: ModuleType, engine: Any, data: Any) -> dict[str, Any]:
    """Skip one mini batch on every rank alike: no forward, no optimizer step.

    verl advances the learning rate once a step, with the step's last mini batch; it must still do so
    when only that one is skipped and an earlier one trained.
    """
    if tools.get(data, "update_lr_scheduler", default=False):
        trained = getattr(engine, "_samplemask_trained", False)
        tools.assign_non_tensor(data, update_lr_scheduler=trained)
        engine._samplemask_trained = False
    return {"model_output": {}, "loss": [], "metrics": {}}


def _connected_zero(output: dict[str, Any]) -> torch.Tensor:
    """Return 0 with a gradient of zeros for every model output, even where that output is NaN."""
    parts = [value.values() if value.is_nested else value for value in output.values() if _is_float(value)]
    live = [part for part in parts if part.requires_grad] or parts
    return torch.stack(
        [torch.where(torch.zeros_like(part, dtype=torch.bool), part, 0).sum() for part in live]
    ).sum()


def _neutral_rows(data: Any) -> Any:
    """Return a shallow copy of a micro batch whose token-level numbers are all zero."""
    data = data.copy()
    for name, value in list(data.items()):
        if name in MASKS or (_is_float(value) and value.ndim > 1):
            data[name] = torch.zeros_like(value)
    return data


def _neutral(value: Any) -> Any:
    return torch.zeros_like(value.detach()) if _is_float(value) else value


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()
