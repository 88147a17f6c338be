"""The wrappers around estimators, rollouts and loops: on stand-ins, no host."""

import asyncio
import sys
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="torch is not installed here")
import nemo_rl_standins as host
import torch

from samplemask import MaskPolicy
from samplemask_nemo_rl import estimators, loops, rollouts
from samplemask_nemo_rl.columns import MASKED, VOTES, read_columns
from samplemask_nemo_rl.decision import DecidedRows, decided_rows, ledger
from samplemask_nemo_rl.placeholders import MARK, adopt_prompts, placeholder_result, prompt_key
from samplemask_nemo_rl.session import ATTRIBUTE, Session
from samplemask_nemo_rl.workers import with_import_path, worker_hook

NAN = float("nan")


@pytest.fixture(autouse=True)
def _clean():
    ledger.begin()
    decided_rows.set(None)
    yield
    ledger.begin()
    estimators.Process.session = None


def advantages(estimator, rewards, flags, mask=None, prompts=None, **batch):
    compute = estimators.wrap_compute_advantage(type(estimator).compute_advantage)
    size = len(rewards)
    return compute(
        estimator,
        torch.tensor([[prompt] for prompt in prompts or [0] * size]),
        torch.tensor(rewards),
        torch.ones(size, 1) if mask is None else torch.tensor(mask).unsqueeze(1),
        repeated_batch={MASKED: torch.tensor(flags), **batch} if flags is not None else None,
    )


# Rewards, masked rows and expected advantages: group mean as baseline. The kinds of report that the
# public trackers of RL frameworks hold: a masked zero, a masked outlier, NaN, all masked, one left.
@pytest.mark.parametrize(
    ("rewards", "masked", "expected"),
    [
        ([1.0, 1.0, 0.0, 0.0], [1], [2 / 3, 0, -1 / 3, -1 / 3]),
        ([1.0, 0.0, 0.5, 9.0], [3], [0.5, -0.5, 0, 0]),
        ([1.0, 0.0, NAN, 1.0], [2], [1 / 3, -2 / 3, 0, 1 / 3]),
        ([1.0, 0.0, 1.0, 0.0], [0, 1, 2, 3], [0, 0, 0, 0]),
        ([1.0, 0.0, 1.0, 0.0], [1, 2, 3], [0, 0, 0, 0]),
        ([0.0, 0.0, 0.0, 1.0], [3], [0, 0, 0, 0]),
        ([5 / 6, 2 / 3, -1.0], [2], [1 / 12, -1 / 12, 0]),
    ],
)
def test_masked_rows_leave_their_group(rewards, masked, expected):
    flags = [row in masked for row in range(len(rewards))]
    result = advantages(host.GRPOAdvantageEstimator(), rewards, flags)
    assert result[:, 0].tolist() == pytest.approx(expected)


def test_a_row_without_tokens_that_the_environment_trusts_keeps_its_vote():
    result = advantages(host.GRPOAdvantageEstimator(), [1.0, 0.0, 0.0], [False] * 3, mask=[1.0, 1.0, 0.0])
    assert result[:, 0].tolist() == pytest.approx([2 / 3, -1 / 3, -1 / 3])


def test_statistics_of_the_whole_batch_come_from_the_rows_that_vote_too():
    whole, nothing = advantages(host.RawRewardAdvantageEstimator(), [1.0, NAN, 0.0], [False, True, False])
    assert whole[:, 0].tolist() == [0.5, 0.0, -0.5]
    assert nothing is None


def test_the_form_of_the_answer_is_kept_when_nobody_votes():
    whole, nothing = advantages(host.RawRewardAdvantageEstimator(), [1.0, 2.0], [True, True])
    assert whole.tolist() == [[0], [0]]
    assert nothing is None


