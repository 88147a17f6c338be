"""verl's real agent loop stores a rollout with its verdict in the tag, and the tag reaches the trainer."""

import asyncio
import itertools

import pytest

pytest.importorskip("verl", reason="verl is not installed in this environment")
tq = pytest.importorskip("transfer_queue", reason="TransferQueue is not installed")
import torch
from omegaconf import OmegaConf
from test_v1_advantage import trainer
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.utils.skip.rollout_skip import RolloutTqSkip

from samplemask_verl import masked, scored
from samplemask_verl.stage_queue import rewards_of

COUNTER = itertools.count()

pytestmark = pytest.mark.usefixtures("transfer_queue", "plugin")


class Worker(AgentLoopWorkerTQ.__ray_metadata__.modified_class):
    """What stores rollouts, without the model and the reward workers."""

    reward_loop_worker_handles = processor = None
    distillation_enabled = False

    def __init__(self):
        pass


def output(score, tokens=3, **extra_fields):
    return AgentLoopOutput(
        prompt_ids=[1, 2],
        response_ids=[3] * tokens,
        response_mask=[1] * tokens,
        response_logprobs=[-1.0] * tokens,
        reward_score=score,
        metrics=AgentLoopMetrics(),
        extra_fields={"min_global_steps": 1, "max_global_steps": 1, **extra_fields},
    )


def roll_out(uid, sessions, partition="train"):
    """Store one prompt's sessions, each a list of outputs, as verl's agent loop worker does."""

    async def store():
        for session, outputs in enumerate(sessions):
            columns = {"uid": uid, "session_id": session, "global_steps": 1}
            await Worker()._agent_loop_postprocess(outputs, partition == "val", **columns)

    asyncio.run(store())
    prompt = {"is_prompt": True, "status": "finished", "global_steps": 1}
    tq.kv_batch_put(keys=[uid], partition_id=partition, tags=[prompt])


def of_score(info, tokens=3):
    return [output(info["score"], tokens, reward_extra_info=info)]


def sample(uids):
    """Take what verl's replay buffer gives the trainer of the prompts."""
    buffer = ReplayBuffer("sync", OmegaConf.create({}), None, "drop", OmegaConf.create({}))
    buffer._sync_metadata_from_transfer_queue()
    return buffer._materialize_batch("train", uids, buffer.partitions["train"])


def told(batch):
    return dict(zip(batch.keys, (tag["samplemask"] for tag in batch.tags), strict=True))


def test_tags_say_what_the_rollouts_said():
    uid = f"said{next(COUNTER)}"
    by_agent = output(0.25, mask_sample=True, failure_kind="NodeFailure", reward_extra_info={})
    silent = output(1.0, reward_extra_info={})
    junk = output(1.0, mask_sample="maybe", reward_extra_info={})
    no_number = output(float("nan"), reward_extra_info=scored(1.0))
    roll_out(
        uid,
        [
            of_score(scored(0.1)),
            of_score(masked("session_lost"), 1),
            [by_agent],
            [silent],
            [junk],
            [no_number],
        ],
    )
    assert told(sample([uid])) == {
        f"{uid}_0_0": 0.10000000149011612,  # 0.1 in 32 bits, as verl stores it
        f"{uid}_1_0": [0.0, True, True, False, "session_lost"],
        f"{uid}_2_0": [0.25, True, True, False, "NodeFailure"],
        f"{uid}_3_0": [1.0, False, False, False, None],
        f"{uid}_4_0": None,
        f"{uid}_5_0": None,
    }


def test_the_reward_of_a_tag_has_the_bits_of_the_stored_scores():
    uid = f"bits{next(COUNTER)}"
    roll_out(
        uid, [of_score(scored(reward), tokens) for reward, tokens in [(0.1, 3), (1 / 3, 1), (-2.7, 700)]]
    )
    batch = sample([uid])
    stored = tq.kv_batch_get(keys=batch.keys, partition_id="train", select_fields=["rm_scores"])["rm_scores"]
    assert list(told(batch).values()) == rewards_of(stored)[0].tolist()


