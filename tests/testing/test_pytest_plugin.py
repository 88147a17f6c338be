"""The pytest plugin, run by a pytest of its own."""

import subprocess
import sys
import textwrap
from importlib.metadata import entry_points

PASSING = """
    import pytest
    from samplemask.testing import reference_estimator

    def test_my_estimator(samplemask_check):
        assert samplemask_check(reference_estimator())["deletion_equivalence"].holds

    def test_the_default_batch(samplemask_batch):
        assert len(samplemask_batch) == 16

    @pytest.mark.samplemask_batch(2, 3, failure_rate=0.5)
    def test_a_batch_as_marked(samplemask_batch):
        assert (len(samplemask_batch), int(samplemask_batch.masked_B.sum())) == (6, 3)

    def test_my_verify_method(samplemask_verdict):
        response = {"reward": 0.0, "mask_sample": True, "failure_kind": "session_lost"}
        assert samplemask_verdict(response).mask_sample
"""
FAILING = """
    def test_my_estimator(samplemask_check):
        samplemask_check(lambda batch: batch.reward_B)
"""


def run(folder, source, *options) -> subprocess.CompletedProcess:
    (folder / "test_mine.py").write_text(textwrap.dedent(source))
    loaded = any(point.name == "samplemask" for point in entry_points(group="pytest11"))
    plugin = [] if loaded else ["-p", "samplemask.testing.pytest_plugin"]
    command = [sys.executable, "-m", "pytest", "-q", "--strict-markers", *plugin, *options, str(folder)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_the_fixtures_and_the_marker_work(tmp_path):
    done = run(tmp_path, PASSING)
    assert "4 passed" in done.stdout, done.stdout


def test_a_failing_estimator_shows_its_report(tmp_path):
    done = run(tmp_path, FAILING)
    assert done.returncode == 1
    assert "FAIL  deletion_equivalence" not in done.stdout.splitlines()[0]
    assert "ConformanceError" in done.stdout
    assert "FAIL  masked_rows_are_zero: masked row 0 with reward 1 got 1, not 0" in done.stdout


def test_the_fixtures_are_listed_with_their_words(tmp_path):
    done = run(tmp_path, PASSING, "--fixtures")
    for name in ("samplemask_check", "samplemask_batch", "samplemask_verdict"):
        assert f"\n{name} " in done.stdout
