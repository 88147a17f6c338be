"""Whole runs of the real verl trainer on the CPU, with an environment that fails."""

import math
from collections import Counter

import pytest

pytest.importorskip("verl", reason="verl is not installed in this environment")
from cpu_bed.run import Run, run_trainer

GROUP = 4  # rollouts per prompt
BATCH = 16
KL = ("actor_rollout_ref.actor.use_kl_loss=True", "actor_rollout_ref.actor.kl_loss_coef=0.1")
ENTROPY = ("actor_rollout_ref.actor.entropy_coeff=0.01",)
SEQ_MEAN = ("actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean",)
ASYNC = ("trainer.v1.trainer_mode=colocate_async",)
LEGACY = ("trainer.use_v1=False",)
CRITIC = (
    "algorithm.adv_estimator=gae",
    "critic.strategy=fsdp2",
    "critic.ppo_mini_batch_size=4",
    "critic.ppo_micro_batch_size_per_gpu=8",
    "critic.model.use_remove_padding=False",
    "critic.model.enable_gradient_checkpointing=False",
    "+critic.model.override_config.attn_implementation=eager",
    "critic.optim.lr=1e-3",
    "critic.fsdp.use_torch_compile=False",
)
# Rollouts end in no fixed order, so the same rows are summed in another one: 2e-6 at a learning rate of 1e-3.
ROUNDING = 1e-5
FAILS_A_THIRD = {"fail_fraction": 0.33, "failed_reward": 7.0}


def check_accounts(run: Run) -> None:
    """A sync run of one step: metrics, environment and engine agree on what was masked."""
    rollouts = [row for row in run.rollouts if row["split"] == "train"]
    failed = [row for row in rollouts if row["failed"]]
    scored_per_prompt = Counter(row["prompt"] for row in rollouts if not row["failed"])
    training = sum(count for count in scored_per_prompt.values() if count >= 2)
    (metrics,) = run.steps[-1:]
    assert len(rollouts) == BATCH
    assert 0 < len(failed) < BATCH
    assert metrics["mask_sample/masked_pct"] == pytest.approx(100 * len(failed) / BATCH)
    assert metrics["mask_sample/rows_trained"] == training
    for kind, count in Counter(row["kind"] for row in failed).items():
        assert metrics[f"mask_sample/kind/{kind}"] == count
    assert metrics["mask_sample/reward_unmasked"] <= 1.0  # a failed rollout's stand-in is 7
    assert all(math.isfinite(value) for value in metrics.values())
    check_engine(run.actor(), training)


def check_engine(mini_batches: list[dict], training: int) -> None:
    """One step over all ranks: so many rows carry loss, and only they count."""
    (first, *others) = mini_batches
    assert not others
    assert first["global_batch_size"] == training
    for mask, loss_mask, advantage in zip(
        first["response_mask"], first["loss_mask"], first["advantages"], strict=True
    ):
        assert mask == loss_mask
        assert mask > 0 or advantage == 0.0
    assert math.isfinite(first["grad_norm"])
    assert first["grad_norm"] > 0


def check_tags(run: Run) -> None:
    """A V1 run: every rollout had its verdict in its tag, and none was read."""
    told = [tag["samplemask"] for tag in run.tags()]
    assert told
    assert all(isinstance(tag, (float, list)) for tag in told)
    assert "rm_scores" in run.fields_read()
    assert "extra_fields" not in run.fields_read()


def test_v1_sync_with_kl_entropy_and_validation(tmp_path):
    run = run_trainer(
        tmp_path, *KL, *ENTROPY, *SEQ_MEAN, "trainer.val_before_train=True", environment=FAILS_A_THIRD
    ).check()
    check_accounts(run)
    assert sum(mask > 0 for mask in run.actor()[0]["loss_mask"]) == run.steps[-1]["mask_sample/rows_trained"]
    assert "samplemask active in verl" in run.output
    check_tags(run)
    assert sum(isinstance(tag["samplemask"], list) for tag in run.tags()) == sum(
        row["failed"] for row in run.rollouts if row["split"] == "train"
    )


@pytest.mark.slow
def test_legacy(tmp_path):
    check_accounts(run_trainer(tmp_path, *LEGACY, *SEQ_MEAN, environment=FAILS_A_THIRD).check())


