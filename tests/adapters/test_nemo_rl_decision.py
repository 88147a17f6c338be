"""The session of a run, a batch decided: on stand-ins, no host."""

import logging
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed here")
import nemo_rl_standins as host
import torch
from hypothesis import given
from hypothesis import strategies as st
from rollout_files import audited

from samplemask import ContractError, MaskPolicy, OutageError, failure_kinds, plan_rows
from samplemask_nemo_rl.columns import DETAILS, MASKED, VOTES, read_results, write_columns
from samplemask_nemo_rl.decision import Ledger, decide, ledger, rows_of
from samplemask_nemo_rl.session import Session, session_of


@pytest.fixture(autouse=True)
def _empty_ledger():
    ledger.begin()
    yield
    ledger.begin()


def config(mask_sample=None, env=None, algorithm="grpo"):
    estimator = {} if mask_sample is None else {"mask_sample": mask_sample}
    return SimpleNamespace(**{algorithm: SimpleNamespace(adv_estimator=estimator), "env": env or {}})


def session(**options):
    return Session(MaskPolicy(**options), "here")


def batch(results, prompts=None, rewards=None):
    """A rollout batch of these verify responses; all rows of one prompt unless `prompts` says otherwise."""
    size = len(results)
    columns = {
        "total_reward": torch.tensor(rewards or [float(each.get("reward") or 0.0) for each in results]),
        "loss_multiplier": torch.ones(size),
        "prompt_ids_for_adv": torch.tensor([[prompt] for prompt in prompts or [0] * size]),
    }
    write_columns(columns, read_results(results))
    return columns


def responses(masked, **fields):
    return [{"reward": 1.0, "mask_sample": bool(flag), **(fields if flag else {})} for flag in masked]


def test_the_policy_comes_from_the_estimators_section_of_grpo_or_ppo():
    estimator = host.GRPOAdvantageEstimator()
    assert session_of(config({"min_valid": 3}), estimator).policy.min_valid == 3
    assert session_of(config(algorithm="ppo"), host.RawRewardAdvantageEstimator()).where.startswith("ppo.")


def test_min_valid_counts_only_where_an_estimator_compares_a_group():
    assert session_of(config(), host.GRPOAdvantageEstimator()).policy.min_valid == 2
    assert session_of(config(), host.RawRewardAdvantageEstimator()).policy.min_valid == 1
    assert session_of(config(), SimpleNamespace(minus_baseline=False)).policy.min_valid == 1
    assert session_of(config(), SimpleNamespace(minus_baseline=True)).policy.min_valid == 2


def test_the_hosts_switch_turns_everything_off():
    made = session_of(config(env={"should_mask_flagged_samples": False}), host.GRPOAdvantageEstimator())
    assert made.switched_off
    assert made.policy.action == "ignore"


def test_a_policy_that_masks_by_kind_contradicts_the_switch():
    with pytest.raises(ContractError, match="should_mask_flagged_samples"):
        session_of(
            config({"masked_kinds": ["judge_failed"]}, {"should_mask_flagged_samples": False}),
            host.GRPOAdvantageEstimator(),
        )


def test_a_decided_batch_has_no_loss_where_a_row_is_masked_and_says_who_votes():
    data = batch(responses([0, 1, 0, 0]))
    decided = decide(data, session())
    assert data["loss_multiplier"].tolist() == [1, 0, 1, 1]
    assert data[VOTES].tolist() == decided.votes_B.tolist() == [True, False, True, True]


def test_a_batch_is_decided_once():
    data = batch(responses([0, 1, 0, 0]))
    decide(data, session())
    again = decide(data, session(action="ignore"))
    assert again.trains_B.tolist() == [True, False, True, True]
    assert ledger.publish()["mask_sample/masked_pct"] == 25.0


def test_the_hosts_own_exclusion_is_kept_and_does_not_cost_the_vote():
    data = batch(responses([0, 1, 0, 0]))
    data["loss_multiplier"][3] = 0.0
    decide(data, session())
    assert data["loss_multiplier"].tolist() == [1, 0, 1, 0]
    assert data[VOTES].tolist() == [True, False, True, True]


def test_rows_of_a_thin_group_neither_vote_nor_train():
    data = batch(responses([1, 0, 0, 0]), prompts=[0, 0, 1, 1])
    decide(data, session())
    assert data["loss_multiplier"].tolist() == [0, 0, 1, 1]
    assert data[VOTES].tolist() == [False, False, True, True]
    assert data[MASKED].tolist() == [True, False, False, False]
    assert rows_of(data).votes_B.tolist() == rows_of(data).trains_B.tolist() == [False, False, True, True]
    assert ledger.publish()["mask_sample/groups_thin"] == 1.0


