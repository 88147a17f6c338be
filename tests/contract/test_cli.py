import json
import os
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


def test_the_command_also_runs_as_a_module(rollouts):
    command = [sys.executable, "-m", "samplemask", "audit", rollouts, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["dispositions"]["masked"] == 1


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


def test_strict_fails_on_unreadable_lines_and_says_why(rollouts, capsys):
    assert main(["audit", rollouts, "--strict"]) == 1
    assert "1 line is unreadable" in capsys.readouterr().err


def test_strict_fails_on_unknown_rollouts(rollouts, capsys):
    assert main(["audit", rollouts, "--strict", "--expected", "5"]) == 1
    assert "3 rollouts are unknown" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("", "no line"),
        ("<PLACEHOLDER ROW>\n", "1 line, and it cannot be read"),
        ("[1]\n\n{,\n", "3 lines, and none can be read"),
    ],
)
def test_a_file_without_any_readable_line_is_no_audit(tmp_path, content, found, capsys):
    path = tmp_path / "rollouts.jsonl"
    path.write_text(content)
    assert main(["audit", str(path)]) == 2
    said = capsys.readouterr()
    assert f"expected rollouts, one JSON object a line, found {found}. Nothing was measured." in said.err
    assert "0 rollouts in 1 file" in said.out


def test_strict_passes_on_a_clean_file_and_fails_above_the_threshold(tmp_path, capsys):
    path = tmp_path / "clean.jsonl"
    path.write_text("\n".join(ROWS.splitlines()[:2]))
    check = ["audit", str(path), "--strict", "--min-rollouts", "2", "--max-lost"]
    assert main([*check, "0.5"]) == 0
    assert main([*check, "0.4"]) == 1
    assert "masked or failed" in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong", [["--max-lost", "1.5"], ["--max-lost", "x"], ["--jobs", "0"], ["--expected", "-1"], ["--jso"]]
)
def test_a_wrong_option_is_refused(rollouts, wrong, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["audit", rollouts, *wrong])
    assert stopped.value.code == 2
    assert wrong[0] in capsys.readouterr().err


def test_the_page_is_written_beside_the_table(rollouts, tmp_path, capsys):
    assert main(["audit", rollouts, "--html", str(tmp_path / "page.html")]) == 0
    assert "Rollout audit" in (tmp_path / "page.html").read_text()
    assert "2 rollouts" in capsys.readouterr().out


def test_output_that_is_no_terminal_has_no_colour(rollouts, capsys):
    main(["audit", rollouts])
    assert "\x1b" not in capsys.readouterr().out


def test_no_color_is_honoured_on_a_terminal(rollouts, capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    main(["audit", rollouts])
    assert "\x1b[" in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    main(["audit", rollouts])
    assert "\x1b[" not in capsys.readouterr().out


def test_an_audit_that_is_interrupted_prints_nothing(rollouts, capsys, monkeypatch):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("samplemask.reader.Reader.read", interrupt)
    assert main(["audit", rollouts, "--json"]) == 130
    assert capsys.readouterr().out == ""


def test_an_audit_that_is_killed_half_way_has_printed_nothing():
    command = [sys.executable, "-m", "samplemask.cli", "audit", "-", "--json"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdin.write(ROWS.encode() * 1000)
        process.stdin.flush()
        process.kill()
        assert process.stdout.read() == b""


def test_a_terminal_that_knows_only_ascii_is_no_reason_to_fail(rollouts):
    command = [sys.executable, "-m", "samplemask.cli", "audit", rollouts]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run(command, capture_output=True, check=True, env=environment)
    assert b"2 rollouts" in done.stdout