def test_a_session_of_several_outputs_padding_and_verls_batch_are_judged_without_a_read(queue_calls):
    uid, other = f"batch{next(COUNTER)}", f"batch{next(COUNTER)}"
    lost = [output(1.0, reward_extra_info={}), output(1.0, 2, reward_extra_info=masked("session_lost"))]
    roll_out(uid, [lost, of_score(scored(1.0)), of_score(scored(0.0)), of_score(scored(0.0))])
    roll_out(other, [of_score(scored(1.0)), of_score(scored(0.0))])
    batch = upsample_batch_to_divisible_size(sample([uid, other]), 4, eos_token_id=0)
    assert len(batch) == 8  # seven rows and one of padding, which looks like the first, a masked one
    batch.reorder([7, 3, 1, 0, 2, 6, 5, 4])
    queue_calls.clear()
    metrics = {}
    result = trainer()._compute_advantage(batch, metrics)
    assert [name for name, _ in queue_calls] == ["get", "put"]
    assert "extra_fields" not in queue_calls[0][1]
    assert metrics["mask_sample/masked_pct"] == pytest.approx(100 / 6)  # one session of six
    stored = tq.kv_batch_get(result.keys, "train", ["advantages"])["advantages"].unbind()
    first = {key: round(float(row[0]), 3) for key, row in zip(result.keys, stored, strict=True)}
    masked_session = {f"{uid}_0_0": 0.0, f"{uid}_0_1": 0.0, batch.keys[0]: 0.0}
    measured = {f"{uid}_1_0": 0.667, f"{uid}_2_0": -0.333, f"{uid}_3_0": -0.333}
    assert first == {**masked_session, **measured, f"{other}_0_0": 0.5, f"{other}_1_0": -0.5}


def test_a_replayed_batch_is_judged_by_its_fields_because_verl_groups_it_by_its_old_uids(
    tmp_path, queue_calls
):
    uid, new = f"old{next(COUNTER)}", f"new{next(COUNTER)}"
    roll_out(
        uid, [of_score(info) for info in (scored(1.0), masked("session_lost"), scored(0.0), scored(0.0))]
    )
    skip = object.__new__(RolloutTqSkip)
    skip.parameter_sync_step, skip.action = 1, None
    skip._get_step_dump_dir = lambda step: tmp_path / str(step)
    skip.prepare_data(1, sample([uid]), 1)
    skip.load_dump_data(1, [new], 4, 1)
    batch = sample([new])
    assert set(told(batch).values()) == {None}
    queue_calls.clear()
    metrics = {}
    trainer()._compute_advantage(batch, metrics)
    assert "extra_fields" in queue_calls[0][1]
    assert metrics["mask_sample/masked_pct"] == 25.0


def test_advantages_have_the_same_bits_whether_rows_are_judged_by_tags_or_by_fields():
    generator = torch.Generator().manual_seed(0)
    uid = f"same{next(COUNTER)}"
    scores = torch.rand(8, generator=generator).tolist()
    infos = [masked("judge_failed") if row in (2, 5) else scored(score) for row, score in enumerate(scores)]
    roll_out(uid, [of_score(info, 2 + row % 3) for row, info in enumerate(infos)])
    batch = sample([uid])
    untold = [{**tag, "samplemask": None} for tag in batch.tags]
    written = []
    for rows in (batch, tq.KVBatchMeta(batch.keys, untold, "train")):
        metrics = {}
        trainer(norm_adv_by_std_in_grpo=True)._compute_advantage(rows, metrics)
        fields = ["advantages", "returns", "samplemask_exclusion"]
        stored = tq.kv_batch_get(batch.keys, "train", fields)
        written.append(([stored[name].values() for name in fields[:2]], stored[fields[2]], metrics))
    (one, marks, metrics), (other, other_marks, other_metrics) = written
    assert all(torch.equal(*pair) for pair in zip(one, other, strict=True))
    assert torch.equal(marks, other_marks)
    assert metrics == other_metrics
    assert metrics["mask_sample/masked_pct"] == 25.0