@pytest.mark.parametrize("action", ["ignore", "loss_multiplier", "exclude"])
def test_a_row_without_a_reward_never_votes_and_never_trains(action):
    data = batch([{"reward": 1.0}, {"reward": None}, {"reward": 0.0}, {"reward": 0.0}])
    decided = decide(data, session(action=action))
    assert decided.votes_B.tolist() == decided.trains_B.tolist() == [True, False, True, True]


def test_a_kind_cannot_score_a_row_that_has_no_reward():
    lost = {"reward": None, "mask_sample": True, "failure_kind": "session_lost"}
    scored = {**lost, "reward": 0.5}
    data = batch([{"reward": 1.0}, lost, {"reward": 0.0}, scored])
    assert decide(data, session(scored_kinds={"session_lost"})).trains_B.tolist() == [True, False, True, True]
    assert data[MASKED].tolist() == [False, True, False, False]
    published = ledger.publish()
    assert published["mask_sample/reward"] == 0.5  # of 1, 0 and 0.5: a missing reward is no zero
    assert published["mask_sample/kind/samplemask:reward_missing"] == 1.0
    assert "mask_sample/kind/session_lost" not in published  # the rule; the run's account keeps what was said
    assert published["mask_sample_run/kind/session_lost"] == 2.0
    watchful = session(scored_kinds={"session_lost"}, max_masked_fraction=0.2, outage_min_rows=4)
    with pytest.raises(OutageError, match="samplemask:reward_missing: 1"):
        decide(batch([{"reward": 1.0}, lost, {"reward": 0.0}, scored]), watchful)


def test_component_values_that_were_not_measured_are_counted_where_their_row_votes():
    nan = float("nan")
    columns = {"reward/a": torch.tensor([nan, nan, nan]), "reward/b": torch.tensor([[0.5], [1.0], [nan]])}
    decide({**batch(responses([0, 1, 0])), **columns, "rewards": torch.tensor([nan, nan, nan])}, session())
    assert ledger.publish()["mask_sample/components_unmeasured"] == 3.0
    for _ in range(2):
        decide({**batch(responses([0, 0, 0])), **columns}, session())
    published = ledger.publish()
    assert published == {"mask_sample/components_unmeasured": 8.0}
    decide(batch(responses([0, 0, 0])), session())
    assert ledger.publish() == {}
    decide({**batch(responses([0, 0, 0])), "reward/notes": ["a", "b", "c"], 7: None}, session())
    assert ledger.publish() == {}
    fresh = Ledger()
    fresh.add(plan_rows([False], None, MaskPolicy()), read_results(responses([0])), np.ones(1), [None])
    fresh.count_unmeasured(1)
    assert fresh.publish() == {"mask_sample/components_unmeasured": 1.0}
    ledger.count_unmeasured(1)
    ledger.begin()
    assert ledger.publish() == {}


def test_a_reward_that_is_not_a_number_masks_its_row_and_is_counted_as_that():
    data = batch(responses([0, 0, 0]), rewards=[1.0, float("nan"), 0.0])
    assert decide(data, session()).trains_B.tolist() == [True, False, True]
    assert ledger.publish()["mask_sample/kind/samplemask:reward_not_finite"] == 1.0


def test_an_outage_is_raised_with_its_kinds():
    data = batch(responses([1, 1, 0, 0], failure_kind="session_lost"))
    with pytest.raises(OutageError, match="session_lost: 2"):
        decide(data, session(max_masked_fraction=0.25, outage_min_rows=4))


def test_a_batch_without_verdicts_is_left_alone_and_without_a_run_nothing_is_decided():
    data = {"loss_multiplier": torch.ones(2), "total_reward": torch.ones(2)}
    assert decide(data, session()) is None
    assert decide(batch(responses([1, 0])), None) is None
    assert data.keys() == {"loss_multiplier", "total_reward"}


@pytest.fixture
def warned(caplog, monkeypatch):
    """What was warned of, in a process that has not yet warned of anything."""
    monkeypatch.setattr(failure_kinds, "_reported", set())
    caplog.set_level(logging.WARNING, logger="samplemask")
    return lambda: [record.getMessage() for record in caplog.records]


def test_rollouts_that_arrive_unread_are_reported_unless_masking_is_off(warned):
    unread = {"agent_ref": [{}], "loss_multiplier": torch.ones(1)}
    decide(dict(unread), Session(MaskPolicy(action="ignore"), "here", switched_off=True))
    decide({"loss_multiplier": torch.ones(1)}, session())
    assert warned() == []
    decide(dict(unread), session())
    assert len(warned()) == 1
    assert "not installed in the process that ran them" in warned()[0]


