"""`samplemask demo`: the recorded run, with the reference estimator where there is no verl."""

import importlib.util
import re
import sys

import numpy as np
import pytest

from samplemask import ContractError
from samplemask.cli import main
from samplemask.demo import estimates, rollouts, run_demo, story
from samplemask.testing.batches import GrpoBatch


@pytest.fixture
def without_verl(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "verl" else find(name))


def test_the_batch_holds_every_row_that_came_back_lost_ones_as_zero():
    batch = rollouts.read_batch(rollouts.recording())
    # 16 tasks of 8, three rollouts killed; the session store, the judge and one agent lost 31.
    assert len(batch) == 125
    assert batch.masked_B.sum() == 31
    assert batch.reward_B[batch.masked_B].tolist() == [0.0] * 31


def test_estimates_of_a_group_that_lost_a_row(without_verl):
    batch = GrpoBatch.of([1.0, 1.0, 0.5, 0.0], masked=[0, 0, 0, 1])
    found = estimates.estimate(batch)
    assert found.stock_B.tolist() == [0.375, 0.375, -0.125, -0.625]
    assert found.masked_B.round(4).tolist() == [0.1667, 0.1667, -0.3333, 0.0]
    assert found.trains_B.tolist() == [True, True, True, False]
    assert "verl is not installed" in found.source


def test_a_row_between_the_two_means_is_turned(without_verl):
    batch = GrpoBatch.of([1.0, 0.5, 0.0], masked=[0, 0, 1])  # means 0.5 and 0.75
    assert not story.turned(estimates.estimate(batch)).any()  # 0.5 lies on the first one
    batch = GrpoBatch.of([1.0, 0.75, 0.75, 0.0], masked=[0, 0, 0, 1])  # means 0.625 and 0.8333
    assert story.turned(estimates.estimate(batch)).tolist() == [False, True, True, False]


def test_the_command_prints_the_story_and_writes_it(without_verl, capsys, tmp_path):
    assert main(["demo", "--out", str(tmp_path / "new")]) == 0
    printed = capsys.readouterr().out
    assert "A FAILED ROLLOUT IS NOT A ZERO" in printed
    assert re.search(r"scored +94 +73.4%", printed)
    assert "   13 of 93 measured answers are trained in the wrong direction without samplemask." in printed
    assert (tmp_path / "new/demo.txt").read_text() == printed


def test_a_batch_without_failures_has_nothing_to_tell(without_verl):
    batch = GrpoBatch.of([1.0, 0.0, 0.5, 0.5], groups=[0, 0, 1, 1])
    found = estimates.estimate(batch)
    assert np.array_equal(found.stock_B, found.masked_B)
    text = story.tell(batch, found, "")
    assert "task" not in text.partition("2.")[2].partition("3.")[0].partition("sign changes")[2]
    assert "   0 of 4 measured answers" in text


def test_without_matplotlib_the_demo_says_what_to_install(without_verl, capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert run_demo(tmp_path) == 0
    assert "pip install matplotlib" in capsys.readouterr().out
    assert not (tmp_path / "demo.png").exists()


def test_with_matplotlib_there_is_a_picture(without_verl, capsys, tmp_path):
    pytest.importorskip("matplotlib", reason="the picture needs the extra `demo`")
    assert run_demo(tmp_path) == 0
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")


def test_a_missing_recording_is_an_error_that_says_what_to_do(monkeypatch):
    monkeypatch.setattr(rollouts, "NAME", "absent.jsonl")
    with pytest.raises(ContractError, match="Install a complete samplemask wheel"):
        rollouts.recording()