def test_a_reward_that_is_no_number_does_not_poison_a_group_of_which_nobody_said_anything():
    result = advantages(host.GRPOAdvantageEstimator(), [1.0, 0.0, NAN, 1.0], None)
    assert result[:, 0].tolist() == pytest.approx([1 / 3, -2 / 3, 0, 1 / 3])
    assert ledger.publish()["mask_sample/kind/samplemask:reward_not_finite"] == 1.0
    estimator = host.GRPOAdvantageEstimator()
    setattr(estimator, ATTRIBUTE, Session(MaskPolicy(action="ignore"), "here", switched_off=True))
    assert torch.isnan(advantages(estimator, [1.0, 0.0, NAN, 1.0], None)).all()


def test_a_decision_made_earlier_is_used_as_it_is():
    votes = torch.tensor([True, False, True])
    flags = [False, False, True]
    result = advantages(host.GRPOAdvantageEstimator(), [1.0, 9.0, 0.0], flags, **{VOTES: votes})
    assert result[:, 0].tolist() == [0.5, 0.0, 0.0]  # row 2 votes and does not train


def test_a_decision_that_was_handed_over_is_used_once():
    everybody = torch.ones(2).bool().numpy()
    decided_rows.set(DecidedRows(torch.tensor([True, False]).numpy() & everybody, everybody))
    advantages(host.GRPOAdvantageEstimator(), [1.0, 9.0], None)
    assert decided_rows.get() is None


def test_a_run_without_verdicts_gets_the_hosts_values():
    result = advantages(host.GRPOAdvantageEstimator(), [1.0, 0.0, 4.0, 0.0], None, prompts=[1, 1, 2, 2])
    assert result[:, 0].tolist() == [0.5, -0.5, 2.0, -2.0]


def gym_results(*responses):
    prompt = {"role": "user", "token_ids": torch.tensor([1, 2])}
    return [
        {"message_log": [prompt], "input_message_log": [prompt], "full_result": each} for each in responses
    ]


def postprocess(results, **options):
    wrapped = rollouts.wrap_postprocess_group(host._postprocess_single_nemo_gym_group)
    rows = [{"_ng_task_index": 0}] * len(results)
    return wrapped(rows, results, None, "", None, {}, None, False, **options).final_batch


def test_every_place_of_the_flag_is_read_as_the_rollouts_become_a_batch():
    nested = {"reward": 0.0, "mask_sample": False, "instance_config": {"mask_sample": True}}
    failed = {"reward": 0.0, "_ng_failure_class": "judge_failed"}
    batch = postprocess(gym_results({"reward": 1.0}, {"reward": 0.0, "mask_sample": True}, nested, failed))
    verdicts = read_columns(batch)
    assert verdicts.masked_B.tolist() == [False, True, True, True]
    assert verdicts.kinds_B[3] == "judge_failed"


def test_a_missing_reward_does_not_fail_the_batch_and_is_marked_as_not_measured():
    batch = postprocess(gym_results({"reward": None}, {"reward": 1.0}))
    assert read_columns(batch).measured_B.tolist() == [False, True]


def test_the_hosts_switch_keeps_verdicts_out_of_the_batch():
    batch = postprocess(gym_results({"reward": 0.0, "mask_sample": True}), mask_env_flagged_samples=False)
    assert read_columns(batch) is None


def test_single_controllers_rows_carry_their_verdicts():
    completion = SimpleNamespace(reward=0.0, env_extras={"reward": 0.0, "mask_sample": "True"})
    record = SimpleNamespace(completions=[completion], metadata={"task_name": "nemo_gym"})
    batch = rollouts.wrap_record_to_train_batch(host.record_to_train_batch)(record, pad_value_dict={})
    assert read_columns(batch).masked_B.tolist() == [True]


def test_a_placeholder_takes_the_prompt_of_its_sibling():
    tokenizer = SimpleNamespace(eos_token_id=9, apply_chat_template=lambda *_, **__: [7])
    empty = placeholder_result({"reward": 0.0, "mask_sample": True, "responses_create_params": {}}, tokenizer)
    (sibling,) = gym_results({"reward": 1.0})
    adopt_prompts([empty, sibling], ["one", "one"])
    assert empty["full_result"][MARK]
    assert empty["message_log"][0]["token_ids"].tolist() == [1, 2]
    assert empty["message_log"][1]["token_ids"].tolist() == [9]
    assert prompt_key({"_ng_task_index": 1}) != prompt_key({"_ng_task_index": 2})


