"""Real replay buffers over real TransferQueue: groups that will not train are replaced, within a bound."""

import itertools

import pytest

pytest.importorskip("verl", reason="verl is not installed in this environment")
tq = pytest.importorskip("transfer_queue", reason="TransferQueue is not installed")
import torch
from omegaconf import OmegaConf
from verl.trainer.ppo.v1 import trainer_base
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from samplemask import ContractError, OutageError
from samplemask_verl import masked, scored

COUNTER = itertools.count()


pytestmark = pytest.mark.usefixtures("transfer_queue", "plugin", "judged_by")


@pytest.fixture(autouse=True)
def _empty_partition():
    yield
    left = tq.kv_list("train")
    if left and left.get("train"):
        tq.kv_clear(keys=list(left["train"]), partition_id="train")


class Trainer(trainer_base.PPOTrainer):
    """Only what the replay buffer needs; its environment is a list of groups still to come."""

    on_sample_end = on_step_end = None

    def __init__(self, mode, groups, mask_sample, filter_groups=None, **reward_model):
        self.config = OmegaConf.create(
            {
                "algorithm": {
                    "adv_estimator": "grpo",
                    "mask_sample": mask_sample,
                    "filter_groups": filter_groups or {"enable": False},
                },
                "data": {"train_batch_size": 2},
                "reward": {"reward_model": {"enable": False, "enable_resource_pool": False, **reward_model}},
                "trainer": {
                    "v1": {
                        "sampler": {
                            "max_off_policy_threshold": None,
                            "max_off_policy_strategy": "drop",
                            "sampler_kwargs": {},
                        }
                    }
                },
            }
        )
        self.trainer_mode = mode
        self.groups = iter(groups)
        self.replay_buffer = self._build_replay_buffer()
        self.replay_buffer.poll_interval = 0.01

    def _add_prompts_to_generate(self, num_prompts):
        for group in itertools.islice(self.groups, num_prompts):
            put_group(group)

    def sample(self, batch_size=2):
        return self.sample_and_count(batch_size)[:2]

    def sample_and_count(self, batch_size=2):
        batch, metrics = self.replay_buffer.sample(
            global_steps=1, partition_id="train", batch_size=batch_size
        )
        refill = self.replay_buffer.samplemask_refill
        rollouts = refill.rollouts
        return sorted({tag["name"] for tag in batch.tags}), {**metrics, **refill.take_metrics()}, rollouts


def put_group(group, status="finished"):
    """A group is its name and its sessions' reward dicts."""
    name, infos = group
    uid = f"{name}{next(COUNTER)}"
    rows = [
        {
            "uid": uid,
            "rm_scores": torch.tensor([0.0, info["score"]]),
            "extra_fields": {"reward_extra_info": info},
        }
        for info in infos
    ]
    keys = [f"{uid}_{session}_0" for session in range(len(infos))]
    tags = [{"name": name, "response_len": 2} for _ in infos]
    tq.kv_batch_put(keys=keys, partition_id="train", fields=list_of_dict_to_tensordict(rows), tags=tags)
    prompt = {"is_prompt": True, "status": status, "global_steps": 1}
    tq.kv_batch_put(keys=[uid], partition_id="train", tags=[prompt])


GOOD = [scored(1.0), scored(0.0), scored(0.0), scored(1.0)]
ONE_LOST = [scored(1.0), scored(0.0), scored(0.0), masked("session_lost")]
THIN = [scored(1.0), masked("session_lost"), masked("session_lost"), masked("judge_failed")]
DEAD = [masked("session_lost")] * 4
ALL_RIGHT_BUT_ONE_LOST = [scored(1.0), scored(1.0), scored(1.0), masked("session_lost")]
MODES = pytest.mark.parametrize("mode", ["sync", "colocate_async"])


@MODES
def test_thin_groups_are_replaced_and_counted(mode):
    trainer = Trainer(mode, [("later", GOOD)], {"max_refills": 4})
    for group in [("thin", THIN), ("good", GOOD)]:
        put_group(group)
    names, metrics, rollouts = trainer.sample_and_count()
    assert names == ["good", "later"]
    assert (rollouts.scored, rollouts.masked, rollouts.reward_unmasked) == (1, 3, 1.0)
    assert metrics["training/rollout_failure/evicted_samples"] == 1
    assert {name: value for name, value in metrics.items() if "mask_sample" in name} == {
        "mask_sample/refilled/groups": 1.0,
        "mask_sample/refilled/rows": 4.0,
        "mask_sample/refilled/masked_rows": 3.0,
        "mask_sample/refilled/kind/session_lost": 2.0,
        "mask_sample/refilled/kind/judge_failed": 1.0,
    }


