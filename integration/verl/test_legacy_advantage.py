"""Real verl, legacy trainer's path: the flag lives in `non_tensor_batch`."""

import logging

import numpy as np
import pytest

pytest.importorskip("verl", reason="verl is not installed in this environment")
import torch
from omegaconf import OmegaConf
from verl import DataProto
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo import core_algos, ray_trainer

from samplemask import ContractError, OutageError, failure_kinds
from samplemask_verl import masked, reward_dict, scored

pytestmark = pytest.mark.usefixtures("plugin")


def batch(rewards, uid="pppp", **columns):
    size = len(rewards)
    tokens = torch.zeros(size, 3)
    tokens[:, 2] = torch.tensor(rewards)
    tensors = {"token_level_rewards": tokens, "response_mask": torch.ones(size, 3).long()}
    arrays = {"uid": np.array(list(uid), dtype=object)}
    for name, values in columns.items():
        arrays[name] = np.empty(size, dtype=object)
        arrays[name][:] = values
    return DataProto.from_dict(tensors=tensors, non_tensors=arrays)


def advantages(data, estimator="grpo", mask_sample=None, norm=False, **algorithm):
    config = OmegaConf.create({"mask_sample": mask_sample or {}, **algorithm})
    result = ray_trainer.compute_advantage(
        data, adv_estimator=estimator, norm_adv_by_std_in_grpo=norm, config=config
    )
    assert result is data
    return [round(float(row[0]), 3) for row in result.batch["advantages"]]


FLAGS = {
    "bool": [False, True, False, False],
    "numpy bool": [np.bool_(False), np.bool_(True), np.bool_(False), np.bool_(False)],
    "strings, as verl's dump writes them": ["False", "True", "False", "False"],
    "numbers": [0, 1, 0, 0],
    "absent for the others": [None, True, None, None],
    "0-d tensors": [torch.tensor(flag) for flag in (False, True, False, False)],
}


@pytest.mark.parametrize("flags", FLAGS.values(), ids=FLAGS.keys())
def test_a_flag_column_takes_the_vote(flags):
    assert advantages(batch([1, 1, 0, 0], mask_sample=flags)) == [0.667, 0.0, -0.333, -0.333]


@pytest.mark.parametrize("kind", [torch.bool, torch.long, torch.float, torch.bfloat16])
def test_a_flag_column_among_the_tensors_takes_the_vote(kind):
    data = batch([1, 1, 0, 0])
    data.batch["mask_sample"] = torch.tensor([0, 1, 0, 0]).to(kind)
    assert advantages(data) == [0.667, 0.0, -0.333, -0.333]
    assert data.batch["response_mask"].sum(dim=1).tolist() == [3, 0, 3, 3]


def test_a_tensor_flag_that_cannot_be_read_names_its_row():
    data = batch([1, 1, 0, 0])
    data.batch["mask_sample"] = torch.tensor([0, 0, 2, 0])
    with pytest.raises(ContractError, match=r"^row 2 of the batch: mask_sample"):
        advantages(data)


def test_each_samples_own_dict_takes_the_vote_where_columns_were_lost():
    # verl takes its columns from sample 0; each sample's whole dict survives in reward_extra_info.
    infos = [{"score": 1.0}, {"score": 1.0, "mask_sample": True}, {"score": 0.0}, None]
    assert advantages(batch([1, 1, 0, 0], reward_extra_info=infos)) == [0.667, 0.0, -0.333, -0.333]


def test_an_agent_loops_false_does_not_overrule_the_reward_function():
    infos = [scored(1.0), masked("session_lost"), scored(0.0), scored(0.0)]
    data = batch([1, 1, 0, 0], reward_extra_info=infos, mask_sample=[False] * 4)
    assert advantages(data) == [0.667, 0.0, -0.333, -0.333]


def test_normalised_by_std():
    data = batch([1, 1, 0, 0], mask_sample=[False, True, False, False])
    assert advantages(data, norm=True) == [1.155, 0.0, -0.577, -0.577]


def test_a_column_of_true_strings_false_masks_nothing():
    assert advantages(batch([1, 1, 0, 0], mask_sample=["False"] * 4)) == [0.5, 0.5, -0.5, -0.5]


@pytest.mark.parametrize("flag", ["maybe", 2, [True]])
def test_an_unreadable_flag_is_an_error_that_names_it(flag):
    with pytest.raises(ContractError, match="row 1 of the batch: mask_sample: expected a bool"):
        advantages(batch([1, 1, 0, 0], mask_sample=[False, flag, False, False]))


def test_a_policy_error_names_the_option_and_its_place():
    with pytest.raises(ContractError, match=r"algorithm.mask_sample: min_valid: .* found 0"):
        advantages(batch([1, 0], uid="pp"), mask_sample={"min_valid": 0})


def test_verls_own_config_class_works_and_means_the_defaults():
    data = batch([1, 1, 0, 0], mask_sample=[False, True, False, False])
    result = ray_trainer.compute_advantage(
        data, adv_estimator="grpo", norm_adv_by_std_in_grpo=False, config=AlgoConfig()
    )
    assert result.batch["advantages"][:, 0].tolist() == pytest.approx([2 / 3, 0, -1 / 3, -1 / 3])


def test_pass_at_k_and_whitening_survive_thin_groups_and_a_single_token():
    thin = {"mask_sample": [False, True, True, False], "uid": "aabb"}
    for estimator in ("grpo_passk", "reinforce_plus_plus_baseline", "gdpo"):
        data = batch([1, 1, 1, 1], **thin)
        assert advantages(data, estimator, gdpo_reward_keys=None, min_valid=1) == [0.0] * 4
    one_token = batch([1, 1, 0, 0], mask_sample=[False, True, True, True])
    one_token.batch["response_mask"][:, 1:] = 0
    assert advantages(one_token, "reinforce_plus_plus") == [0.0] * 4


