"""Real V1 advantage stage, real TransferQueue: one write brings all rows, and metrics see who trained."""

import itertools
import math
from types import SimpleNamespace

import pytest

pytest.importorskip("verl", reason="verl is not installed in this environment")
tq = pytest.importorskip("transfer_queue", reason="TransferQueue is not installed")
import torch
from tensordict import NonTensorStack, TensorDict
from test_v1_advantage import FOUR, LENGTHS, trainer
from test_v1_advantage import put as put_run
from test_v1_verify import REJECTION
from verl.trainer.ppo.core_algos import FixedKLController
from verl.trainer.ppo.v1 import trainer_base

from samplemask_verl import masked, scored
from samplemask_verl.loss import EXCLUDED, EXCLUSION, KEPT

pytestmark = pytest.mark.usefixtures("transfer_queue", "plugin", "judged_by")

COUNTER = itertools.count()
THIRD = 0.3333333432674408  # in 32 bits
LOST = masked("session_lost")


def put(infos, **more):
    return put_run(infos, run=f"write{next(COUNTER)}", **more)  # keys that no other module has


def stored(batch, *names):
    """The fields of a batch, each a list of rows."""
    fields = tq.kv_batch_get(keys=batch.keys, partition_id="train", select_fields=list(names))
    return [[row.tolist() for row in fields[name].unbind()] for name in names]


def nested(rows):
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def test_rows_that_do_not_train_lie_between_the_others_as_zeros_of_their_own_lengths(queue_calls):
    infos = [LOST, scored(1.0), LOST, LOST, scored(0.0), scored(0.0), LOST]
    batch = put(infos)
    queue_calls.clear()
    result = trainer()._compute_advantage(batch, {})
    assert [name for name, _ in queue_calls] == ["get", "put"]
    expected = [
        [0.0] * 3,
        [2 * THIRD] * 2,
        [0.0] * 4,
        [0.0],
        [-THIRD] * 5,
        [-THIRD] * 2,
        [0.0] * 3,
    ]
    for rows in stored(result, "advantages", "returns"):
        assert rows == [pytest.approx(row, abs=1e-6) for row in expected]
    assert result.keys == batch.keys
    marks = tq.kv_batch_get(batch.keys, "train", [EXCLUSION])[EXCLUSION]
    assert marks.tolist() == [EXCLUDED, KEPT, EXCLUDED, EXCLUDED, KEPT, KEPT, EXCLUDED]


def test_a_row_that_votes_but_does_not_train_is_written_as_zeros():
    batch = put(FOUR, scores=[1.0, 1.0, 0.0, 0.0])
    trainer(mask_sample={"action": "loss_multiplier"})._compute_advantage(batch, {})
    assert stored(batch, "advantages")[0] == [[0.5] * 3, [0.0] * 2, [-0.5] * 4, [-0.5]]
    assert stored(batch, "response_mask")[0] == [[1] * 3, [1] * 2, [1] * 4, [1]]


def test_a_healthy_step_with_rows_of_padding_carries_no_marks():
    infos = [scored(1.0), scored(0.0), scored(1.0)]
    batch = put(infos, uids=["a", "a", "pad"], padding=(2,))
    result = trainer()._compute_advantage(batch, {})
    assert stored(batch, "advantages")[0] == [[0.5] * 3, [-0.5] * 2, [0.0] * 4]
    assert EXCLUSION not in result.fields  # so the training engine is stock, and its metrics


def test_verls_stage_is_given_its_own_fields_of_the_rows_that_vote(monkeypatch):
    given, name = [], "compute_advantage_for_multi_trajectories"
    original = getattr(trainer_base, name)

    def watched(data, **kwargs):
        given.append((sorted(data.batch.keys()), data.batch["rm_scores"].sum(-1).tolist()))
        return original(data, **kwargs)

    monkeypatch.setattr(trainer_base, name, watched)
    trainer()._compute_advantage(put(FOUR, scores=[1.0, 7.0, 0.5, 0.0]), {})
    fields = ["old_log_probs", "ref_log_prob", "response_mask", "rm_scores", "rollout_log_probs"]
    assert given == [([*fields, "token_level_rewards", "token_level_scores", "values"], [1.0, 0.5, 0.0])]


