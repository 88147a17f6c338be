"""All rollout files in Gym's wheel: each line is a verdict or a problem with its number, never a crash."""

import json
from pathlib import Path

import pytest

nemo_gym = pytest.importorskip("nemo_gym", reason="NeMo Gym is not installed here (it needs Python 3.13)")

from samplemask.audit import Options, audit_files

SITE = Path(nemo_gym.__file__).parents[1]
FILES = sorted(
    path
    for top in ("resources_servers", "responses_api_agents", "benchmarks", "environments")
    for path in (SITE / top).glob("**/data/*rollouts*.jsonl")
)
SIMULATION = SITE / "resources_servers/conversational_tool_use_simulation/data/example_rollouts.jsonl"


def lines(path):
    """Return the numbers of the lines that are not blank."""
    with path.open("rb") as file:
        return [number for number, line in enumerate(file, 1) if line.strip()]


def is_object(line):
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def test_there_are_many_files():
    assert len(FILES) > 150


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SITE)))
def test_every_line_of_a_shipped_file_is_accounted_for(path):
    audit = audit_files([path], siblings=False)
    (file,) = audit.reader.files
    assert file.rows + file.unreadable == len(lines(path))
    assert {problem.line for problem in audit.reader.problems} <= set(lines(path))
    assert len(audit.reader.problems) == file.unreadable


def test_every_line_that_is_a_json_object_is_read():
    rows = sum(file.rows for path in FILES for file in audit_files([path], siblings=False).reader.files)
    assert rows == sum(is_object(line) for path in FILES for line in path.read_bytes().splitlines())


def test_placeholder_lines_are_reported_by_number():
    holding = [path for path in FILES if b"<PLACEHOLDER ROW>" in path.read_bytes()]
    assert holding
    for path in holding:
        found = [
            number
            for number, line in enumerate(path.read_bytes().splitlines(), 1)
            if line.strip() == b"<PLACEHOLDER ROW>"
        ]
        reported = {problem.line for problem in audit_files([path], siblings=False).reader.problems}
        assert found
        assert set(found) <= reported


def test_the_simulation_that_sets_only_the_nested_flag():
    audit = audit_files([SIMULATION], siblings=False)
    document = audit.to_json()
    assert document["dispositions"]["scored"] == 3
    assert document["dispositions"]["masked"] == 2
    assert document["reward"]["all"] == pytest.approx(0.4)
    assert document["reward"]["unmasked"] == pytest.approx(2 / 3)


def test_the_fast_reader_reads_every_shipped_row_like_the_complete_one():
    pytest.importorskip("fastsimdjson", reason="the fast reader needs fastsimdjson")
    fast, complete = (
        audit_files(FILES, siblings=False, options=Options(fast=fast)).to_json() for fast in (True, False)
    )
    assert fast == complete
    assert fast["expected"] > 900
