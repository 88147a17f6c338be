"""Real NeMo-RL: for each of its estimators, masked rows might as well not exist, bit for bit."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from nemo_rl.algorithms import advantage_estimator as host
from nemo_rl.algorithms.loss import ClippedPGLossConfig
from nemo_rl.distributed.batched_data_dict import BatchedDataDict

TRASH = (float("nan"), float("inf"), -float("inf"), 1e6)
GAE = {
    "name": "gae", "gae_lambda": 0.9, "gae_gamma": 0.99, "normalize_advantages": True,
    "gae_lambda_value": None, "gae_lambda_policy": 0.95, "length_adaptive_alpha": 0.0,
}  # fmt: skip


def loss_config(**options):
    return ClippedPGLossConfig(ratio_clip_min=0.2, ratio_clip_max=0.2, ratio_clip_c=None, **options)


def config(**options):
    return host.AdvEstimatorConfig(**options)


ESTIMATORS = {
    **{
        f"{name}-{'loo' if loo else 'mean'}-{'std' if norm else 'plain'}": (
            maker, config(name=name, use_leave_one_out_baseline=loo, normalize_rewards=norm),
        )
        for name, maker in (("grpo", host.GRPOAdvantageEstimator), ("gdpo", host.GDPOAdvantageEstimator))
        for loo in (False, True)
        for norm in (False, True)
    },
    "reinforce++-baseline": (host.ReinforcePlusPlusAdvantageEstimator, config(minus_baseline=True)),
    "reinforce++": (host.ReinforcePlusPlusAdvantageEstimator, config(minus_baseline=False)),
    "raw": (host.RawRewardAdvantageEstimator, {"normalize_advantages": True}),
    "gae": (host.GeneralizedAdvantageEstimator, GAE),
    "opd": (host.OPDAdvantageEstimator, {"name": "opd"}),
}  # fmt: skip
RELATIVE = [name for name in ESTIMATORS if name.startswith(("grpo", "gdpo", "reinforce++-"))]


def make(name):
    maker, options = ESTIMATORS[name]
    return maker(options, loss_config(use_kl_in_reward=True, reference_policy_kl_penalty=0.1))


def random_batch(seed):
    """Ragged groups of 1 to 6 rows with 3-token prompts; a third of the rows masked and full of trash."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 7, size=4)
    group = rng.permutation(np.repeat(np.arange(4), sizes))
    size, width = len(group), 6
    masked = rng.random(size) < 0.35

    def numbers(*shape):
        values = torch.from_numpy(rng.normal(size=shape).astype(np.float32))
        for row in np.flatnonzero(masked):
            values[row] = TRASH[rng.integers(len(TRASH))]
        return values

    mask = (torch.arange(width)[None] < torch.from_numpy(rng.integers(1, width + 1, size))[:, None]).float()
    overlong = torch.from_numpy(rng.random(size) < 0.1)  # the host's own exclusion: no loss, but a vote
    rewards = torch.from_numpy(rng.integers(0, 5, size) / 4).float()
    rewards[torch.from_numpy(masked)] = numbers(size)[torch.from_numpy(masked)]
    mask[overlong] = 0
    prompts = torch.from_numpy(rng.integers(0, 9, (4, 3)))[torch.from_numpy(group)]
    prompts[:, 0] = torch.from_numpy(group)
    arguments = {
        "prompt_ids": prompts,
        "rewards": rewards,
        "mask": mask,
        "logprobs_policy": -numbers(size, width).abs(),
        "logprobs_reference": -numbers(size, width).abs(),
        "logprobs": -numbers(size, width).abs(),
        "reference_logprobs": -numbers(size, width).abs(),
        "values": numbers(size, width),
        "teacher_logprobs": numbers(size, width),
        "prev_logprobs": numbers(size, width),
    }
    columns = {"reward/a": numbers(size), "reward/b": numbers(size), "mask_sample": torch.from_numpy(masked)}
    return arguments, columns, group, masked


def rows_that_train(group, masked, relative):
    """The rule written out row by row: unmasked, and at least two such rows in the group."""
    kept = []
    for row, this in enumerate(group):
        voters = sum(group[other] == this and not masked[other] for other in range(len(group)))
        kept.append(not masked[row] and (voters >= 2 or not relative))
    return torch.from_numpy(np.array(kept))


def arguments_of(estimator, arguments):
    names = ("prompt_ids", "rewards", "mask")
    if isinstance(estimator, host.GeneralizedAdvantageEstimator):
        names += ("values", "logprobs", "reference_logprobs")
    elif isinstance(estimator, host.OPDAdvantageEstimator):
        names += ("teacher_logprobs", "prev_logprobs")
    else:
        names += ("logprobs_policy", "logprobs_reference")
    return {name: arguments[name].clone() for name in names}


