"""Real V1 advantage stage, real TransferQueue under Ray: verdicts come in tags, or in `extra_fields`."""

import itertools
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest

pytest.importorskip("verl", reason="verl is not installed in this environment")
tq = pytest.importorskip("transfer_queue", reason="TransferQueue is not installed")
import torch
from omegaconf import OmegaConf
from tensordict import NonTensorStack, TensorDict
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, AdaptiveKLController, FixedKLController
from verl.trainer.ppo.v1 import trainer_base
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from samplemask import ContractError, OutageError, SeamError, failure_kinds
from samplemask_verl import masked, scored, stage_queue
from samplemask_verl.loss import EXCLUDED, EXCLUSION, KEPT
from samplemask_verl.verify import VerificationError

COUNTER = itertools.count()
LENGTHS = (3, 2, 4, 1, 5, 2, 3, 4)


pytestmark = pytest.mark.usefixtures("transfer_queue", "plugin", "judged_by")


class Trainer(trainer_base.PPOTrainer):
    on_sample_end = on_step_end = None


def trainer(estimator="grpo", mask_sample=None, **algorithm):
    """A PPOTrainer with only what its advantage stage reads."""
    made = object.__new__(Trainer)
    section = {
        "adv_estimator": estimator,
        "gamma": 1.0,
        "lam": 1.0,
        "norm_adv_by_std_in_grpo": False,
        "use_kl_in_reward": False,
        **algorithm,
    }
    if mask_sample is not None:
        section["mask_sample"] = mask_sample
    made.config = OmegaConf.create({"algorithm": section, "actor_rollout_ref": {"rollout": {"n": 4}}})
    return made


def put(infos, uids=None, keys=None, agent_fields=None, padding=(), scores=None, run=None):
    """Store rows as verl's agent loop does; `infos` are the reward functions' dicts."""
    run = run or f"run{next(COUNTER)}"
    uids = [f"{run}{uid}" for uid in (uids or ["p"] * len(infos))]
    keys = [f"{run}{key}" for key in keys] if keys else [f"{uid}_{row}_0" for row, uid in enumerate(uids)]
    rows, tags = [], []
    for row, info in enumerate(infos):
        length = LENGTHS[row]
        rm_scores = torch.zeros(length)
        rm_scores[-1] = info.get("score", 0.0) if scores is None else scores[row]
        rows.append(
            {
                "uid": uids[row],
                "response_mask": torch.ones(length).long() * (row not in padding),
                "loss_mask": torch.ones(length).long(),
                "rm_scores": rm_scores,
                "rollout_log_probs": torch.full((length,), -1.0),
                "old_log_probs": torch.full((length,), -1.0),
                "ref_log_prob": torch.full((length,), -1.5),
                "values": torch.zeros(length),
                "extra_fields": {"reward_extra_info": info, **((agent_fields or {}).get(row, {}))},
            }
        )
        tags.append({"response_len": length} | ({"is_padding": True} if row in padding else {}))
    return tq.kv_batch_put(
        keys=keys, partition_id="train", fields=list_of_dict_to_tensordict(rows), tags=tags
    )


def advantages(batch):
    """First token's advantage of each row, as stored."""
    stored = tq.kv_batch_get(keys=batch.keys, partition_id="train", select_fields=["advantages", "returns"])
    for adv, length in zip(stored["advantages"].unbind(), LENGTHS, strict=False):
        assert adv.shape == (length,)
        assert (adv == adv[0]).all()
    return [round(float(adv[0]), 3) for adv in stored["advantages"].unbind()]


FOUR = [scored(1.0), masked("session_lost"), scored(0.0), scored(0.0)]


def test_a_masked_row_has_no_vote_and_no_advantage():
    batch, metrics = put(FOUR), {}
    result = trainer()._compute_advantage(batch, metrics)
    assert advantages(batch) == [0.667, 0.0, -0.333, -0.333]
    assert result.keys == batch.keys
    assert {"advantages", "returns", "extra_fields"} <= set(result.fields)
    assert metrics == {
        "mask_sample/masked_pct": 25.0,
        "mask_sample/reward": 0.25,
        "mask_sample/reward_unmasked": 1 / 3,
        "mask_sample/rows_trained": 3.0,
        "mask_sample/groups_dropped": 0.0,
        "mask_sample/groups_thin": 0.0,
        "mask_sample/no_signal_step": 0.0,
        "mask_sample/kind/session_lost": 1.0,
    }


def test_what_the_masked_row_holds_does_not_matter():
    for trash in (1.0, 1e6, float("nan"), float("inf")):
        batch = put(FOUR, scores=[1.0, trash, 0.0, 0.0])
        trainer()._compute_advantage(batch, {})
        assert advantages(batch) == [0.667, 0.0, -0.333, -0.333]


