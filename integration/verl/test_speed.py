"""What samplemask costs real verl, as allocations and counts in one process; no clock is read."""

import tracemalloc

import numpy as np
import pytest

pytest.importorskip("verl", reason="verl is not installed in this environment")
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from verl import DataProto
from verl.trainer.ppo import ray_trainer

from samplemask.live import RUN_PREFIX
from samplemask_verl.steps import NOT_IN_METRICS

ROWS, TOKENS = 64, 1024


pytestmark = pytest.mark.usefixtures("plugin")


class Allocations(TorchDispatchMode):
    """Counts the tensors of at least `elements` elements that operations make in memory of their own.

    Attributes:
        made: The number of such tensors; copies that numpy makes are not among them.
    """

    def __init__(self, elements):
        super().__init__()
        self.elements, self.made, self.known = elements, 0, []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        tensors = result if isinstance(result, (tuple, list)) else [result]
        given = {self._memory(value) for value in args if isinstance(value, torch.Tensor)}
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor) and tensor.numel() >= self.elements:
                self.made += self._memory(tensor) not in given
                self.known.append(tensor)  # kept, so that no address is used twice
        return result

    @staticmethod
    def _memory(tensor):
        return tensor.untyped_storage().data_ptr()


def batch(masked=(), dicts=False):
    rewards = torch.zeros(ROWS, TOKENS)
    rewards[:, -1] = torch.arange(ROWS) % 3
    flags = np.isin(np.arange(ROWS), masked)
    tensors = {
        "token_level_rewards": rewards,
        "response_mask": torch.ones(ROWS, TOKENS, dtype=torch.long),
        "responses": torch.ones(ROWS, TOKENS, dtype=torch.long),
        "old_log_probs": torch.zeros(ROWS, TOKENS),
    }
    columns = {"uid": np.repeat([f"prompt-{group}" for group in range(ROWS // 8)], 8).astype(object)}
    if dicts:
        infos = [{"score": 1.0, "mask_sample": bool(flag), "failure_kind": ""} for flag in flags]
        columns["reward_extra_info"] = np.array(infos, dtype=object)
    else:
        columns["mask_sample"] = flags
    return DataProto.from_dict(tensors=tensors, non_tensors=columns)


def allocations(data, estimator, function=None):
    with Allocations(ROWS * TOKENS // 2) as seen:
        (function or ray_trainer.compute_advantage)(data, adv_estimator=estimator)
    return seen.made


def stock(data, estimator):
    return allocations(data, estimator, ray_trainer.compute_advantage.__wrapped__)


GROUPED = ("grpo", "grpo_vectorized", "rloo_vectorized")


@pytest.mark.parametrize("dicts", [False, True], ids=["flag column", "reward_extra_info"])
@pytest.mark.parametrize("estimator", [*GROUPED, "rloo", "opo", "gpg"])
def test_a_healthy_batch_makes_no_large_tensor_that_stock_verl_does_not_make(estimator, dicts):
    data = batch(dicts=dicts)
    before = dict(data.batch.items())
    made_by_stock = stock(batch(dicts=dicts), estimator)
    assert made_by_stock >= 1
    assert allocations(data, estimator) == made_by_stock
    for name, value in before.items():
        assert data.batch[name] is value


def cost_of_masking(data, estimator):
    """Return how many more large tensors than stock's one masked step makes, in torch and in numpy."""
    allocations(batch(masked=[1]), estimator)  # first use allocates for good
    tracemalloc.start()
    made = allocations(data, estimator)
    by_numpy = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return made - stock(batch(), estimator), by_numpy // data.batch["response_mask"].nbytes


@pytest.mark.parametrize("estimator", GROUPED)
def test_masked_rows_cost_no_copy_and_no_selection(estimator):
    data = batch(masked=[1, 9, 17])
    rewards = data.batch["token_level_rewards"]
    address = data.batch["response_mask"].data_ptr()
    assert cost_of_masking(data, estimator) == (0, 0)
    assert data.batch["response_mask"].data_ptr() == address
    assert data.batch["token_level_rewards"] is rewards
    assert silent_rows(data) == [1, 9, 17]


@pytest.mark.parametrize("estimator", GROUPED)
def test_a_response_mask_that_somebody_else_holds_is_copied_once(estimator):
    data = batch(masked=[1, 9, 17])
    mask = data.batch["response_mask"]
    assert cost_of_masking(data, estimator) == (1, 0)
    assert data.batch["response_mask"] is not mask
    assert bool((mask == 1).all())
    assert silent_rows(data) == [1, 9, 17]


def silent_rows(data):
    tokens_B = data.batch["response_mask"].sum(1)
    assert set(tokens_B.tolist()) == {0, TOKENS}
    return torch.nonzero(tokens_B == 0).flatten().tolist()


def test_other_estimators_copy_no_column_that_they_are_not_given():
    # opo, rows that vote only: rewards, response_mask, old_log_probs; and the scattered result.
    # responses, which is not given to it, is not copied.
    selected = batch(masked=[1, 9, 17])
    del selected.batch["responses"]
    assert allocations(batch(masked=[1, 9, 17]), "opo") == allocations(selected, "opo")


def measured(masked=(), critic=False, **wide):
    """A batch after the advantage step: what verl's data metrics read, and `wide` columns beside."""
    data = batch(masked=masked)
    prompt = torch.ones(ROWS, 8, dtype=torch.long)
    data.batch["token_level_scores"] = data.batch["token_level_rewards"]
    data.batch["prompts"] = prompt
    data.batch["attention_mask"] = torch.cat([prompt, data.batch["response_mask"]], dim=1)
    if critic:
        data.batch["values"] = torch.arange(ROWS * TOKENS).reshape(ROWS, TOKENS) / 7.0
    del data.batch["old_log_probs"]
    data = ray_trainer.compute_advantage(data, adv_estimator="grpo")
    for name, column in wide.items():
        data.batch[name] = column
    return data


def of_data(data, critic=False):
    with Allocations(ROWS * TOKENS // 2) as seen:
        metrics = ray_trainer.compute_data_metrics(data, use_critic=critic)
    return {name: value for name, value in metrics.items() if not name.startswith(RUN_PREFIX)}, seen.made


@pytest.mark.parametrize("critic", [False, True])
def test_the_metrics_of_a_masked_step_copy_no_column_that_verl_does_not_read(critic):
    broken = torch.full((ROWS, TOKENS), float("nan"))
    wide = dict.fromkeys(NOT_IN_METRICS, broken)
    plain, made = of_data(measured([1, 9], critic), critic)
    assert plain["mask_sample/masked_pct"] == 100 * 2 / ROWS
    assert ("critic/values/mean" in plain) == critic
    assert of_data(measured([1, 9], critic, **wide), critic) == (plain, made)