def outputs(answer):
    return [part for part in (answer if isinstance(answer, tuple) else (answer,)) if part is not None]


@pytest.mark.parametrize("name", ESTIMATORS)
def test_trained_rows_are_those_of_nemo_rl_with_the_other_rows_deleted(adapter, name):
    estimator = make(name)
    stock = type(estimator).compute_advantage.__wrapped__
    trained_batches = 0
    for seed in range(200):
        arguments, columns, group, masked = random_batch(seed)
        trains = rows_that_train(group, masked, name in RELATIVE)
        given = arguments_of(estimator, arguments)
        result = estimator.compute_advantage(**given, repeated_batch=BatchedDataDict(columns))
        for part in outputs(result):
            assert (part[~trains] == 0).all(), seed
        if not trains.any() or not given["mask"][trains].any():
            continue
        deleted = stock(
            estimator,
            **{key: value[trains] for key, value in given.items()},
            repeated_batch=BatchedDataDict({key: value[trains] for key, value in columns.items()}),
        )
        for part, expected in zip(outputs(result), outputs(deleted), strict=True):
            assert torch.equal(part[trains], expected), seed
        trained_batches += 1
    assert trained_batches > 150


@pytest.mark.parametrize("name", ESTIMATORS)
def test_without_masked_rows_the_values_are_the_stock_values(adapter, name):
    estimator = make(name)
    stock = type(estimator).compute_advantage.__wrapped__
    for seed in range(1000, 1050):
        arguments, columns, _, _ = random_batch(seed)
        clean = {key: torch.nan_to_num(value, 0.5, 0.5, 0.5) for key, value in arguments.items()}
        columns = {
            key: torch.nan_to_num(value, 0.5, 0.5, 0.5) for key, value in columns.items() if "/" in key
        }
        given = arguments_of(estimator, clean)
        result = estimator.compute_advantage(**given, repeated_batch=dict(columns))
        expected = stock(estimator, **given, repeated_batch=dict(columns))
        for part, other in zip(outputs(result), outputs(expected), strict=True):
            assert torch.equal(torch.nan_to_num(part, 7.0), torch.nan_to_num(other, 7.0)), seed


def test_four_rows_with_one_masked_give_the_published_numbers(adapter):
    given = {
        "prompt_ids": torch.ones(4, 3, dtype=torch.long),
        "rewards": torch.tensor([1.0, 1.0, 0.0, 0.0]),
        "mask": torch.ones(4, 1),
        "repeated_batch": {"mask_sample": torch.tensor([False, True, False, False])},
    }
    plain = make("grpo-mean-plain").compute_advantage(**given)
    scaled = make("grpo-mean-std").compute_advantage(**given)
    loo = make("grpo-loo-plain").compute_advantage(**given)
    torch.testing.assert_close(plain[:, 0], torch.tensor([2 / 3, 0, -1 / 3, -1 / 3]))
    torch.testing.assert_close(scaled[:, 0], torch.tensor([1.1547, 0, -0.57735, -0.57735]), atol=1e-4, rtol=0)
    torch.testing.assert_close(loo[:, 0], torch.tensor([1.0, 0, -0.5, -0.5]))


def test_a_row_that_only_nemo_rl_excludes_keeps_its_vote(adapter):
    mask = torch.ones(4, 2)
    mask[3] = 0  # overlong
    given = {
        "prompt_ids": torch.ones(4, 3, dtype=torch.long),
        "rewards": torch.tensor([1.0, 9.0, 1.0, 0.0]),
        "mask": mask,
        "repeated_batch": {"mask_sample": torch.tensor([False, True, False, False])},
    }
    advantages = make("grpo-mean-plain").compute_advantage(**given)
    torch.testing.assert_close(advantages[:, 0], torch.tensor([1 / 3, 0.0, 1 / 3, -2 / 3]))


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_batch_without_voters_gives_zeros_in_the_form_of_the_estimator(adapter, name):
    estimator = make(name)
    arguments, columns, group, _ = random_batch(3)
    columns["mask_sample"] = torch.ones(len(group), dtype=torch.bool)
    result = estimator.compute_advantage(**arguments_of(estimator, arguments), repeated_batch=columns)
    assert isinstance(result, tuple) == (name in ("raw", "gae"))
    for part in outputs(result):
        assert part.shape == arguments["mask"].shape
        assert (part == 0).all()