@pytest.mark.parametrize("first", [float("nan"), 0.5])
def test_a_reward_written_over_the_first_one_counts(first):
    batch = put(FOUR, scores=[1.0, first, 0.0, 0.0])
    rm_scores = [
        torch.nn.functional.pad(torch.tensor([1.0 * (row < 2)]), (LENGTHS[row] - 1, 0)) for row in range(4)
    ]
    tq.kv_batch_put(
        keys=batch.keys,
        partition_id="train",
        fields=list_of_dict_to_tensordict([{"rm_scores": row} for row in rm_scores]),
    )
    trainer(mask_sample={"scored_kinds": ["session_lost"]})._compute_advantage(batch, {})
    assert advantages(batch) == [0.5, 0.5, -0.5, -0.5]


@pytest.mark.parametrize("flag", [True, "True", 1, torch.tensor(True)])
def test_the_flag_is_read_from_the_agent_loop_too(flag):
    infos = [scored(1.0), {"score": 1.0}, scored(0.0), scored(0.0)]
    batch = put(infos, agent_fields={1: {"mask_sample": flag}})
    trainer()._compute_advantage(batch, {})
    assert advantages(batch) == [0.667, 0.0, -0.333, -0.333]


def test_a_healthy_step_is_verls_own_and_publishes_nothing_new(monkeypatch):
    monkeypatch.setattr(failure_kinds, "_reported", set())
    batch, metrics = put([scored(reward) for reward in (1.0, 1.0, 0.0, 0.0)]), {}
    trainer()._compute_advantage(batch, metrics)
    assert advantages(batch) == [0.5, 0.5, -0.5, -0.5]
    assert metrics == {}
    assert "verl:no verdict" not in failure_kinds._reported


def test_a_fully_masked_batch_gives_zeros():
    for estimator in ("grpo", "reinforce_plus_plus", "grpo_passk", "gae", "rloo"):
        batch, metrics = put([masked("judge_failed")] * 4), {}
        trainer(estimator)._compute_advantage(batch, metrics)
        assert advantages(batch) == [0.0] * 4
        assert metrics["mask_sample/no_signal_step"] == 1.0


def test_a_row_without_a_finite_reward_is_masked_although_nobody_said_so():
    batch, metrics = (
        put([scored(1.0), {"score": 0.0}, scored(0.0), scored(0.0)], scores=[1, float("nan"), 0, 0]),
        {},
    )
    trainer()._compute_advantage(batch, metrics)
    assert advantages(batch) == [0.667, 0.0, -0.333, -0.333]
    assert metrics["mask_sample/kind/samplemask:reward_not_finite"] == 1.0


def test_a_lone_survivor_does_not_train_unless_the_policy_says_so():
    infos = [scored(1.0), masked("session_lost"), scored(1.0), scored(0.0)]
    batch = put(infos, uids=["a", "a", "b", "b"])
    trainer()._compute_advantage(batch, {})
    assert advantages(batch) == [0.0, 0.0, 0.5, -0.5]
    batch = put(infos, uids=["a", "a", "b", "b"])
    trainer(mask_sample={"min_valid": 1})._compute_advantage(batch, {})
    assert advantages(batch) == [1.0, 0.0, 0.5, -0.5]  # verl's own singleton rule: the raw reward


def test_a_session_is_decided_as_a_whole():
    # Session 1 has three rows; only its last carries the flag. Deleting that row alone would make
    # row 1_1 the session's score; the whole session has to go.
    keys = ["p_0_0", "p_1_2", "p_1_0", "p_1_1", "p_2_0", "p_3_0"]
    infos = [scored(1.0), masked("session_lost"), {"score": 1.0}, {"score": 1.0}, scored(0.0), scored(0.0)]
    batch = put(infos, keys=keys)
    metrics = {}
    trainer()._compute_advantage(batch, metrics)
    assert advantages(batch) == [0.667, 0.0, 0.0, 0.0, -0.333, -0.333]
    assert metrics["mask_sample/masked_pct"] == 25.0  # one session of four


def test_padding_rows_neither_vote_nor_count():
    for estimator in ("grpo", "gpg", "grpo_passk", "rloo"):
        reference = put([*FOUR[1:], scored(1.0)], uids=["a"] * 4)
        trainer(estimator)._compute_advantage(reference, {})
        # verl's padding copies row 0, so it looks masked when row 0 is.
        batch = put([*FOUR[1:], scored(1.0), masked("session_lost")], uids=["a"] * 4 + ["pad"], padding=(4,))
        metrics = {}
        trainer(estimator)._compute_advantage(batch, metrics)
        assert advantages(batch) == [*advantages(reference), 0.0], estimator
        assert metrics["mask_sample/masked_pct"] == 25.0


