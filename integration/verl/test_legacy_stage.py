"""Real verl, legacy trainer: KL in the reward and rollout correction see only the rows that vote."""

import numpy as np
import pytest

pytest.importorskip("verl", reason="verl is not installed in this environment")
import torch
from omegaconf import OmegaConf
from verl import DataProto
from verl.trainer.ppo import core_algos, ray_trainer, rollout_corr_helper

KEPT = [0, 2, 3]
TRASH = (float("nan"), float("inf"), 50.0)
NORMALISED = {"rollout_is": "token", "rollout_is_threshold": 2.0, "rollout_is_batch_normalize": True}


pytestmark = pytest.mark.usefixtures("plugin")


class Trainer(ray_trainer.RayPPOTrainer):
    """Only the two stages of verl's loop that come before the advantages, as `fit` calls them."""

    def __init__(self, estimator, mask_sample):
        algorithm = {"adv_estimator": estimator, "mask_sample": mask_sample}
        self.config = OmegaConf.create({"algorithm": algorithm})
        self.controller = core_algos.AdaptiveKLController(0.2, 0.1, 1000)


def fit(self):
    data, kl = ray_trainer.apply_kl_penalty(self.data, self.controller, kl_penalty="kl")
    data, correction = rollout_corr_helper.compute_rollout_correction_and_add_to_batch(
        data, OmegaConf.create(NORMALISED)
    )
    self.data = data
    return {**kl, **correction}


def staged(monkeypatch, data, estimator="grpo", mask_sample=None):
    """Run both stages inside samplemask's wrapper of `fit`, whose own loop needs a cluster."""
    from samplemask_verl.legacy_stage import wrap_fit

    monkeypatch.setattr(Trainer, "fit", wrap_fit(fit))
    trainer = Trainer(estimator, mask_sample or {})
    trainer.data = data
    return trainer, trainer.fit()


def batch(masked=(False, True, False, False), trash=None):
    random = torch.Generator().manual_seed(0)
    names = ("old_log_probs", "ref_log_prob", "rollout_log_probs")
    tensors = {name: -torch.rand(4, 3, generator=random) for name in names}
    tensors["token_level_scores"] = torch.tensor([[0.0, 0, 1], [0, 0, 1], [0, 0, 0], [0, 0, 0]])
    if trash is not None:
        for tensor in tensors.values():
            tensor[1] = trash
    tensors["response_mask"] = torch.ones(4, 3).long()
    columns = {"uid": np.array(["p"] * 4, dtype=object), "mask_sample": np.array(masked, dtype=object)}
    return DataProto.from_dict(tensors=tensors, non_tensors=columns)


@pytest.mark.parametrize("estimator", ["grpo", "gae"])
@pytest.mark.parametrize("trash", TRASH)
def test_masked_rows_move_neither_the_kl_controller_nor_the_normalised_weights(monkeypatch, trash, estimator):
    full, metrics = staged(monkeypatch, batch(trash=trash), estimator)
    gone, expected = staged(monkeypatch, batch().select_idxs(np.array(KEPT)), estimator)
    assert full.controller.value == gone.controller.value == pytest.approx(0.2 * (1 - 0.2 * 3 / 1000))
    assert metrics == expected
    for name in ("token_level_rewards", "rollout_is_weights", "response_mask"):
        assert torch.equal(full.data.batch[name][KEPT], gone.data.batch[name]), name


def test_a_reward_that_is_no_number_stays_visible(monkeypatch):
    data = batch(masked=[False] * 4)
    data.batch["token_level_scores"][1, 2] = float("nan")
    trainer, _ = staged(monkeypatch, data)
    assert trainer.data.batch["token_level_rewards"][1].isnan().any()
    assert not trainer.data.batch["token_level_rewards"][KEPT].isnan().any()


def test_a_batch_that_is_all_masked_leaves_the_controller_alone(monkeypatch):
    trainer, metrics = staged(monkeypatch, batch(masked=[True] * 4, trash=float("nan")))
    assert trainer.controller.value == 0.2
    assert metrics == {}


@pytest.mark.parametrize(
    ("masked", "policy"),
    [
        ([False] * 4, {}),
        ([False, True, False, False], {"action": "ignore"}),
        ([False, True, False, False], {"action": "loss_multiplier"}),
    ],
)
def test_where_every_row_votes_verl_sees_them_all(monkeypatch, masked, policy):
    ours, metrics = staged(monkeypatch, batch(masked), mask_sample=policy)
    stock = Trainer("grpo", {"action": "ignore"})
    stock.data = batch(masked)
    assert metrics == fit(stock)
    assert ours.controller.value == stock.controller.value
    for name in ("token_level_rewards", "rollout_is_weights", "response_mask"):
        assert torch.equal(ours.data.batch[name], stock.data.batch[name]), name
