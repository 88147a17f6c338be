"""Real gdpo: a component that was not measured for a row is out of that component's statistics only."""

import numpy as np
import pytest

pytest.importorskip("verl", reason="verl is not installed in this environment")
import torch
from omegaconf import OmegaConf
from verl import DataProto
from verl.trainer.ppo import core_algos, ray_trainer

import samplemask_verl
from samplemask_verl.verify import VerificationError

pytestmark = pytest.mark.usefixtures("plugin")


def batch(a, b, masked=None, uid="pppp"):
    size = len(a)
    columns = {"uid": np.array(list(uid), dtype=object), "mask_sample": np.array(masked or [False] * size)}
    for name, values in (("a", a), ("b", b)):
        columns[name] = np.empty(size, dtype=object)
        columns[name][:] = values
    tensors = {
        "token_level_rewards": torch.zeros(size, 2),
        "response_mask": torch.ones(size, 2).long(),
        "prompts": torch.ones(size, 3).long(),
        "attention_mask": torch.ones(size, 5).long(),
    }
    return DataProto.from_dict(tensors=tensors, non_tensors=columns)


def advantages(data, function=None, **options):
    config = OmegaConf.create({"gdpo_reward_keys": ["a", "b"], **options})
    return (function or ray_trainer.compute_advantage)(data, adv_estimator="gdpo", config=config).batch[
        "advantages"
    ][:, 0]


def by_hand(a, b):
    """GDPO written out: normalise each component over the rows that have it, add, whiten over all tokens."""
    total = torch.zeros(len(a))
    for component in (a, b):
        measured = [row for row, value in enumerate(component) if value is not None]
        values = torch.tensor([component[row] for row in measured], dtype=torch.float32)
        total[measured] += (values - values.mean()) / (values.std() + 1e-6)
    tokens = total.repeat_interleave(2)
    return (total - tokens.mean()) * torch.rsqrt(tokens.var() + 1e-8)


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_a_missing_component_leaves_the_others_alone(missing):
    a, b = [1.0, 0.0, 1.0, 0.0], [0.5, 0.1, 0.2, missing]
    expected = by_hand(a, [0.5, 0.1, 0.2, None])
    assert advantages(batch(a, b)).tolist() == pytest.approx(expected.tolist(), abs=1e-5)


def test_without_the_plugin_one_missing_component_makes_everything_nan():
    stock = ray_trainer.compute_advantage.__wrapped__
    samplemask_verl.uninstall()
    try:
        assert torch.isnan(advantages(batch([1.0, 0.0, 1.0, 0.0], [0.5, 0.1, 0.2, None]), stock)).all()
    finally:
        samplemask_verl.install()


def test_a_component_that_only_one_row_has_says_nothing():
    a, b = [1.0, 0.0, 1.0, 0.0], [0.5, None, None, None]
    assert advantages(batch(a, b)).tolist() == pytest.approx(by_hand(a, [None] * 4).tolist(), abs=1e-5)


def test_masked_rows_and_missing_components_together():
    masked = [False, False, True, False, False]
    data = batch([1.0, 0.0, 9.0, 1.0, 0.0], [0.5, 0.1, None, 0.2, None], masked, uid="ppppp")
    expected = by_hand([1.0, 0.0, 1.0, 0.0], [0.5, 0.1, 0.2, None]).tolist()
    result = advantages(data).tolist()
    assert result[2] == 0.0
    assert result[:2] + result[3:] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize(
    ("a", "b", "masked", "left_out"),
    [
        ([1.0, 0.0, 1.0, 0.0], [0.5, None, 0.2, None], None, 2),
        ([1.0, None, 1.0, 0.0], [0.5, 0.1, float("nan"), 0.2], None, 2),
        ([1.0, 0.0, 9.0, 1.0, 0.0], [0.5, 0.1, None, 0.2, None], [False, False, True, False, False], 1),
        ([1.0, 0.0, 1.0, 0.0], [0.5, 0.1, 0.2, 0.3], None, None),
    ],
)
def test_values_that_were_not_measured_are_counted_once(a, b, masked, left_out, verify):
    data = batch(a, b, masked, uid="p" * len(a))
    advantages(data, mask_sample={"verify": verify})
    columns = ("token_level_scores", "token_level_rewards", "returns", "responses")
    for name in columns:
        data.batch[name] = data.batch["advantages"] if name != "responses" else data.batch["response_mask"]
    metrics = ray_trainer.compute_data_metrics(data, use_critic=False)
    assert metrics.get("mask_sample/components_unmeasured") == left_out
    assert "critic/score/mean" in metrics


def test_complete_components_are_verls_own_bit_for_bit():
    data = batch([1.0, 0.0, 1.0, 0.0], [0.5, 0.1, 0.2, 0.0])
    stock = advantages(
        batch([1.0, 0.0, 1.0, 0.0], [0.5, 0.1, 0.2, 0.0]), ray_trainer.compute_advantage.__wrapped__
    )
    assert torch.equal(advantages(data), stock)


def test_verify_passes_on_verls_own_estimators():
    data = batch([1.0, 0.0, 9.0, 1.0], [0.5, 0.1, 0.3, 0.2], [False, False, True, False])
    plain = batch([1.0, 0.0, 9.0, 1.0], [0.5, 0.1, 0.3, 0.2], [False, False, True, False])
    verified = advantages(data, mask_sample={"verify": True})
    assert torch.equal(verified, advantages(plain))


def test_verify_stops_a_run_whose_estimator_keeps_state(monkeypatch):
    calls = []

    def stateful(token_level_rewards, response_mask, index=None, **kwargs):
        calls.append(1)
        advantage = token_level_rewards + len(calls)
        return advantage, advantage

    monkeypatch.setitem(core_algos.ADV_ESTIMATOR_REGISTRY, "stateful", stateful)
    data = batch([1.0, 0.0, 9.0, 1.0], [0.5, 0.1, 0.3, 0.2], [False, False, True, False])
    with pytest.raises(
        VerificationError, match=r"found that their content moves 3 rows: row 0, row 1, row 3"
    ):
        ray_trainer.compute_advantage(
            data, adv_estimator="stateful", config=OmegaConf.create({"mask_sample": {"verify": True}})
        )