def test_every_field_that_verl_writes_is_there_for_every_row():
    stage = trainer(use_kl_in_reward=True, kl_penalty="kl", rollout_correction=REJECTION)
    stage.kl_ctrl_in_reward = FixedKLController(0.5)
    batch = put(FOUR)
    result = stage._compute_advantage(batch, {})
    rewards, masks, weights = stored(batch, "token_level_rewards", "response_mask", "rollout_is_weights")
    # 0.5 times the KL term, -1.0 + 1.5, in each token; the score in the last.
    assert rewards == [[-0.25, -0.25, 0.75], [0.0, 0.0], [-0.25] * 4, [-0.25]]
    assert masks == [[1] * 3, [0] * 2, [1] * 4, [1]]  # verl writes it here: tokens may be rejected
    assert weights == [[1.0] * 3, [0.0] * 2, [1.0] * 4, [1.0]]
    assert {"token_level_rewards", "rollout_is_weights", EXCLUSION} <= set(result.fields)


def metrics_of(stage, batch, infos):
    """What verl publishes of a batch after its advantage stage."""
    tokens = [torch.ones(length).long() for length in LENGTHS[: len(infos)]]
    texts = TensorDict({"prompts": nested(tokens), "responses": nested(tokens)}, len(infos))
    steps = {"min_global_steps": 1, "max_global_steps": 1}
    texts["num_turns"] = NonTensorStack(*[2] * len(infos))
    batch = tq.kv_batch_put(batch.keys, "train", texts, [steps] * len(infos))
    stage.config.actor_rollout_ref.model = {}
    stage._rollout_moe_lb_metrics_accumulator = None
    stage.reward_loop_manager, stage.use_critic = SimpleNamespace(reward_loop_worker_handles=None), False
    stage._get_n_gpus_for_throughput = lambda: 1
    metrics = {}
    batch = stage._compute_advantage(batch, metrics)
    stage._compute_metrics(batch, metrics, {"step": 1.0}, 1, 0)
    return batch, metrics


def test_verls_metrics_of_advantages_are_those_of_rows_that_train():
    infos = [scored(1.0), LOST, scored(0.0), scored(0.0), scored(1.0), LOST]  # the second group is thin
    batch = put(infos, uids=["a"] * 4 + ["b"] * 2)
    batch, metrics = metrics_of(trainer(), batch, infos)
    # Three tokens of 2/3, four and one of -1/3; the five zeros of the thin group's row are not among them.
    assert metrics["critic/advantages/mean"] == pytest.approx((3 * 2 - 5) / 3 / 8)
    assert metrics["critic/advantages/max"] == pytest.approx(2 / 3)
    assert metrics["critic/returns/min"] == pytest.approx(-1 / 3)
    assert metrics["critic/score/mean"] == 0.5  # measured rows: 1, 0, 0, 1
    assert metrics["mask_sample/groups_thin"] == 1.0
    assert stored(batch, "response_mask", "loss_mask") == [[[1] * length for length in LENGTHS[:6]]] * 2


def test_metrics_of_a_step_in_which_nothing_trains_are_numbers():
    infos = [LOST, scored(1.0)]
    _, metrics = metrics_of(trainer(), put(infos), infos)
    assert metrics["mask_sample/no_signal_step"] == 1.0
    assert metrics["critic/score/mean"] == 1.0
    assert not any("advantages" in name for name in metrics)
    assert all(math.isfinite(value) for value in metrics.values())


def test_a_healthy_batch_after_a_masked_one_keeps_its_masks_in_the_metrics():
    stage, infos = trainer(), [scored(1.0), scored(0.0)]
    metrics_of(stage, put(FOUR), FOUR)
    _, metrics = metrics_of(stage, put(infos), infos)
    assert metrics["critic/advantages/mean"] == pytest.approx((3 * 0.5 - 2 * 0.5) / 5)
