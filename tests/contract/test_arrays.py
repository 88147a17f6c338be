"""Columns that numpy cannot read by itself: tensors in bfloat16, with a gradient, on a device."""

import numpy as np
import pytest

from samplemask import MaskPolicy, plan_rows, step_metrics
from samplemask.arrays import as_array


class Refusing:
    """What a tensor looks like that numpy refuses."""

    def __init__(self, values, error):
        self.values, self.error = values, error

    def __array__(self, *args, **kwargs):
        raise self.error

    def tolist(self):
        return self.values


@pytest.mark.parametrize("error", [TypeError("BFloat16"), RuntimeError("requires grad")], ids=repr)
def test_what_numpy_refuses_is_read_by_its_list(error):
    got = as_array(Refusing([1.0, 0.5], error), np.float64)
    assert got.tolist() == [1.0, 0.5]
    assert got.dtype == np.float64
    assert as_array(Refusing([True, False], error)).dtype == bool


def test_what_has_no_list_keeps_numpys_own_error():
    with pytest.raises(TypeError, match="must be a string or a real number"):
        as_array([object()], np.float64)


def test_an_array_is_not_copied():
    values = np.zeros(3)
    assert as_array(values) is values


def test_flags_and_rewards_may_be_tensors_of_any_kind():
    torch = pytest.importorskip("torch")
    rewards = [1.0, 0.0, 9.0]
    for tensor in (
        torch.tensor(rewards, dtype=torch.bfloat16),
        torch.tensor(rewards, requires_grad=True),
        torch.tensor(rewards, dtype=torch.float16),
    ):
        plan = plan_rows((tensor > 5).to(tensor.dtype), [0, 0, 0], MaskPolicy())
        assert plan.votes_B.tolist() == [True, True, False]
        assert step_metrics(plan, tensor)["mask_sample/reward_unmasked"] == 0.5
        assert step_metrics(plan, tensor)["mask_sample/reward"] == pytest.approx(10 / 3)