def test_loss_multiplier_keeps_the_vote():
    batch = put([scored(1.0), masked("session_lost"), scored(0.0), scored(0.0)], scores=[1, 1, 0, 0])
    trainer(mask_sample={"action": "loss_multiplier"})._compute_advantage(batch, {})
    assert advantages(batch) == [0.5, 0.0, -0.5, -0.5]


def test_ignore_is_stock_verl():
    batch, metrics = put(FOUR, scores=[1, 1, 0, 0]), {}
    trainer(mask_sample={"action": "ignore"})._compute_advantage(batch, metrics)
    assert advantages(batch) == [0.5, 0.5, -0.5, -0.5]
    assert metrics == {}


def test_drop_group_takes_the_whole_group():
    infos = [scored(1.0), masked("session_lost"), scored(0.0), scored(1.0), scored(0.0)]
    batch, metrics = put(infos, uids=["a", "a", "a", "b", "b"]), {}
    trainer(mask_sample={"action": "drop_group"})._compute_advantage(batch, metrics)
    assert advantages(batch) == [0.0, 0.0, 0.0, 0.5, -0.5]
    assert metrics["mask_sample/groups_dropped"] == 1.0


def test_a_scored_kind_votes_again():
    infos = [scored(1.0), masked("agent_timeout"), scored(0.0), scored(1.0)]
    batch = put(infos)
    trainer(mask_sample={"scored_kinds": ["agent_timeout"]})._compute_advantage(batch, {})
    assert advantages(batch) == [0.5, -0.5, -0.5, 0.5]


def test_an_outage_stops_the_run_with_its_counts():
    batch = put([masked("session_lost")] * 3 + [scored(1.0)])
    policy = {"max_masked_fraction": 0.5, "outage_min_rows": 4}
    with pytest.raises(OutageError, match=r"3 of 4 rollouts \(75.0%\).*session_lost: 3"):
        trainer(mask_sample=policy)._compute_advantage(batch, {})


def test_kl_in_the_reward_sees_only_voting_rows():
    kl = {"use_kl_in_reward": True, "kl_penalty": "kl"}

    def made():
        stage = trainer(**kl)
        stage.kl_ctrl_in_reward = FixedKLController(0.1)
        return stage

    alone = put([FOUR[0], FOUR[2], FOUR[3]])
    metrics_alone = {}
    made()._compute_advantage(alone, metrics_alone)
    batch, metrics = put([FOUR[0], FOUR[2], FOUR[3], FOUR[1]]), {}
    made()._compute_advantage(batch, metrics)
    fields = ["advantages", "token_level_rewards"]
    with_row = tq.kv_batch_get(keys=batch.keys, partition_id="train", select_fields=fields)
    without = tq.kv_batch_get(keys=alone.keys, partition_id="train", select_fields=fields)
    for field in fields:
        # LENGTHS differ by position only from the fourth row on, so the first three are the same rows.
        for one, other in zip(with_row[field].unbind()[:3], without[field].unbind(), strict=True):
            assert torch.equal(one, other)
    assert {name: value for name, value in metrics.items() if "mask_sample" not in name} == metrics_alone


def test_a_flag_that_cannot_be_read_names_row_and_field():
    batch = put([scored(1.0), {"score": 0.0, "mask_sample": "maybe"}, scored(0.0)])
    with pytest.raises(ContractError, match=r"row 1 of the batch: mask_sample: expected .* found 'maybe'"):
        trainer()._compute_advantage(batch, {})


def test_a_wrong_policy_fails_when_the_trainer_starts():
    config = OmegaConf.create({"algorithm": {"mask_sample": {"acton": "exclude"}}})
    with pytest.raises(ContractError, match=r"algorithm.mask_sample: .*'acton'.*Did you mean 'action'"):
        Trainer(config)


def test_verify_changes_nothing_and_puts_the_rewards_back():
    stage = {"use_kl_in_reward": True, "kl_penalty": "kl"}
    results = []
    for verify in (False, True):
        batch, metrics = put(FOUR, scores=[1.0, 5.0, 0.0, 0.0]), {}
        made = trainer(mask_sample={"verify": verify}, **stage)
        made.kl_ctrl_in_reward = AdaptiveKLController(0.1, 0.01, 100)
        made._compute_advantage(batch, metrics)
        stored = tq.kv_batch_get(
            keys=batch.keys, partition_id="train", select_fields=["advantages", "rm_scores", "response_mask"]
        )
        rows = [
            [row.tolist() for row in stored[name].unbind()]
            for name in ("advantages", "rm_scores", "response_mask")
        ]
        results.append((rows, metrics, made.kl_ctrl_in_reward.value))
    assert results[0] == results[1]
    assert results[0][0][1][1] == [0.0, 5.0]
    assert results[0][0][2] == [[1, 1, 1], [1, 1], [1, 1, 1, 1], [1]]