@pytest.mark.parametrize("action", ["ignore", "loss_multiplier", "exclude"])
def test_a_placeholder_never_trains_and_never_votes_whatever_the_policy(action):
    from samplemask import MaskPolicy
    from samplemask_nemo_rl.decision import decide
    from samplemask_nemo_rl.session import Session

    lost = {"reward": 1.0, "mask_sample": True, "failure_kind": "session_lost", MARK: True}
    batch = postprocess(gym_results(lost, {"reward": 1.0}, {"reward": 0.0}))
    batch["prompt_ids_for_adv"] = torch.zeros(3, 1).long()
    decided = decide(batch, Session(MaskPolicy(action=action, scored_kinds={"session_lost"}), "here"))
    assert decided.trains_B.tolist() == decided.votes_B.tolist() == [False, True, True]


def test_a_placeholder_is_the_hosts_error_again_where_nothing_may_be_masked():
    lost = {"reward": 0.0, "mask_sample": True, MARK: True}
    with pytest.raises(ValueError, match="no generation data"):
        postprocess(gym_results(lost), mask_env_flagged_samples=False)


def test_a_run_reads_its_policy_when_its_estimator_is_made():
    section = SimpleNamespace(adv_estimator={"mask_sample": {"action": "drop_group"}})
    made = estimators.wrap_create_estimator(host._create_advantage_estimator)(
        SimpleNamespace(grpo=section, env={})
    )
    assert made.samplemask_session.policy.action == "drop_group"
    assert estimators.Process.session is made.samplemask_session


def arrive(flags, rewards, **options):
    """Let a batch arrive at a synchronous loop."""
    from samplemask import MaskPolicy
    from samplemask_nemo_rl.columns import read_results, write_columns
    from samplemask_nemo_rl.session import Session

    estimators.Process.session = Session(MaskPolicy(**options), "here")
    responses = [{"reward": reward, "mask_sample": flag} for flag, reward in zip(flags, rewards, strict=True)]
    batch = {
        "total_reward": torch.tensor(rewards),
        "loss_multiplier": torch.ones(len(flags)),
        "prompt_ids_for_adv": torch.zeros(len(flags), 1).long(),
    }
    write_columns(batch, read_results(responses))
    return loops.wrap_scale_rewards(host.scale_rewards)(batch, None)


def test_dynamic_sampling_sees_the_statistics_of_the_voters_and_masked_rows_follow():
    batch = arrive([False, False, False, True], [1.0, 1.0, 1.0, 0.0])
    statistics = loops.wrap_statistics(host.calculate_baseline_and_std_per_prompt)
    baseline, std = statistics(torch.zeros(4, 1).long(), batch["total_reward"], torch.ones(4))
    assert baseline.tolist() == [1, 1, 1, 1]
    assert std.tolist() == [0, 0, 0, 0]


def test_ppo_survives_a_batch_in_which_nothing_is_left():
    batch = arrive([True, True], [1.0, 0.0], min_valid=1)
    masking = loops.wrap_ppo_masking(host._apply_ppo_seq_logprob_error_masking)
    train_data = {"token_mask": torch.ones(2, 3), "sample_mask": batch["loss_multiplier"]}
    mask, metrics = masking(train_data, batch["total_reward"], None)
    assert mask.sum() == 0
    assert metrics["mask_sample/no_signal_step"] == 1.0


def test_ppo_counts_the_rows_of_each_step_once():
    masking = loops.wrap_ppo_masking(host._apply_ppo_seq_logprob_error_masking)
    for _ in range(2):
        batch = arrive([True, False, False], [1.0, 1.0, 0.0], min_valid=1)
        train_data = {"token_mask": torch.ones(3, 2), "sample_mask": batch["loss_multiplier"]}
        _, metrics = masking(train_data, batch["total_reward"], None)
        advantages(host.RawRewardAdvantageEstimator(), [1.0, 1.0, 0.0], None, mask=[0.0, 1.0, 1.0])
        assert metrics["mask_sample/rows_trained"] == 2.0


