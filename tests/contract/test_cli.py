import json
import subprocess
import sys

import pytest

import samplemask
from samplemask.cli import main

ROWS = """\
{"_ng_task_index": 0, "_ng_rollout_index": 0, "reward": 1.0, "agent_ref": {"name": "a"}}
{"_ng_task_index": 0, "_ng_rollout_index": 1, "reward": 0, "mask_sample":true, "failure_kind": "judge_failed"}
<PLACEHOLDER ROW>
"""


@pytest.fixture
def rollouts(tmp_path):
    path = tmp_path / "rollouts.jsonl"
    path.write_text(ROWS)
    return str(path)


def test_audit_prints_a_table(rollouts, capsys):
    assert main(["audit", rollouts]) == 0
    out = capsys.readouterr().out
    assert "2 rollouts" in out
    assert "judge_failed" in out
    assert ":3: not JSON" in out


def test_audit_json_has_the_documented_keys(rollouts, capsys):
    assert main(["audit", rollouts, "--json"]) == 0
    audit = json.loads(capsys.readouterr().out)
    assert audit["dispositions"] == {"scored": 1, "masked": 1, "failed": 0, "omitted": 0, "unknown": 0}
    assert audit["unreadable_lines"] == [3]
    assert audit["reward"] == {"all": 0.5, "unmasked": 1.0}
    assert audit["kinds"] == {"judge_failed": 1}
    assert audit["by_agent"]["a"]["dispositions"]["scored"] == 1


def test_standard_input_is_a_file_like_any_other(rollouts):
    command = [sys.executable, "-m", "samplemask.cli", "audit", "-", "--json"]
    done = subprocess.run(command, input=ROWS.encode(), capture_output=True, check=True)
    assert json.loads(done.stdout)["dispositions"]["scored"] == 1


def test_a_path_that_does_not_exist_is_named(capsys):
    assert main(["audit", "no/such/file.jsonl"]) == 2
    assert "no/such/file.jsonl" in capsys.readouterr().err


def test_a_reader_of_the_output_that_leaves_early_is_no_error(rollouts):
    script = f"{sys.executable} -m samplemask.cli audit {rollouts} | true"
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=True)
    assert done.stderr == b""


def test_version_is_printed(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"samplemask {samplemask.__version__}\n"


def test_help_names_the_three_commands(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    out = capsys.readouterr().out
    assert all(command in out for command in ("audit", "doctor", "demo"))


def test_doctor_prints_versions(capsys):
    assert main(["doctor"]) == 0
    assert f"samplemask {samplemask.__version__}" in capsys.readouterr().out


def test_a_demo_that_is_not_installed_says_so(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "samplemask.demo", None)
    assert main(["demo"]) == 2
    assert "samplemask.demo" in capsys.readouterr().err