def test_verify_finds_an_estimator_that_keeps_state(monkeypatch):
    calls = []

    def stateful(token_level_rewards, response_mask, index=None, **kwargs):
        calls.append(1)
        return token_level_rewards + len(calls), token_level_rewards

    monkeypatch.setitem(ADV_ESTIMATOR_REGISTRY, "stateful", stateful)
    batch = put(FOUR)
    with pytest.raises(VerificationError, match=f"{batch.keys[0]}"):
        trainer("stateful", mask_sample={"verify": True})._compute_advantage(batch, {})


READ = ["old_log_probs", "ref_log_prob", "response_mask", "rm_scores", "rollout_log_probs", "uid", "values"]
JUDGED = sorted([*READ, "extra_fields"])
WRITTEN = ["advantages", "returns"]
MARKED = [*WRITTEN, EXCLUSION]
ALL_MASKED = [masked("session_lost")] * 2  # verl's stage has no row to run on


@pytest.mark.parametrize(
    ("infos", "action", "by_tags", "by_fields"),
    [
        (FOUR, "ignore", [("get", READ), ("put", WRITTEN)], [("get", READ), ("put", WRITTEN)]),
        (
            [scored(1.0), scored(0.0)],
            "exclude",
            [("get", READ), ("put", WRITTEN)],
            [("get", JUDGED), ("put", WRITTEN)],
        ),
        (
            FOUR,
            "exclude",
            [("get", READ), ("put", MARKED)],
            [("get", JUDGED), ("put", MARKED)],
        ),
        (ALL_MASKED, "exclude", [("put", MARKED)], [("get", JUDGED), ("put", MARKED)]),
    ],
    ids=["ignore", "healthy", "masked", "all masked"],
)
def test_no_step_reads_or_writes_more_often_than_stock_and_tags_read_nothing_more(
    queue_calls, judged_by, infos, action, by_tags, by_fields
):
    batch = put(infos)
    queue_calls.clear()
    trainer(mask_sample={"action": action})._compute_advantage(batch, {})
    assert queue_calls == (by_tags if judged_by == "tags" else by_fields)


def test_a_batch_with_rows_that_have_no_tag_is_judged_by_fields(queue_calls, monkeypatch):
    run = f"mixed{next(COUNTER)}"
    first = put(FOUR[:3], keys=["p_0_0", "p_1_0", "p_2_0"], run=run)
    monkeypatch.setattr(stage_queue, "tagged", lambda keys, fields, tags: tags)
    rest = put(FOUR[3:], keys=["p_3_0"], run=run)
    queue_calls.clear()
    batch = tq.KVBatchMeta(first.keys + rest.keys, first.tags + rest.tags, "train")
    trainer()._compute_advantage(batch, {})
    assert queue_calls == [("get", JUDGED), ("put", MARKED)]
    stored = tq.kv_batch_get(keys=batch.keys, partition_id="train", select_fields=["advantages"])
    assert [round(float(row[0]), 3) for row in stored["advantages"].unbind()] == [0.667, 0.0, -0.333, -0.333]


def test_rewards_that_were_written_after_the_rollout_count():
    batch, metrics = put([scored(1.0), masked("session_lost"), scored(0.0), scored(0.0)]), {}
    scores = [torch.zeros(length) for length in LENGTHS[:4]]
    scores[2][0] = 1.0
    rewards = TensorDict({"rm_scores": torch.nested.as_nested_tensor(scores, layout=torch.jagged)}, 4)
    tq.kv_batch_put(keys=batch.keys, partition_id="train", fields=rewards)
    trainer()._compute_advantage(batch, metrics)
    assert advantages(batch) == [-0.333, 0.0, 0.667, -0.333]
    assert metrics["mask_sample/reward_unmasked"] == 1 / 3


def test_verdicts_that_a_reward_model_wrote_after_the_rollout_count():
    batch = put([scored(1.0), scored(1.0), scored(0.0), scored(0.0)])
    flags = TensorDict({"mask_sample": torch.tensor([False, True, False, False])}, 4)
    batch = tq.kv_batch_put(keys=batch.keys, partition_id="train", fields=flags)
    trainer()._compute_advantage(batch, {})
    assert advantages(batch) == [0.667, 0.0, -0.333, -0.333]


