"""The seams on a real checkout, the launcher, and what a user sees when something is off."""

import importlib
import inspect
import subprocess
import sys

import pytest
from nemo_rl.algorithms import advantage_estimator, grpo

import samplemask_nemo_rl
from samplemask import SeamError
from samplemask_nemo_rl import plugin


def test_every_seam_fits_is_active_and_is_undone(checkout):
    before = grpo.scale_rewards, advantage_estimator.GRPOAdvantageEstimator.compute_advantage
    samplemask_nemo_rl.install()
    lines = list(samplemask_nemo_rl.doctor())
    assert len([line for line in lines if line.startswith("active")]) == len(plugin.all_seams())
    assert str(checkout) in lines[0]
    samplemask_nemo_rl.uninstall()
    assert not samplemask_nemo_rl.is_active()
    assert (grpo.scale_rewards, advantage_estimator.GRPOAdvantageEstimator.compute_advantage) == before
    assert not [line for line in samplemask_nemo_rl.doctor() if line.startswith("active")]


def test_installing_twice_wraps_once(adapter):
    adapter.install()
    assert not hasattr(grpo.scale_rewards.__wrapped__, "__wrapped__")


def test_a_host_that_changed_is_refused_before_anything_is_patched(monkeypatch):
    def scale_rewards(batch, new_parameter):
        return batch

    code = grpo.scale_rewards.__code__
    monkeypatch.setattr(grpo, "scale_rewards", scale_rewards)
    scale_rewards.__code__ = scale_rewards.__code__.replace(co_filename=code.co_filename)
    with pytest.raises(
        SeamError, match=r"grpo\.scale_rewards: expected parameters .*repeated_batch.*new_parameter"
    ):
        samplemask_nemo_rl.install()
    assert not samplemask_nemo_rl.is_active()
    assert not hasattr(advantage_estimator.GRPOAdvantageEstimator.compute_advantage, "__wrapped__")


def test_all_estimators_of_the_host_are_known():
    owners = {
        name
        for name, value in vars(advantage_estimator).items()
        if inspect.isclass(value) and "compute_advantage" in vars(value)
    }
    known = {
        seam.attribute.partition(".")[0]
        for seam in plugin.all_seams()
        if "compute_advantage" in seam.attribute
    }
    assert owners == known


def test_the_launcher_runs_a_script_with_its_own_arguments_and_everything_installed(tmp_path):
    script = tmp_path / "run_something.py"
    script.write_text(
        "import sys, neighbour, samplemask_nemo_rl\n"
        "from nemo_rl.algorithms import grpo\n"
        "assert __name__ == '__main__' and neighbour.here\n"
        "print(sys.argv[1:], samplemask_nemo_rl.is_active(), hasattr(grpo.scale_rewards, '__wrapped__'))\n"
    )
    (tmp_path / "neighbour.py").write_text("here = True\n")
    arguments = ["--config", "a.yaml", "++grpo.max_num_steps=3", "--", "-x"]
    done = subprocess.run(
        [sys.executable, "-m", "samplemask_nemo_rl", str(script), *arguments],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"{arguments} True True"


def test_the_launcher_without_a_script_says_how_it_is_used():
    done = subprocess.run(
        [sys.executable, "-m", "samplemask_nemo_rl"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "usage: python -m samplemask_nemo_rl SCRIPT" in done.stderr


@pytest.mark.parametrize("seam", plugin.all_seams(), ids=lambda seam: seam.name)
def test_each_seam_says_where_it_was_checked_why_it_exists_and_when_it_goes(seam):
    assert seam.source.endswith(("at 7ea279a", "worker.py"))
    assert seam.why.endswith(".")
    assert seam.removable_when.endswith(".")
    assert importlib.import_module(seam.module)
