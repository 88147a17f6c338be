"""The audit agrees with what NeMo Gym itself computes from the same files."""

import json
import random
from pathlib import Path

import pytest

nemo_gym = pytest.importorskip("nemo_gym", reason="NeMo Gym is not installed here (it needs Python 3.13)")

from nemo_gym.path_utils import failures_path_for, materialized_path_for
from nemo_gym.reward_profile import (
    RewardProfiler,
    compute_aggregate_metrics,
    compute_pass_majority_metrics,
    coverage_by_agent,
    select_measured,
)
from nemo_gym.rollout_collection import _failure_rows_counted_as_zero, _missing_rollout_rows_counted_as_zero

from samplemask.audit import Options, audit_files
from samplemask.quality import Counting

SITE = Path(nemo_gym.__file__).parents[1]
FILES = sorted(
    path
    for top in ("resources_servers", "responses_api_agents", "benchmarks", "environments")
    for path in (SITE / top).glob("**/data/*rollouts*.jsonl")
    if not path.stem.endswith("_materialized_inputs")
)
CLASSES = ["agent_run_error", "judge_failed", "agent_timeout"]


def a_run(seed):
    """Return main rows, sidecar rows and materialized inputs of a run with every kind of trouble."""
    chance = random.Random(seed)
    main, sidecar, inputs = [], [], []
    for task in range(12):
        for rollout in range(6):
            agent = {"name": "one" if task % 2 else "two"}
            base = {"_ng_task_index": task, "_ng_rollout_index": rollout, "agent_ref": agent}
            inputs.append(base)
            for attempt in range(chance.choice([0, 0, 0, 1, 2])):
                stamp = {"_ng_attempt_index": attempt} if attempt else {}
                sidecar.append({**base, **stamp, "_ng_failure_class": chance.choice(CLASSES)})
            if chance.random() < 0.75:
                masked = chance.random() < 0.2 or task == 3
                reward = float(chance.random() < 0.5)
                main.append({**base, "reward": reward, "mask_sample": masked, "response": {}})
    chance.shuffle(main)
    return main, sidecar, inputs


@pytest.fixture(params=range(8))
def run(request, tmp_path):
    """Return the main file of a run on disk, named by Gym's own functions, and its three lists of rows."""
    main, sidecar, inputs = a_run(request.param)
    path = tmp_path / "rollouts.jsonl"
    files = (path, failures_path_for(path), materialized_path_for(path))
    for file, rows in zip(files, (main, sidecar, inputs), strict=True):
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path, main, sidecar, inputs


def keys(rows):
    return {(row["_ng_task_index"], row["_ng_rollout_index"]) for row in rows}


def test_the_files_of_a_run_are_found_under_the_names_that_gym_gives_them(run):
    path, *_ = run
    audit = audit_files([path])
    assert [file.role for file in audit.reader.files] == ["inputs", "main", "failures"]


def test_measured_rows_and_their_mean_are_gyms(run):
    path, main, _, inputs = run
    _, measured, masked, coverage = select_measured(inputs, main)
    document = audit_files([path]).to_json()
    assert document["dispositions"]["scored"] == len(measured)
    assert document["dispositions"]["masked"] == len(masked)
    assert document["coverage"] == coverage
    assert document["reward"]["unmasked"] == pytest.approx(
        sum(row["reward"] for row in measured) / len(measured), abs=1e-12
    )


def test_the_published_mean_reward_is_gyms(run):
    path, main, *_ = run
    published = compute_aggregate_metrics(main).key_metrics
    document = audit_files([path]).to_json()
    assert document["reward"]["unmasked"] == pytest.approx(published["mean/reward"], abs=1e-12)
    assert not any("mask_sample" in name for name in published)


def test_each_agents_coverage_is_gyms(run):
    path, main, _, inputs = run
    document = audit_files([path]).to_json()
    for agent, coverage in coverage_by_agent(inputs, main).items():
        assert document["by_agent"][agent]["dispositions"]["scored"] == coverage["coverage/measured_rollouts"]
        assert document["by_agent"][agent]["dispositions"]["masked"] == coverage["coverage/masked_rollouts"]


