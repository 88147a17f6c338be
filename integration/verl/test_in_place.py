"""The response mask of masked rows: zeroed where it lies, unless somebody else could see it."""

import numpy as np
import pytest

pytest.importorskip("verl", reason="verl is not installed in this environment")
import tensordict
import torch

from samplemask_verl import in_place
from samplemask_verl.in_place import zero_rows_of

EXCLUDED = torch.tensor([False, True, False])
ZEROED = [[1, 1, 1, 1], [0, 0, 0, 0], [1, 1, 1, 1]]


def batch(mask=None):
    mask = torch.ones(3, 4, dtype=torch.int64) if mask is None else mask
    return tensordict.TensorDict({"mask": mask}, batch_size=3)


def zeroes_in_place(data):
    address = data["mask"].data_ptr()
    zero_rows_of(data, "mask", EXCLUDED)
    assert data["mask"].tolist() == ZEROED
    return data["mask"].data_ptr() == address


def test_a_mask_that_only_the_batch_holds_is_changed_where_it_lies():
    selected = batch(torch.ones(4, 4, dtype=torch.int64)[torch.tensor([0, 1, 2])])
    assert zeroes_in_place(batch())
    assert zeroes_in_place(selected)


def test_again_and_again():
    data = batch()
    assert [zeroes_in_place(data) for _ in range(3)] == [True] * 3


HOLDERS = {
    "a name": lambda data: data["mask"],
    "a view": lambda data: data["mask"][:, 1:],
    "another batch": lambda data: data.clone(recurse=False)["mask"],
    "another form": lambda data: data["mask"].view(torch.float64).view(torch.int64),
    "numpy": lambda data: data["mask"].numpy(),
    "its memory": lambda data: torch.tensor([], dtype=torch.int64).set_(data["mask"].untyped_storage()),
    "its memory by name": lambda data: data["mask"].untyped_storage(),
    "dlpack": lambda data: torch.utils.dlpack.to_dlpack(data["mask"]),
    "autograd": lambda data: torch.ones(3, 4, requires_grad=True) * data["mask"],
}


@pytest.mark.parametrize("holder", HOLDERS.values(), ids=HOLDERS)
def test_a_mask_that_somebody_else_holds_is_copied(holder):
    data = batch()
    held = holder(data)
    assert not zeroes_in_place(data)
    if isinstance(held, (torch.Tensor, np.ndarray)):
        assert (held == 1).all()


def test_once_the_other_holder_is_gone_the_mask_is_the_batch_s_own():
    data = batch()
    held = data["mask"]
    assert not zeroes_in_place(data)
    del held
    assert zeroes_in_place(data)


MEMORY = {
    "numpy's": lambda: torch.from_numpy(np.ones((3, 4), dtype=np.int64)),
    "read-only": lambda: torch.frombuffer(np.ones(12, dtype=np.int64).tobytes(), dtype=torch.int64).view(
        3, 4
    ),
    "of other processes too": lambda: torch.ones(3, 4, dtype=torch.int64).share_memory_(),
    "one row for all": lambda: torch.ones(1, 4, dtype=torch.int64).expand(3, 4),
    "in columns": lambda: torch.ones(4, 3, dtype=torch.int64).t(),
}


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")
@pytest.mark.parametrize("memory", MEMORY.values(), ids=MEMORY)
def test_memory_that_torch_did_not_give_to_this_mask_alone_is_not_written(memory):
    assert not zeroes_in_place(batch(memory()))


def test_a_mask_of_inference_mode_is_copied():
    with torch.inference_mode():
        data = batch()
    assert not zeroes_in_place(data)


def test_a_first_batch_in_inference_mode_does_not_decide_for_later_ones():
    in_place._seen_when_alone.cache_clear()
    with torch.inference_mode():
        data = batch()
        zero_rows_of(batch(), "mask", EXCLUDED)
    assert not zeroes_in_place(data)
    assert zeroes_in_place(batch())


def test_a_batch_that_makes_its_columns_when_asked_gets_a_copy():
    rows = [
        tensordict.TensorDict({"mask": torch.ones(4, dtype=torch.int64)}, batch_size=[]) for _ in range(3)
    ]
    data = tensordict.LazyStackedTensorDict(*rows, stack_dim=0)
    zero_rows_of(data, "mask", EXCLUDED)
    assert data["mask"].tolist() == ZEROED


def test_a_jagged_mask_is_copied():
    rows = [
        torch.ones(2, dtype=torch.int64),
        torch.ones(1, dtype=torch.int64),
        torch.ones(3, dtype=torch.int64),
    ]
    mask = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
    data = tensordict.TensorDict({"mask": mask}, batch_size=3)
    zero_rows_of(data, "mask", EXCLUDED)
    assert [row.tolist() for row in data["mask"].unbind()] == [[1, 1], [0], [1, 1, 1]]
    assert [row.tolist() for row in mask.unbind()] == [[1, 1], [1], [1, 1, 1]]