@pytest.mark.parametrize("refreshed", [False, True])
def test_verdicts_of_a_reward_model_count_whether_or_not_verls_batch_names_them(refreshed):
    batch = put([scored(1.0), scored(1.0), scored(0.0), scored(0.0)])
    texts = TensorDict(
        {
            name: torch.nested.as_nested_tensor(
                [torch.ones(n).long() for n in LENGTHS[:4]], layout=torch.jagged
            )
            for name in ("prompts", "responses")
        },
        4,
    )
    tq.kv_batch_put(batch.keys, "train", texts.set("raw_prompt", NonTensorStack(*["hi"] * 4)))
    made, scores = trainer(), torch.zeros(4, 4)
    scores[0, 2] = scores[1, 1] = 1.0
    columns = {
        "mask_sample": np.array([False, True, False, False]),
        "failure_kind": np.array(["", "judge_lost", "", ""], dtype=object),
    }
    output = trainer_base.DataProto.from_dict(
        {"rm_scores": scores}, non_tensors=columns, meta_info={"reward_extra_keys": list(columns)}
    )
    made.reward_loop_manager = SimpleNamespace(compute_rm_score=lambda _: output)
    made.tokenizer = SimpleNamespace(pad_token_id=0)
    batch = tq.KVBatchMeta(keys=batch.keys, tags=batch.tags, partition_id="train")
    batch = made._compute_reward_colocate(batch, metrics={})
    if refreshed:
        batch = tq.kv_batch_put(batch.keys, "train", TensorDict({"other": torch.zeros(4)}, 4))
    metrics = {}
    made._compute_advantage(batch, metrics)
    assert advantages(batch) == [0.667, 0.0, -0.333, -0.333]
    assert metrics["mask_sample/kind/judge_lost"] == 1.0


def test_every_row_of_a_masked_step_is_marked_and_described_as_it_was():
    batch = put(FOUR)
    stored = tq.kv_batch_put(batch.keys, "train", tags=[{"seq_len": row} for row in range(4)])
    result = trainer()._compute_advantage(batch, {})
    marks = tq.kv_batch_get(batch.keys, "train", [EXCLUSION])[EXCLUSION]
    assert marks.tolist() == [KEPT, EXCLUDED, KEPT, KEPT]
    assert (result.keys, result.partition_id) == (batch.keys, "train")
    assert [tag["seq_len"] for tag in result.tags] == [0, 1, 2, 3]
    assert set(result.fields) == {*stored.fields, "advantages", "returns", EXCLUSION}


def test_a_stage_that_does_not_read_its_rows_is_refused(monkeypatch):
    monkeypatch.setattr(tq, "kv_batch_get", MagicMock())
    monkeypatch.setattr(tq, "kv_batch_put", MagicMock())
    monkeypatch.setattr(trainer_base, "DataProto", MagicMock())
    monkeypatch.setattr(trainer_base, "compute_advantage_for_multi_trajectories", MagicMock())
    monkeypatch.setattr(trainer_base, "response_to_nested", lambda *_: torch.zeros(4, 1))
    with pytest.raises(SeamError, match=r"expected it to read its rows .* found no such read"):
        trainer()._compute_advantage(MagicMock(__len__=lambda _: 4), {})


@pytest.mark.parametrize("infos", [FOUR, [scored(1.0), scored(0.0)], [masked("session_lost")] * 2])
def test_another_queue_in_verls_place_is_asked_separately(monkeypatch, infos):
    expected, batch = put(infos), put(infos)
    trainer()._compute_advantage(expected, {})
    calls = {name: getattr(tq, name).__wrapped__ for name in ("kv_batch_get", "kv_batch_put")}
    monkeypatch.setattr(trainer_base, "tq", SimpleNamespace(**calls))
    result = trainer()._compute_advantage(batch, {})
    assert advantages(batch) == advantages(expected)
    assert result.keys == batch.keys
    if EXCLUSION in result.fields:
        marks = [tq.kv_batch_get(rows.keys, "train", [EXCLUSION])[EXCLUSION] for rows in (batch, expected)]
        assert torch.equal(*marks)
        masks = tq.kv_batch_get(batch.keys, "train", ["response_mask", "loss_mask"])
        for name in ("response_mask", "loss_mask"):  # nobody can hide them from verl's metrics here
            tokens = [row.sum() for row in masks[name].unbind()]
            assert tokens == [
                length * (mark == KEPT) for length, mark in zip(LENGTHS, marks[0], strict=False)
            ]
