"""Many files at once: shards, copies of rows, and several processes."""

import io
import random
import sys
import types

import pytest
from rollout_files import audited, counts, failure, row, write

from samplemask import reader
from samplemask.audit import Options, audit_files
from samplemask.rollouts import find_runs


def a_mixed_run(folder, name="rollouts"):
    chance = random.Random(5)
    rows = []
    for number in range(300):
        more = {"mask_sample": True, "failure_kind": chance.choice(["session_lost", "env:gone"])}
        rows.append(
            row(
                chance.choice([number // 4, f"task-{number // 4}"]),
                number % 4,
                chance.random(),
                agent=chance.choice(["a", "b", None]),
                attempt=chance.choice([None, 1]),
                **(more if chance.random() < 0.2 else {}),
            )
        )
    write(folder, [failure(number, 0) for number in range(100, 110)], f"{name}_failures.jsonl")
    write(
        folder, [row(number // 4, number % 4) for number in range(320)], f"{name}_materialized_inputs.jsonl"
    )
    path = write(folder, rows, f"{name}.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    lines[10:10] = [b"<PLACEHOLDER ROW>\n", b"\n"]
    lines.append(b'{"reward": 1.0, "te')
    path.write_bytes(b"".join(lines))
    return path


@pytest.mark.parametrize("piece", [4096, 8192])
def test_several_processes_find_what_one_finds(tmp_path, monkeypatch, piece):
    monkeypatch.setattr(reader, "_PIECE", piece)
    monkeypatch.setattr(reader, "WORTH_PROCESSES", 2 * piece)
    paths = [a_mixed_run(tmp_path, "one"), a_mixed_run(tmp_path, "two")]
    alone = audit_files(paths).to_json()
    together = audit_files(paths, options=Options(jobs=2)).to_json()
    assert together == alone
    assert alone["unreadable_lines"] == [11, 303, 11, 303]
    assert alone["dispositions"]["unknown"] > 0


def test_pieces_cover_a_file_without_gap_or_overlap(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "_PIECE", 1000)
    path = write(tmp_path, [row(number, 0, 1.0) for number in range(100)])
    parts = reader.parts_of(find_runs([path]), jobs=2)
    assert len(parts) > 3
    assert [part.start for part in parts[1:]] == [part.stop for part in parts[:-1]]
    assert (parts[0].start, parts[-1].stop) == (0, None)


def test_the_same_row_in_two_files_of_one_directory_is_counted_once(tmp_path):
    shard = [row(0, 0, 1.0), row(0, 1, 0.0, mask_sample=True)]
    merged = [*shard, row(1, 0, 0.5)]
    document = audit_files(
        [write(tmp_path, shard, "shard.jsonl"), write(tmp_path, merged, "merged.jsonl")]
    ).to_json()
    assert counts(document) == {"scored": 2, "masked": 1}
    assert document["rows"]["duplicates"] == 2


def test_equal_rows_of_runs_in_two_directories_are_two_rollouts(tmp_path):
    paths = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        paths.append(write(tmp_path / name, [row(0, 0, 1.0)]))
    assert counts(audit_files(paths).to_json()) == {"scored": 2}


def test_shards_of_one_run_settle_their_rows_among_each_other(tmp_path):
    write(tmp_path, [failure(0, 0), failure(9, 0)], "s0_failures.jsonl")
    write(tmp_path, [row(0, 0), row(1, 0)], "s0_materialized_inputs.jsonl")
    paths = [write(tmp_path, [], "s0.jsonl"), write(tmp_path, [row(0, 0, 1.0), row(1, 0, 0.0)], "s1.jsonl")]
    apart = audit_files(paths).to_json()
    assert counts(apart) == {"scored": 2, "failed": 2, "unknown": 1}
    joined = audit_files(paths, options=Options(one_run=True)).to_json()
    assert counts(joined) == {"scored": 2, "failed": 1}


def test_a_copy_stands_for_its_run_too(tmp_path):
    write(tmp_path, [row(0, 0), row(0, 1)], "copy_materialized_inputs.jsonl")
    paths = [
        write(tmp_path, [row(0, 0, 1.0)], "first.jsonl"),
        write(tmp_path, [row(0, 0, 1.0)], "copy.jsonl"),
    ]
    assert counts(audit_files(paths).to_json()) == {"scored": 1, "unknown": 1}


def test_standard_input_is_read_beside_files_by_several_processes(tmp_path, monkeypatch):
    stream = io.BufferedReader(io.BytesIO(b'{"reward": 0.0}\n{"reward": 1.0}\n'))
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=stream, close=lambda: None))
    monkeypatch.setattr(reader, "WORTH_PROCESSES", 1)
    path = write(tmp_path, [row(0, 0, 1.0)])
    document = audit_files(["-", path], options=Options(jobs=2)).to_json()
    assert counts(document) == {"scored": 3}


def test_a_few_bytes_are_not_worth_several_processes(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "_PIECE", 4096)
    monkeypatch.setattr(reader, "ProcessPoolExecutor", None)
    path = a_mixed_run(tmp_path)
    assert audit_files([path], options=Options(jobs=2)).to_json() == audit_files([path]).to_json()


def test_every_line_of_every_file_is_accounted_for(tmp_path):
    path = a_mixed_run(tmp_path)
    document = audit_files([path]).to_json()
    for file in document["files"]:
        assert file["rows"] + file["unreadable"] + (file["role"] == "main") == file["lines"]
    main = next(file for file in document["files"] if file["role"] == "main")
    assert main["lines"] == 303


def test_one_process_and_an_empty_file_are_enough_for_several_jobs(tmp_path):
    assert audited(tmp_path, [], jobs=3)["expected"] == 0
