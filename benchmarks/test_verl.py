"""verl's advantage computation, stock and with samplemask, in groups of 16."""

import numpy as np
import pytest

pytest.importorskip("verl", reason="verl is not installed in this environment")
import torch
from verl import DataProto
from verl.trainer.ppo import ray_trainer

import samplemask_verl

GROUP = 16
SHORT, LONG = 256, 2048
"""Response tokens."""
ROWS = {SHORT: (512, 4096, 16384, 65536), LONG: (512, 4096)}
SIZES = [
    *(("grpo_vectorized", tokens, rows) for tokens in ROWS for rows in ROWS[tokens]),
    *(("grpo", SHORT, rows) for rows in ROWS[SHORT]),
]
HELD = "10 % masked, and the trainer holds the mask too"
CASES = ("stock", "healthy, flag column", "healthy, reward_extra_info", "10 % masked, flag column", HELD)


@pytest.fixture(scope="module", autouse=True)
def _plugin():
    torch.set_num_threads(1)
    samplemask_verl.install()
    yield
    samplemask_verl.uninstall()


def batch(rows, case, tokens=SHORT):
    chance = np.random.default_rng(0)
    rewards = torch.zeros(rows, tokens)
    rewards[:, -1] = torch.from_numpy(chance.integers(0, 5, rows) / 4).float()
    flags = chance.random(rows) < (0.1 if "masked" in case else 0.0)
    ids = [f"{prompt:08x}-0000-4000-8000-{prompt:012x}" for prompt in range(rows // GROUP)]
    columns = {"uid": np.array(ids, dtype=object).repeat(GROUP)}  # as DataProto.repeat leaves them
    if "reward_extra_info" in case:
        infos = [{"score": 1.0, "mask_sample": bool(flag), "failure_kind": ""} for flag in flags]
        columns["reward_extra_info"] = np.array(infos, dtype=object)
    else:
        columns["mask_sample"] = flags
    tensors = {"token_level_rewards": rewards, "response_mask": torch.ones(rows, tokens, dtype=torch.long)}
    return DataProto.from_dict(tensors=tensors, non_tensors=columns)


def megabytes(call, data):
    """What torch allocates during one call."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as seen:
        call(data)
    return sum(max(event.self_cpu_memory_usage, 0) for event in seen.key_averages()) / 1e6


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("estimator", "tokens", "rows"), SIZES)
def test_advantages(measure, turn, estimator, tokens, rows, case):
    data = batch(rows, case, tokens)

    def fresh():
        # The call adds columns and zeroes rows of the response mask: each round starts from the same batch.
        columns = dict(data.non_tensor_batch)
        tensors = data.batch.clone(recurse=False)
        if case != HELD:
            tensors["response_mask"] = tensors["response_mask"].clone()
        return DataProto(batch=tensors, non_tensor_batch=columns, meta_info={})

    wrapped = ray_trainer.compute_advantage
    function = wrapped.__wrapped__ if case == "stock" else wrapped

    def call(data):
        return function(data, adv_estimator=estimator)

    said = {"table": f"verl {estimator}, {tokens:,} response tokens", "rows": rows, "case": case}
    if turn == 0 and rows * tokens <= 16384 * SHORT and estimator != "grpo":
        said["megabytes"] = megabytes(call, fresh())
    quick = estimator != "grpo" and rows * tokens < 65536 * SHORT
    measure(call, fresh, rounds=9 if quick else 2, **said)


METRICS = ("stock", "healthy", "10 % masked")


@pytest.mark.parametrize("case", METRICS)
@pytest.mark.parametrize("tokens", [SHORT, LONG])
@pytest.mark.parametrize("rows", [512, 4096])
def test_data_metrics(measure, tokens, rows, case):
    data = batch(rows, case, tokens)
    sizes = {
        "prompts": GROUP,
        "attention_mask": GROUP + tokens,
        "input_ids": GROUP + tokens,
        "responses": tokens,
    }
    for name, size in sizes.items():
        data.batch[name] = torch.ones(rows, size, dtype=torch.long)
    for name in ("old_log_probs", "rollout_log_probs", "ref_log_prob"):
        data.batch[name] = torch.zeros(rows, tokens)
    data.batch["token_level_scores"] = data.batch["token_level_rewards"]
    data = ray_trainer.compute_advantage(data, adv_estimator="grpo_vectorized")
    wrapped = ray_trainer.compute_data_metrics
    function = wrapped.__wrapped__ if case == "stock" else wrapped
    table = f"verl compute_data_metrics, {tokens:,} response tokens"

    def call(data):
        return function(data, use_critic=False)

    measure(call, lambda: data, rounds=3, table=table, rows=rows, case=case)