def test_a_step_without_any_verdict_is_reported_unless_masking_is_off(warned):
    silent = [{"reward": 1.0}, {"reward": 0.0}]
    decide(batch(silent), Session(MaskPolicy(action="ignore"), "here", switched_off=True))
    decide(batch(responses([0, 0])), session())
    assert warned() == []
    decide(batch(silent), session())
    assert len(warned()) == 1
    assert "no rollout of this step carries a verdict" in warned()[0]


def test_rows_of_a_batch_without_prompt_ids_are_grouped_by_their_messages():
    data = batch(responses([1, 0, 0, 0]))
    del data["prompt_ids_for_adv"]
    data["message_log"] = [[{"token_ids": torch.tensor([prompt])}] for prompt in (7, 8, 8, 7)]
    data["length"] = torch.tensor([1, 1, 1, 1])
    assert decide(data, session()).votes_B.tolist() == [False, True, True, False]


def test_several_generated_batches_of_one_step_are_published_together():
    for flags in ([1, 1, 0, 0], [0, 0, 0, 0]):
        decide(
            batch(responses(flags, failure_kind="session_lost"), [0, 0, 1, 1]), session(action="drop_group")
        )
    metrics = ledger.publish()
    assert metrics["mask_sample/masked_pct"] == 25.0
    assert metrics["mask_sample/groups_dropped"] == 1.0
    assert metrics["mask_sample/rows_trained"] == 6.0
    assert ledger.publish() == {}


def test_the_account_of_the_run_is_the_audit_of_its_files(tmp_path):
    lost = {"mask_sample": True, "failure_kind": "session_lost"}
    steps = [
        [{"reward": 0.5}, {"reward": 0.25, **lost}, {"reward": 1.0}, {"reward": 0.0, "mask_sample": True}],
        [{"reward": 0.125}, {"reward": 0.75}],
        [{"reward": 0.0, "_ng_failure_class": "NodeFailure"}, {"reward": None}, {"reward": 1.0}],
    ]
    published = []
    for results in steps:
        decide(batch(results), session(scored_kinds={"session_lost"}))
        published.append(ledger.publish())
    assert published[1] == {}
    document = audited(tmp_path, [result for results in steps for result in results])
    run = {name: value for name, value in published[2].items() if name.startswith("mask_sample_run/")}
    assert run == {
        **{
            f"mask_sample_run/{name}": document["dispositions"][name]
            for name in ("scored", "masked", "failed")
        },
        "mask_sample_run/reward": document["reward"]["all"],
        "mask_sample_run/reward_unmasked": document["reward"]["unmasked"],
        **{f"mask_sample_run/kind/{kind}": count for kind, count in document["kinds"].items()},
    }
    assert document["reward"]["unmasked"] == 3.375 / 5


def one_of_three_masked():
    account, verdicts = Ledger(), read_results(responses([1, 0, 0]))
    account.add(plan_rows(verdicts.masked_B, None, MaskPolicy()), verdicts, np.ones(3), verdicts.kinds_B)
    return account


@pytest.mark.parametrize(("trained", "no_signal"), [((0, 0), 1.0), ((1, 0), 0.0), ((3, 2), 0.0)])
def test_rows_that_reached_the_loss_are_added_up_and_replace_the_plans_count(trained, no_signal):
    account = one_of_three_masked()
    for rows in trained:
        account.count_trained(rows)
    metrics = account.publish()
    assert metrics["mask_sample/rows_trained"] == sum(trained)
    assert metrics["mask_sample/no_signal_step"] == no_signal


def test_an_account_that_counted_no_rows_says_what_was_planned():
    account = one_of_three_masked()
    assert account.publish()["mask_sample/rows_trained"] == 2.0


@pytest.mark.parametrize(("limit", "counted"), [(None, False), (0.9, True)])
def test_a_policy_that_leaves_everything_publishes_only_when_it_watches_for_outages(limit, counted):
    decide(batch(responses([1, 0, 0, 0])), session(action="ignore", max_masked_fraction=limit))
    assert ("mask_sample/masked_pct" in ledger.publish()) is counted


@given(
    st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=1, max_size=20),
    st.randoms(use_true_random=False),
)
def test_the_decision_does_not_depend_on_the_order_of_rows(rows, random):
    order = list(range(len(rows)))
    random.shuffle(order)
    data, shuffled = (
        batch(responses([row[1] for row in some]), [row[0] for row in some])
        for some in (rows, [rows[index] for index in order])
    )
    first, second = decide(data, session()), decide(shuffled, session())
    assert np.array_equal(first.votes_B[order], second.votes_B)
    assert DETAILS in data