def test_a_batch_given_by_position_is_read_too():
    compute = estimators.wrap_compute_advantage(
        lambda self, ids, rewards, mask, repeated_batch: rewards[:, None]
    )
    flags = {MASKED: torch.tensor([False, True, False])}
    prompts, rewards = torch.zeros(3, 1).long(), torch.tensor([1.0, NAN, 0.0])
    result = compute(host.GRPOAdvantageEstimator(), prompts, rewards, torch.ones(3, 1), flags)
    assert result[:, 0].tolist() == [1.0, 0.0, 0.0]


def test_ppo_without_verdicts_still_stops_when_nothing_is_left():
    masking = loops.wrap_ppo_masking(host._apply_ppo_seq_logprob_error_masking)
    with pytest.raises(RuntimeError, match="no valid response tokens"):
        masking({"token_mask": torch.ones(1, 1), "sample_mask": torch.zeros(1)}, torch.zeros(1), None)


def test_a_worker_without_samplemask_runs_its_own_hook_says_so_and_starts(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "samplemask_nemo_rl.plugin", None)  # importing it fails
    ran = []
    worker_hook(lambda: ran.append("earlier"))()
    assert ran == ["earlier"]
    assert "not active in this worker" in caplog.text


def test_a_workers_own_environment_is_kept():
    paths = with_import_path({"PYTHONPATH": "/mine", "A": "1"})
    assert paths["A"] == "1"
    assert paths["PYTHONPATH"].endswith("/mine")


class DataPlane:
    """Rows in memory, behind the two methods that SingleController uses."""

    def __init__(self, **columns):
        self.columns = columns

    def get_samples(self, *, select_fields, **_):
        return {name: self.columns[name] for name in select_fields}

    async def put_samples(self, *, fields, **_):
        self.columns.update(fields)


@pytest.mark.parametrize(
    ("action", "sample_mask", "flags"),
    [
        ("exclude", [1, 0, 1, 1], [False, True, False, False]),
        ("drop_group", [0, 0, 1, 1], [False, True, False, False]),
        ("ignore", [1, 1, 1, 1], [False] * 4),
    ],
)
def test_the_newer_single_controller_stage_decides_in_the_data_plane(monkeypatch, action, sample_mask, flags):
    from samplemask import MaskPolicy
    from samplemask_nemo_rl import single_controller
    from samplemask_nemo_rl.session import Session

    monkeypatch.setattr(single_controller, "_fields_for_put", lambda _, fields: fields)
    plane = DataPlane(
        prompts=torch.tensor([[1], [1], [2], [2]]), rewards=torch.tensor([1.0, 9.0, 1.0, 0.0]),
        sample_mask=torch.ones(4), mask_sample=torch.tensor([False, True, False, False]),
    )  # fmt: skip
    fields = {"prompt_ids_field": "prompts", "reward_field": "rewards", "sample_mask_field": "sample_mask"}
    session = Session(MaskPolicy(action=action, min_valid=1), "")
    stage = SimpleNamespace(
        _dp_client=plane, _config=SimpleNamespace(advantage=SimpleNamespace(**fields)),
        _advantage_estimator=SimpleNamespace(samplemask_session=session),
    )  # fmt: skip
    request = SimpleNamespace(meta=SimpleNamespace(fields=["mask_sample"], sample_ids=[], partition_id=""))

    async def run(self, request):
        return decided_rows.get()

    decided = asyncio.run(single_controller.wrap_newer_stage(run)(stage, request))
    assert plane.columns["sample_mask"].tolist() == sample_mask
    assert plane.columns["mask_sample"].tolist() == flags
    assert decided.trains_B.tolist() == [bool(value) for value in sample_mask]
