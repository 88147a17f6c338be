"""Which rows of a mini batch pass through the model: of excluded ones, only as many as verl needs.

No time is spent on a row that cannot train, and what a model shares between the rows of a micro batch (the
balance of its experts, for one) cannot feel it.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch


def rows_to_pass(
    engine: Any, tools: ModuleType, data: Any, kept: list[bool], device: str
) -> list[int] | None:
    """Choose the rows of a mini batch that pass through the model.

    Every rank passes as many rows as the one that needs most, in whole micro batches, so that all make
    the same number of passes; the shortest excluded rows fill up.

    Args:
        engine: verl's training engine.
        tools: The module verl.utils.tensordict_utils.
        data: The mini batch of this rank, B rows.
        kept: B flags, the row is not excluded.
        device: Where the ranks exchange numbers.

    Returns:
        Row numbers in order; None: all rows, since fewer are not possible or would break the engine.
    """
    together = tools.get(data, "force_group_size", default=1) > 1
    if not _is_fsdp(engine) or together or tools.get(data, "return_model_output", default=False):
        return None
    count = _most_of_ranks(engine, sum(kept), device)
    if not tools.get(data, "use_dynamic_bsz", default=True):
        count += -count % tools.get(data, "micro_batch_size_per_gpu")
    if count >= len(kept):
        return None
    lengths = _lengths(data)
    order = sorted(range(len(kept)), key=lambda row: (not kept[row], not kept[row] and lengths[row]))
    return sorted(order[:count])


def tell_computed_tokens(engine: Any, tools: ModuleType, data: Any, rows: list[int]) -> None:
    """Correct the list from which verl's worker works out its MFU; it holds that list already.

    Args:
        engine: verl's training engine.
        tools: The module verl.utils.tensordict_utils.
        data: The mini batch that the worker handed to the engine.
        rows: The rows of this rank that pass through the model.
    """
    counted = tools.get(data, "global_token_num", default=None)
    if not isinstance(counted, list):
        return
    lengths = _lengths(data)
    computed = [lengths[row] for row in rows]
    group, of_ranks = engine.get_data_parallel_group(), [computed]
    if group is not None:
        of_ranks *= torch.distributed.get_world_size(group)
        torch.distributed.all_gather_object(of_ranks, computed, group)
    counted[:] = [length for of_rank in of_ranks for length in of_rank]


def _is_fsdp(engine: Any) -> bool:
    """Tell whether micro batches pass one after the other; a pipeline may need a certain number of them."""
    return any(kind.__name__ == "FSDPEngine" for kind in type(engine).__mro__)


def _most_of_ranks(engine: Any, count: int, device: str) -> int:
    group = engine.get_data_parallel_group()
    if group is None:
        return count
    most = torch.tensor(count, device=device)
    torch.distributed.all_reduce(most, op=torch.distributed.ReduceOp.MAX, group=group)
    return int(most)


def _lengths(data: Any) -> list[int]:
    lengths: list[int] = data["input_ids"].offsets().diff().tolist()
    return lengths