@pytest.mark.slow
def test_v1_colocate_async(tmp_path):
    run = run_trainer(tmp_path, *ASYNC, *SEQ_MEAN, environment=FAILS_A_THIRD).check()
    metrics = run.steps[-1]
    assert metrics["mask_sample/masked_pct"] > 0
    check_engine(run.actor(), metrics["mask_sample/rows_trained"])
    assert all(math.isfinite(value) for value in metrics.values())
    check_tags(run)


@pytest.mark.slow
def test_two_data_parallel_ranks(tmp_path):
    run = run_trainer(tmp_path, *SEQ_MEAN, gpus=2, environment=FAILS_A_THIRD).check()
    check_accounts(run)
    both = run.actor(0)[0]["loss_mask"] + run.actor(1)[0]["loss_mask"]
    assert sum(mask > 0 for mask in both) == run.steps[-1]["mask_sample/rows_trained"]
    assert run.actor(0)[0]["weights"] == run.actor(1)[0]["weights"]


@pytest.mark.slow
@pytest.mark.parametrize("trainer", [(), LEGACY], ids=["v1", "legacy"])
def test_critic(tmp_path, trainer):
    run = run_trainer(tmp_path, *trainer, *CRITIC, environment=FAILS_A_THIRD).check()
    scored = sum(not row["failed"] for row in run.rollouts)
    check_engine(run.actor(), scored)
    check_engine(run.critic(), scored)
    assert all(math.isfinite(value) for value in run.steps[-1].values())


@pytest.mark.slow
@pytest.mark.parametrize("trainer", [(), ASYNC, LEGACY, CRITIC], ids=["v1", "async", "legacy", "critic"])
def test_a_step_in_which_everything_failed_takes_no_optimizer_step_and_the_run_goes_on(tmp_path, trainer):
    down = {"fail_fraction": 1.0}
    run = run_trainer(tmp_path, *trainer, *KL, steps=2, environment=down).check()
    assert run.mini_batches == []
    assert [metrics["mask_sample/no_signal_step"] for metrics in run.steps] == [1.0, 1.0]
    assert all(math.isfinite(value) for metrics in run.steps for value in metrics.values())


def furthest(one: Run, other: Run) -> float:
    weights, reference = one.final_weights(), other.final_weights()
    return max(float((weights[name] - reference[name]).abs().max()) for name in reference)


@pytest.mark.slow
def test_the_stand_in_reward_of_failed_rollouts_moves_the_weights_of_stock_verl_and_not_ours(tmp_path):
    def run(name, samplemask, reward):
        folder = tmp_path / name
        folder.mkdir()
        environment = {"fail_fraction": 0.33, "failed_reward": reward}
        return run_trainer(folder, *KL, samplemask=samplemask, environment=environment).check()

    assert furthest(run("stock0", False, 0.0), run("stock7", False, 7.0)) > 1e-4
    assert furthest(run("ours0", True, 0.0), run("ours7", True, 7.0)) < ROUNDING


@pytest.mark.slow
def test_a_healthy_run_is_stock_verl_metric_for_metric(tmp_path):
    runs = []
    for samplemask in (False, True):
        folder = tmp_path / str(samplemask)
        folder.mkdir()
        runs.append(run_trainer(folder, *SEQ_MEAN, samplemask=samplemask).check())
    stock, ours = runs
    check_tags(ours)
    assert not any("samplemask" in tag for tag in stock.tags())
    assert stock.steps[-1].keys() == ours.steps[-1].keys()
    assert furthest(stock, ours) < ROUNDING
    assert ours.steps[-1]["actor/pg_loss"] == pytest.approx(stock.steps[-1]["actor/pg_loss"], abs=1e-6)


@pytest.mark.slow
def test_killing_and_resuming_goes_on_where_it_stopped(tmp_path):
    settings = (*SEQ_MEAN, "trainer.save_freq=1", "trainer.resume_mode=auto")
    killed = run_trainer(tmp_path, *settings, steps=3, environment=FAILS_A_THIRD, kill_after_steps=2)
    assert killed.returncode is None
    resumed = run_trainer(tmp_path, *settings, steps=3, environment=FAILS_A_THIRD).check()
    assert [metrics["training/global_step"] for metrics in resumed.steps][-1] == 3
    check_engine(resumed.actor()[-1:], resumed.steps[-1]["mask_sample/rows_trained"])