@pytest.mark.parametrize("flags", [None, [False, True, False, False]])
def test_gdpo_may_be_given_no_rewards(adapter, flags):
    components = {
        "reward/a": torch.tensor([1.0, 0.0, 0.25, 0.5]),
        "reward/b": torch.tensor([0.0, 1.0, 1.0, 0.0]),
    }
    batch = components if flags is None else {**components, "mask_sample": torch.tensor(flags)}
    results = [
        make("gdpo-mean-plain").compute_advantage(
            torch.ones(4, 3, dtype=torch.long), rewards, torch.ones(4, 1), repeated_batch=dict(batch)
        )
        for rewards in (None, sum(components.values()))
    ]
    assert torch.equal(*results)
    assert results[0].any()


def test_of_a_row_without_any_measured_component_gdpo_has_no_reward(adapter):
    nan = float("nan")
    batch = {"reward/a": torch.tensor([1.0, 0.0, nan, 1.0]), "reward/b": torch.tensor([0.0, 0.0, nan, 1.0])}
    results = [
        make("gdpo-mean-plain").compute_advantage(
            torch.ones(4, 3, dtype=torch.long), rewards, torch.ones(4, 1), repeated_batch=dict(batch)
        )
        for rewards in (None, torch.tensor([1.0, 0.0, nan, 2.0]))
    ]
    assert torch.equal(*results)
    # Without row 2: together 0, -1, 1, whose mean is 0 and whose standard deviation is 1.
    torch.testing.assert_close(results[0][:, 0], torch.tensor([0.0, -1.0, 0.0, 1.0]))


def test_a_component_that_was_not_measured_leaves_only_its_own_statistics(adapter):
    estimator = make("gdpo-mean-plain")
    nan = float("nan")
    batch = {
        "reward/a": torch.tensor([1.0, 0.0, nan, 0.5]),
        "reward/b": torch.tensor([0.0, 1.0, 1.0, 0.0]),
        "mask_sample": torch.zeros(4, dtype=torch.bool),
    }
    result = estimator.compute_advantage(
        torch.ones(4, 3, dtype=torch.long), torch.zeros(4), torch.ones(4, 1), repeated_batch=batch
    )[:, 0]
    # Means over the rows that have a value: a 0.5, b 0.5. Row 2 has only b.
    together = torch.tensor([0.5 - 0.5, -0.5 + 0.5, 0.5, 0.0 - 0.5])
    torch.testing.assert_close(result, (together - together.mean()) / together.std())


def test_newer_estimators_that_take_valid_mask_get_it_for_the_voting_rows_only(adapter):
    from samplemask_nemo_rl.estimators import wrap_compute_advantage

    seen = []

    def newer(self, prompt_ids, rewards, mask, valid_mask=None, **kwargs):
        seen.append((rewards.tolist(), valid_mask.tolist()))
        return rewards.unsqueeze(-1).expand(mask.shape)

    advantages = wrap_compute_advantage(newer)(
        SimpleNamespace(use_leave_one_out_baseline=False),
        torch.ones(3, 2, dtype=torch.long), torch.tensor([5.0, float("nan"), 7.0]), torch.ones(3, 2),
        valid_mask=torch.tensor([1.0, 0.0, 1.0]),
        repeated_batch={"mask_sample": torch.tensor([False, True, False])},
    )  # fmt: skip
    assert seen == [([5.0, 7.0], [1.0, 1.0])]
    assert advantages[:, 0].tolist() == [5.0, 0.0, 7.0]


@pytest.mark.parametrize("digits", [0, 3])
@pytest.mark.parametrize("name", ["grpo-mean-std", "grpo-loo-std", "reinforce++-baseline"])
def test_large_batches_have_the_stock_values_too(adapter, name, digits):
    rng = np.random.default_rng(digits)
    group = rng.permutation(np.repeat(np.arange(160), rng.integers(1, 12, 160)))  # about 960 rows
    rewards = torch.from_numpy(np.round(rng.random(len(group)), digits)).float()
    masked = torch.from_numpy(rng.random(len(group)) < 0.1)
    prompts = torch.from_numpy(rng.integers(0, 9, (160, 5)))[torch.from_numpy(group)]
    prompts[:, 0] = torch.from_numpy(group)
    mask = torch.ones(len(group), 2)
    estimator = make(name)
    stock = type(estimator).compute_advantage.__wrapped__
    whole = estimator.compute_advantage(prompts, rewards, mask)
    assert torch.equal(whole, stock(estimator, prompts, rewards, mask))
    trains = rows_that_train(group, masked.numpy(), True)
    result = estimator.compute_advantage(prompts, rewards, mask, repeated_batch={"mask_sample": masked})
    deleted = stock(estimator, prompts[trains], rewards[trains], mask[trains])
    assert torch.equal(result[trains], deleted)
    assert (result[~trains] == 0).all()