@MODES
def test_groups_are_judged_by_their_tags_without_a_read(mode, judged_by, queue_calls):
    trainer = Trainer(mode, [("later", GOOD)], {"max_refills": 4})
    for group in [("thin", THIN), ("good", GOOD)]:
        put_group(group)
    trainer.sample()
    reads = [fields for name, fields in queue_calls if name == "get"]
    assert reads == ([] if judged_by == "tags" else [["extra_fields", "rm_scores", "uid"]] * 2)


@MODES
def test_drop_group_replaces_a_group_with_any_masked_row(mode):
    trainer = Trainer(mode, [("later", GOOD)], {"action": "drop_group", "max_refills": 4})
    for group in [("lost", ONE_LOST), ("good", GOOD)]:
        put_group(group)
    assert trainer.sample()[0] == ["good", "later"]


@MODES
def test_exclude_keeps_a_group_that_still_has_enough_voters(mode):
    trainer = Trainer(mode, [], {"max_refills": 4})
    for group in [("lost", ONE_LOST), ("good", GOOD)]:
        put_group(group)
    names, metrics = trainer.sample()
    assert names == ["good", "lost"]
    assert metrics == {}


@MODES
def test_without_refill_groups_that_cannot_train_stay(mode):
    trainer = Trainer(mode, [], {})
    for group in [("dead", DEAD), ("good", GOOD)]:
        put_group(group)
    assert trainer.sample() == (["dead", "good"], {})


@MODES
def test_an_environment_that_stays_down_is_an_outage_within_the_bound(mode):
    trainer = Trainer(mode, itertools.repeat(("dead", DEAD)), {"max_refills": 5})
    for group in [("dead", DEAD), ("good", GOOD)]:
        put_group(group)
    with pytest.raises(
        OutageError, match=r"step 1 would replace 6 prompt groups, more than max_refills=5"
    ) as caught:
        trainer.sample()
    assert caught.value.masked == 24
    assert caught.value.kinds == {"session_lost": 24}


@MODES
def test_the_group_filter_judges_by_rows_that_vote(mode):
    filter_groups = {"enable": True, "metric": "reward", "max_inflight_gen_batches": 1}
    trainer = Trainer(mode, [("later", GOOD), ("later", GOOD)], {}, filter_groups)
    # Its only variance is the lost session's zero: to the voters it has no signal.
    for group in [("no signal", ALL_RIGHT_BUT_ONE_LOST), ("lost", ONE_LOST)]:
        put_group(group)
    names, metrics = trainer.sample()
    assert "no signal" not in names  # sync verl fetches two for one and picks among what is there
    assert metrics["training/filter_groups/evicted_samples"] == 1


@MODES
def test_the_group_filter_reads_other_metrics_of_voting_rows_too(mode):
    filter_groups = {"enable": True, "metric": "acc", "max_inflight_gen_batches": 1}
    trainer = Trainer(mode, [("later", with_acc(GOOD))] * 2, {}, filter_groups)
    for group in [("no signal", with_acc(ALL_RIGHT_BUT_ONE_LOST)), ("good", with_acc(GOOD))]:
        put_group(group)
    names, metrics = trainer.sample()
    assert "no signal" not in names
    assert metrics["training/filter_groups/evicted_samples"] == 1


@MODES
def test_filter_and_refill_together_count_a_group_once(mode):
    filter_groups = {"enable": True, "metric": "reward", "max_inflight_gen_batches": 1}
    trainer = Trainer(mode, [("later", GOOD)] * 4, {"max_refills": 4}, filter_groups)
    for group in [("no signal", ALL_RIGHT_BUT_ONE_LOST), ("dead", DEAD)]:
        put_group(group)
    names, metrics = trainer.sample()
    assert names == ["later"]
    assert metrics["training/filter_groups/evicted_samples"] == 1
    assert metrics["training/rollout_failure/evicted_samples"] == 1
    assert metrics["mask_sample/refilled/groups"] == 1.0


def test_refill_with_a_colocated_reward_model_is_refused_at_start():
    with pytest.raises(ContractError, match=r"algorithm.mask_sample.max_refills: expected 0"):
        Trainer("sync", [], {"max_refills": 1}, enable=True)


def with_acc(infos):
    return [{**info, "acc": info["score"]} for info in infos]