def test_pass_at_k_needs_two_whatever_min_valid_says():
    data = batch([1, 1, 1, 0], uid="aabb", mask_sample=[False, True, False, False])
    assert advantages(data, "grpo_passk", mask_sample={"min_valid": 1}) == [0.0, 0.0, 1.414, 0.0]


def test_a_host_that_excludes_by_itself_excludes_nothing_twice(monkeypatch):
    """verl may one day hand non_tensor_batch to estimators, as it does for gdpo today."""
    flags_seen = []

    def excludes_by_itself(token_level_rewards, response_mask, index, non_tensor_batch, **kwargs):
        flags = non_tensor_batch["mask_sample"]
        flags_seen.append(flags.tolist())
        kept = token_level_rewards.sum(-1) * torch.from_numpy(~flags.astype(bool))
        advantage = (kept - kept.sum() / (~flags.astype(bool)).sum())[:, None] * response_mask
        return advantage, advantage

    monkeypatch.setitem(core_algos.ADV_ESTIMATOR_REGISTRY, "gdpo", excludes_by_itself)
    columns = {
        "mask_sample": [False, True, True, False],
        "failure_kind": ["", "agent_timeout", "session_lost", ""],
    }
    assert advantages(batch([1, 1, 0, 0], **columns), "gdpo") == [0.5, 0.0, 0.0, -0.5]
    scored_again = {"scored_kinds": ["agent_timeout"]}
    assert advantages(batch([1, 1, 0, 0], **columns), "gdpo", scored_again) == [0.333, 0.333, 0.0, -0.667]
    assert flags_seen == [[False, False], [False, False, False]]


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), -float("inf")])
def test_a_reward_that_the_estimator_never_looks_at_must_still_be_a_number(reward):
    """gdpo computes with its components, and pass@k with the two best of a group."""
    data = batch([1, reward, 0, 0], mask_sample=[False] * 4, a=[1.0, 5.0, 0.0, 0.0])
    data.batch["prompts"], data.batch["attention_mask"] = torch.ones(4, 2).long(), torch.ones(4, 5).long()
    assert advantages(data, "gdpo", gdpo_reward_keys=["a"])[1] == 0.0
    assert data.batch["samplemask_exclusion"].tolist() == [0, 1, 0, 0]
    data = batch([1, reward, 0.5, 0], mask_sample=[False] * 4)
    assert advantages(data, "grpo_passk", norm_adv_by_std_in_grpo=False) == [0.5, 0.0, 0.0, 0.0]
    assert data.batch["samplemask_exclusion"].tolist() == [0, 1, 0, 0]


def test_outage_names_the_counts_of_the_public_run():
    size = 1280
    flags = [True] * 1172 + [False] * 108
    data = batch([0.0] * size, uid=[row // 8 for row in range(size)], mask_sample=flags)
    data.non_tensor_batch["failure_kind"] = np.array(["session_lost"] * 1172 + [""] * 108, dtype=object)
    with pytest.raises(OutageError, match=r"1172 of 1280 rollouts \(91.6%\).*session_lost: 1172"):
        advantages(data, mask_sample={"max_masked_fraction": 0.5})


def test_skipped_outage_trains_nobody():
    data = batch([1, 1, 0, 0], mask_sample=[False, True, True, True])
    policy = {"max_masked_fraction": 0.5, "outage_min_rows": 4, "on_outage": "skip_step"}
    assert advantages(data, mask_sample=policy) == [0.0] * 4


def test_the_steps_metrics_reach_verls_data_metrics():
    data = batch([1, 1, 0, 0], mask_sample=[False, True, False, False])
    advantages(data)
    data.batch["token_level_scores"] = data.batch["token_level_rewards"]
    data.batch["prompts"] = torch.ones(4, 2).long()
    data.batch["responses"] = torch.ones(4, 3).long()
    data.batch["attention_mask"] = torch.ones(4, 5).long()
    metrics = ray_trainer.compute_data_metrics(batch=data, use_critic=False)
    assert metrics["mask_sample/masked_pct"] == 25.0
    assert metrics["mask_sample/reward_unmasked"] == pytest.approx(1 / 3)


def test_no_verdict_at_all_is_said_once(caplog, monkeypatch):
    monkeypatch.setattr(failure_kinds, "_reported", set())
    with caplog.at_level(logging.WARNING, logger="samplemask"):
        for _ in range(2):
            assert advantages(batch([1, 1, 0, 0])) == [0.5, 0.5, -0.5, -0.5]
    assert sum("carries a verdict" in record.message for record in caplog.records) == 1


def test_a_gym_verify_response_becomes_verls_reward_dict():
    response = {"reward": 0.0, "mask_sample": True, "failure_kind": "judge_failed", "failure_reason": "503"}
    assert reward_dict(response) == {
        "score": 0.0,
        "mask_sample": True,
        "failure_kind": "judge_failed",
        "failure_reason": "503",
    }
    assert reward_dict({"reward": 0.5}) == {
        "score": 0.5,
        "mask_sample": False,
        "failure_kind": "",
        "failure_reason": "",
    }


def test_without_group_ids_verl_says_so_itself():
    data = batch([1, 1, 0, 0], mask_sample=[False, True, False, False])
    del data.non_tensor_batch["uid"]
    with pytest.raises(KeyError, match="uid"):
        advantages(data)
