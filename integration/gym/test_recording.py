"""The recorded run in examples/: the real collector writes the same files again."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("nemo_gym", reason="NeMo Gym is not installed in this environment (it needs Python 3.13)")

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
NAMES = ("lost_sessions.jsonl", "lost_sessions_failures.jsonl", "lost_sessions_materialized_inputs.jsonl")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    # A process of its own: Gym keeps the addresses of its servers in globals.
    folder = tmp_path_factory.mktemp("recorded")
    command = [sys.executable, str(HERE / "record.py"), str(folder / NAMES[0])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


def rows(path):
    """Return the rows; Gym's message about an HTTP error names a port, which is another one every time."""
    text = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:PORT", path.read_text())
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("name", NAMES)
def test_recording_again_gives_the_committed_file(recorded, name):
    assert rows(recorded / name) == rows(EXAMPLES / name)


def test_each_expected_rollout_left_one_row_or_was_killed():
    main, failures, inputs = (
        {(row["_ng_task_index"], row["_ng_rollout_index"]) for row in rows(EXAMPLES / name)} for name in NAMES
    )
    assert len(inputs) == 16 * 8
    assert not main & failures
    assert inputs - main - failures == {(4, 6), (12, 1), (12, 2)}
