"""Select rows of a batch, put a result back in place, number prompts. Knows torch, knows no host."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from samplemask.groups import group_codes

BoolArray = npt.NDArray[np.bool_]

_CHUNK = 512  # rows; below it, the host's function is dominated by its fixed cost per group


def select_rows(value: Any, rows: torch.Tensor, size: int) -> Any:
    """Return `value` with only the chosen rows, wherever it has rows.

    Args:
        value: A tensor or list whose first dimension is `size`, a mapping of such values (also
            NeMo-RL's BatchedDataDict), or anything else, which is returned as it is.
        rows: int64 (V,), the rows to keep, in order.
        size: B, the number of rows of the batch.
    """
    if isinstance(value, torch.Tensor):
        has_rows = value.ndim > 0 and value.shape[0] == size
        return value[rows.to(value.device)] if has_rows else value
    if isinstance(value, Mapping):
        return type(value)({name: select_rows(column, rows, size) for name, column in value.items()})
    if isinstance(value, list) and len(value) == size:
        return [value[row] for row in rows.tolist()]
    return value


def scatter_rows(value: Any, rows: torch.Tensor, silent_B: torch.Tensor) -> Any:
    """Put the rows of a result at `rows` of zeros and clear the rows that must stay silent.

    Args:
        value: Tensor (V, ...), a tuple of results, or anything else, which is returned as it is.
        rows: int64 (V,), where the rows of `value` belong.
        silent_B: bool (B,), rows that are zero whatever `value` holds. Replaced, never multiplied:
            NaN times zero is NaN.
    """
    if isinstance(value, tuple):
        return tuple(scatter_rows(part, rows, silent_B) for part in value)
    if not isinstance(value, torch.Tensor):
        return value
    full = value.new_zeros((len(silent_B), *value.shape[1:]))
    full[rows.to(value.device)] = value
    full[silent_B.to(value.device)] = 0
    return full


def keep_rows(value_B: torch.Tensor, kept_B: BoolArray) -> torch.Tensor:
    """Return `value_B` (B, ...) with zero in every row that is not kept."""
    kept = torch.from_numpy(kept_B).to(value_B.device)
    return torch.where(kept.view(-1, *[1] * (value_B.ndim - 1)), value_B, torch.zeros_like(value_B))


def prompt_codes(prompt_ids: torch.Tensor) -> npt.NDArray[np.intp]:
    """Number equal rows of a prompt matrix.

    Args:
        prompt_ids: (B, S) or (B,) token ids; equal rows belong to one group.

    Returns:
        Codes from 0 to G - 1, intp (B,).
    """
    matrix = np.ascontiguousarray(prompt_ids.detach().cpu().numpy())
    keys = [row.tobytes() for row in matrix.reshape(len(matrix), -1)]
    return group_codes(keys, len(keys))[0]


def code_column(codes_B: npt.NDArray[np.intp], like: torch.Tensor) -> torch.Tensor:
    """Return group codes as the matrix (B, 1) that stands for a prompt matrix on its device."""
    return torch.from_numpy(codes_B.astype(np.int64)).unsqueeze(1).to(like.device)


def group_by_group(
    statistics: Callable[..., tuple[torch.Tensor, torch.Tensor]],
    groups: torch.Tensor,
    reward_B: torch.Tensor,
    valid_B: torch.Tensor,
    *args: Any,
    **kwargs: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Call the host's group statistics on little at a time: it compares all rows with all groups.

    Groups that hold the same numbers in the same order (rewards are often 0 and 1) are computed
    once, and the others some hundred rows at a time.

    Args:
        statistics: The host's function of (groups, rewards, valid_mask, ...).
        groups: int64 (B, 1), group codes.
        reward_B: (B,) rewards.
        valid_B: (B,) the host's mask.
        *args: Passed on, rows selected.
        **kwargs: Passed on, rows selected.

    Returns:
        What one call returns, (B,) and (B,), bit for bit: each group is whole and in its order.
    """
    size = len(groups)
    if size <= _CHUNK or groups.shape[1:] != (1,):
        return statistics(groups, reward_B, valid_B, *args, **kwargs)
    codes, order = torch.sort(groups[:, 0].cpu(), stable=True)
    bounds = np.concatenate([[0], np.flatnonzero(np.diff(codes.numpy())) + 1, [size]])
    source = _equal_groups(bounds, order, [reward_B, valid_B, *args, *kwargs.values()])
    distinct = np.unique(source)
    first, second = torch.zeros_like(reward_B), torch.zeros_like(reward_B)
    for start, end in pairwise(_cuts(codes.numpy()[distinct])):
        rows = order[distinct[start:end]]
        chosen = [select_rows(value, rows, size) for value in (groups, reward_B, valid_B, *args)]
        named = {name: select_rows(value, rows, size) for name, value in kwargs.items()}
        at = rows.to(reward_B.device)
        first[at], second[at] = statistics(*chosen, **named)
    to, taken = order.to(reward_B.device), order[source].to(reward_B.device)
    first[to], second[to] = first[taken], second[taken]
    return first, second


def _equal_groups(
    bounds: npt.NDArray[np.intp], order: torch.Tensor, columns: Sequence[Any]
) -> npt.NDArray[np.intp]:
    """For each position of the sorted rows, the position in the first group that holds the same numbers."""
    numbers = [
        value[order.to(value.device)].double().cpu() for value in columns if _has_rows(value, len(order))
    ]
    table = torch.stack(numbers, dim=1).numpy()
    source = np.arange(len(order))
    seen: dict[bytes, int] = {}
    for start, end in pairwise(bounds.tolist()):
        source[start:end] += seen.setdefault(table[start:end].tobytes(), start) - start
    return source


def _has_rows(value: Any, size: int) -> bool:
    return isinstance(value, torch.Tensor) and value.shape == (size,)


def _cuts(codes_V: npt.NDArray[np.intp]) -> list[int]:
    """Cut sorted rows into pieces of about `_CHUNK` rows, between groups."""
    starts = np.concatenate([[0], np.flatnonzero(np.diff(codes_V)) + 1])
    wanted = np.searchsorted(starts, np.arange(0, len(codes_V), _CHUNK), side="right") - 1
    return [*np.unique(starts[wanted]).tolist(), len(codes_V)]


def message_codes(
    message_logs: Sequence[Sequence[Mapping[str, Any]]], lengths_B: Any
) -> npt.NDArray[np.intp]:
    """Number the prompts of a batch of message logs.

    Args:
        message_logs: B logs; each message holds `token_ids`.
        lengths_B: (B,) prompt lengths in tokens: messages before that length are the prompt.

    Returns:
        Codes from 0 to G - 1, intp (B,).
    """
    keys = []
    for log, length in zip(message_logs, lengths_B, strict=True):
        prompt: list[bytes] = []
        tokens = 0
        for message in log:
            if tokens >= int(length):
                break
            ids = torch.as_tensor(message["token_ids"]).detach().cpu().long().numpy()
            prompt.append(ids.tobytes())
            tokens += len(ids)
        keys.append(b"".join(prompt))
    return group_codes(keys, len(keys))[0]


def group_statistics(
    value_B: torch.Tensor, codes_B: npt.NDArray[np.intp], votes_B: BoolArray, reduce: str
) -> torch.Tensor:
    """Let each row that does not vote follow its group: its voters' largest value or their mean.

    Args:
        value_B: (B,) one value per row, meaningful where the row votes.
        codes_B: intp (B,) group codes.
        votes_B: bool (B,).
        reduce: "amax" or "mean".

    Returns:
        (B,): voters keep their own value; others take their group's; 0 in a group without voters.
    """
    codes = torch.from_numpy(codes_B.astype(np.int64)).to(value_B.device)
    votes = torch.from_numpy(votes_B).to(value_B.device)
    of_group = value_B.new_zeros(int(codes_B.max(initial=-1)) + 1)
    of_group = of_group.scatter_reduce(0, codes[votes], value_B[votes], reduce, include_self=False)
    return torch.where(votes, value_B, of_group[codes])
