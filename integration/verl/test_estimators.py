"""Real verl: for each estimator, masked rows might as well not exist, bit for bit."""

import numpy as np
import pytest

pytest.importorskip("verl", reason="verl is not installed in this environment")
import torch
from omegaconf import OmegaConf
from verl import DataProto
from verl.trainer.ppo import core_algos, ray_trainer

ESTIMATORS = sorted(str(getattr(name, "value", name)) for name in core_algos.ADV_ESTIMATOR_REGISTRY)
ALGORITHM = OmegaConf.create(
    {
        "gamma": 1.0,
        "lam": 0.95,
        "norm_adv_by_std_in_grpo": True,
        "use_pf_ppo": False,
        "gdpo_reward_keys": ["a", "b"],
    }
)
TRASH = (float("nan"), float("inf"), -float("inf"), 1e6)


pytestmark = pytest.mark.usefixtures("plugin")


def random_batch(seed: int) -> tuple[DataProto, np.ndarray]:
    """Ragged groups of 1 to 6 rows; about a third of the rows masked and full of trash."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 7, size=4)
    uid = np.repeat([f"u{group}" for group in range(4)], sizes).astype(object)
    order = rng.permutation(len(uid))
    uid, size, width = uid[order], len(uid), 7
    lengths = torch.from_numpy(rng.integers(2, width + 1, size))
    mask = (torch.arange(width)[None] < lengths[:, None]).long()
    masked = rng.random(size) < 0.35

    def tokens() -> torch.Tensor:
        return torch.from_numpy(rng.normal(size=(size, width)).astype(np.float32))

    rewards = torch.zeros(size, width)
    rewards[torch.arange(size), lengths - 1] = torch.from_numpy(rng.integers(0, 5, size) / 4).float()
    tensors = {
        "token_level_rewards": rewards,
        "values": tokens(),
        "old_log_probs": -tokens().abs(),
        "sum_pi_squared": tokens().abs().clamp(max=1),
        "reward_baselines": torch.from_numpy(rng.random(size).astype(np.float32)),
    }
    for tensor in tensors.values():
        for row in np.flatnonzero(masked):
            tensor[row] = TRASH[rng.integers(len(TRASH))]
    components = {name: rng.random(size) for name in ("a", "b")}
    for column in components.values():
        column[masked] = np.nan
    batch = DataProto.from_dict(
        tensors={
            **tensors,
            "token_level_scores": tensors["token_level_rewards"].clone(),
            "response_mask": mask,
            "prompts": torch.ones(size, 3).long(),
            "attention_mask": torch.cat([torch.ones(size, 3).long(), mask], 1),
        },
        non_tensors={"uid": uid, "mask_sample": masked, **components},
    )
    return batch, masked


def copy(data: DataProto) -> DataProto:
    columns = {name: column.copy() for name, column in data.non_tensor_batch.items()}
    return DataProto(batch=data.batch.clone(), non_tensor_batch=columns, meta_info={})


def compute(function, data: DataProto, estimator: str, algorithm=ALGORITHM) -> DataProto:
    data = copy(data)
    if estimator != "remax":
        data.batch.pop("reward_baselines")
    return function(data, adv_estimator=estimator, gamma=1.0, lam=0.95, config=algorithm)


def rows_that_train(uid: np.ndarray, masked: np.ndarray, group_relative: bool) -> np.ndarray:
    """The rule written out row by row: unmasked, and at least two such rows in the group."""
    rows = []
    for row, group in enumerate(uid):
        voters = sum(uid[other] == group and not masked[other] for other in range(len(uid)))
        rows.append(not masked[row] and (voters >= 2 or not group_relative))
    return np.array(rows)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_trained_rows_are_those_of_verl_with_the_other_rows_deleted(estimator):
    stock = ray_trainer.compute_advantage.__wrapped__
    relative = estimator not in ("gae", "reinforce_plus_plus", "remax")
    trained_batches = 0
    for seed in range(200):
        data, masked = random_batch(seed)
        trains = rows_that_train(data.non_tensor_batch["uid"], masked, relative)
        result = compute(ray_trainer.compute_advantage, data, estimator)
        for name in ("advantages", "returns"):
            assert (result.batch[name][~torch.from_numpy(trains)] == 0).all(), (seed, name)
        if trains.any():
            deleted = compute(stock, data.select_idxs(trains), estimator)
            for name in ("advantages", "returns"):
                assert torch.equal(result.batch[name][torch.from_numpy(trains)], deleted.batch[name]), seed
            trained_batches += 1
    assert trained_batches > 150


def test_all_fourteen_estimators_are_tried():
    assert len(ESTIMATORS) == 14