@pytest.mark.parametrize("classes", [[], ["judge_failed"], CLASSES])
def test_failures_counted_as_zeros_are_gyms(run, classes):
    path, main, *_ = run
    counted = _failure_rows_counted_as_zero([failures_path_for(path)], classes, keys(main))
    scored = [row for row in main if not row["mask_sample"]]
    document = audit_files([path], options=Options(failures_as_zero=classes)).to_json()
    assert document["dispositions"]["scored"] == len(scored) + len(counted)
    rewards = [row["reward"] for row in scored + counted]
    assert document["reward"]["unmasked"] == pytest.approx(sum(rewards) / len(rewards), abs=1e-12)


def test_the_unknown_rollouts_are_the_ones_that_gym_counts_as_missing(run):
    path, main, *_ = run
    missing = _missing_rollout_rows_counted_as_zero(
        [materialized_path_for(path)], [failures_path_for(path)], keys(main)
    )
    options = Options(counting=Counting(failed="exclude", missing_as_zero=True))
    document = audit_files([path], options=options).to_json()
    assert document["dispositions"]["unknown"] == len(missing)
    rewards = [row["reward"] for row in main if not row["mask_sample"]] + [row["reward"] for row in missing]
    assert document["reward_counted"] == pytest.approx(sum(rewards) / len(rewards), abs=1e-12)


def test_completion_is_gyms(run):
    path, main, _, inputs = run
    summary = RewardProfiler().profile_completion_summary(inputs, main)
    document = audit_files([path]).to_json()
    assert document["expected"] == summary["expected_rollout_rows"]
    seen = document["dispositions"]["scored"] + document["dispositions"]["masked"]
    assert seen == summary["completed_rollout_rows"]


def test_pass_at_k_of_ones_and_zeros_is_gyms(run):
    path, main, *_ = run
    tasks = {}
    for row in main:
        if not row["mask_sample"]:
            tasks.setdefault(row["_ng_task_index"], []).append(row)
    metrics, *_ = compute_pass_majority_metrics(list(tasks.values()))
    document = audit_files([path], options=Options(counting=Counting(failed="exclude"))).to_json()
    compared = 0
    for k, value in document["pass_at"].items():
        published = metrics.get(f"pass@{k}/accuracy")
        assert value == (None if published is None else pytest.approx(published / 100, abs=1e-12))
        compared += value is not None
    assert compared >= 2


def test_all_shipped_files_in_one_command_add_up():
    audit = audit_files(FILES, siblings=False)
    document = audit.to_json()
    lines = sum(bool(line.strip()) for path in FILES for line in path.read_bytes().splitlines())
    rows = sum(file.rows for file in audit.reader.files)
    assert rows + document["unreadable"]["count"] == lines
    counts = document["dispositions"]
    twice = document["rows"]["duplicates"] + document["rows"]["superseded_attempts"]
    assert sum(counts.values()) == document["expected"] == rows - twice
    assert sum(agent["expected"] for agent in document["by_agent"].values()) == document["expected"]
    simulation = document["by_agent"]["conversational_tool_use_agent"]
    assert simulation["dispositions"]["masked"] == 2
    assert simulation["reward"] == {"all": pytest.approx(0.4), "unmasked": pytest.approx(2 / 3)}


def test_on_shipped_files_gym_sees_no_mask_where_the_audit_sees_the_nested_ones():
    rows = [
        json.loads(line) for path in FILES for line in path.read_bytes().splitlines() if line.startswith(b"{")
    ]
    _, _, seen_by_gym, _ = select_measured([], rows)
    document = audit_files(FILES, siblings=False).to_json()
    stated = document["kinds"]["samplemask:unspecified"]
    assert (len(seen_by_gym), stated) == (0, 2)


@pytest.mark.parametrize("path", FILES[::4], ids=lambda path: str(path.relative_to(SITE)))
def test_flags_set_at_the_top_of_shipped_rows_are_read_as_gym_reads_them(path, tmp_path):
    rows = [json.loads(line) for line in path.read_bytes().splitlines() if line.startswith(b"{")]
    rows = [row for row in rows if isinstance(row.get("reward"), (int, float))]
    for number, row in enumerate(rows):
        row.update(mask_sample=number % 2 == 1, _ng_task_index=number // 2, _ng_rollout_index=number % 2)
        row.pop("instance_config", None)
    copy = tmp_path / "rollouts.jsonl"
    copy.write_text("".join(json.dumps(row) + "\n" for row in rows))
    _, measured, masked, coverage = select_measured([], rows)
    document = audit_files([copy]).to_json()
    assert (document["dispositions"]["scored"], document["dispositions"]["masked"]) == (
        len(measured),
        len(masked),
    )
    assert document["coverage"] == coverage
