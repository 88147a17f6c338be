"""Reading files in whatever state they are: which belong together, and their lines."""

import gzip
import io
import json
import os
import sys
import threading
import types
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import samplemask.rollouts as rollouts
from samplemask import ContractError
from samplemask.audit import Options, audit_files
from samplemask.rollouts import Lines, Unusable, find_runs
from samplemask.rows import UnreadableLineError, decode


def lines_of(path):
    lines = Lines(path)
    return [
        (lines.count, b"", str(text))
        if isinstance(text, Unusable)
        else (lines.count, bytes(text).strip(), None)
        for text in lines
    ]


def file_with(tmp_path, content, name="rollouts.jsonl"):
    path = tmp_path / name
    path.write_bytes(content)
    return path


def test_a_complete_last_line_without_newline_is_kept(tmp_path):
    assert lines_of(file_with(tmp_path, b'{"a":1}\n{"b":2}')) == [
        (1, b'{"a":1}', None),
        (2, b'{"b":2}', None),
    ]


def test_blank_lines_are_left_out_but_counted_in_line_numbers(tmp_path):
    assert [number for number, _, _ in lines_of(file_with(tmp_path, b'\n{"a":1}\r\n  \n{"b":2}\n'))] == [2, 4]


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path):
    assert lines_of(file_with(tmp_path, b'\xef\xbb\xbf{"a":1}\n')) == [(1, b'{"a":1}', None)]


def test_a_file_that_holds_only_a_byte_order_mark_has_no_lines(tmp_path):
    assert lines_of(file_with(tmp_path, b"\xef\xbb\xbf")) == []


def test_an_empty_file_has_no_lines(tmp_path):
    assert lines_of(file_with(tmp_path, b"")) == []


def test_gzip_is_known_by_its_content_not_by_its_name(tmp_path):
    assert lines_of(file_with(tmp_path, gzip.compress(b'{"a":1}\n'))) == [(1, b'{"a":1}', None)]


def test_zstd_is_read_across_frames(tmp_path):
    zstandard = pytest.importorskip("zstandard", reason="reading zstd needs the package zstandard")
    frames = zstandard.compress(b'{"a":1}\n') + zstandard.compress(b'{"b":2}\n')
    assert [number for number, _, _ in lines_of(file_with(tmp_path, frames))] == [1, 2]


def test_a_zstd_file_that_was_cut_is_not_taken_for_a_whole_one(tmp_path):
    zstandard = pytest.importorskip("zstandard", reason="reading zstd needs the package zstandard")
    whole = zstandard.compress(b"".join(b'{"a":%d}\n' % number for number in range(50_000)))
    *_, last = lines_of(file_with(tmp_path, whole[: len(whole) // 2]))
    assert last[2].startswith("the file is damaged from here on: compressed file ended before")


@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_a_compressed_file_with_flipped_bytes_ends_in_a_problem(tmp_path, kind):
    compress = gzip.compress if kind == "gzip" else pytest.importorskip("zstandard").compress
    whole = bytearray(compress(b"".join(b'{"a":%d}\n' % number for number in range(50_000))))
    whole[len(whole) // 2 : len(whole) // 2 + 8] = b"\xff" * 8
    assert any(problem for _, _, problem in lines_of(file_with(tmp_path, bytes(whole))))


def test_zstd_without_its_reader_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(ContractError, match=r"pip install zstandard"):
        lines_of(file_with(tmp_path, b"\x28\xb5\x2f\xfd rest"))


def test_a_gzip_file_that_was_cut_gives_its_lines_and_then_the_problem(tmp_path):
    whole = gzip.compress(b"".join(b'{"a":%d}\n' % number for number in range(5000)))
    *read, last = lines_of(file_with(tmp_path, whole[: len(whole) // 2]))
    assert read[0] == (1, b'{"a":0}', None)
    assert last[2].startswith("the file is damaged from here on")


def test_a_line_that_never_ends_is_reported_and_the_next_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(rollouts, "MAX_LINE_BYTES", 10)
    content = b"x" * 55 + b"\n" + b'{"a":1}\n'
    assert lines_of(file_with(tmp_path, content)) == [
        (1, b"", "longer than 10 bytes"),
        (2, b'{"a":1}', None),
    ]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.binary(max_size=12).map(lambda text: text.replace(b"\n", b"")), max_size=8), st.integers(1, 5)
)
def test_pieces_of_a_file_hold_each_line_once(tmp_path_factory, texts, pieces):
    path = file_with(tmp_path_factory.mktemp("pieces"), b"{" + b"\n".join(texts))  # never a magic number
    size, whole, found, count = path.stat().st_size, Lines(path), [], 0
    expected = [(whole.count, bytes(text)) for text in whole]
    cuts = [size * piece // pieces for piece in range(pieces)]
    for start, stop in zip(cuts, [*cuts[1:], None], strict=True):
        piece = Lines(path, start, stop)
        found += [(count + piece.count, bytes(text)) for text in piece]
        count += piece.count
    assert found == expected
    assert count == whole.count


def test_standard_input_is_read(monkeypatch):
    stream = io.BufferedReader(io.BytesIO(gzip.compress(b'{"a":1}\n')))
    monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=stream))
    assert lines_of("-") == [(1, b'{"a":1}', None)]


def test_sidecar_and_inputs_beside_a_file_belong_to_its_run(tmp_path):
    for ending in ("", "_failures", "_materialized_inputs"):
        (tmp_path / f"rollouts{ending}.jsonl").touch()
    (run,) = find_runs([tmp_path / "rollouts.jsonl"])
    assert [(role, path.name) for role, path in run] == [
        ("inputs", "rollouts_materialized_inputs.jsonl"),
        ("main", "rollouts.jsonl"),
        ("failures", "rollouts_failures.jsonl"),
    ]


def test_files_of_one_run_given_by_name_are_one_run_in_any_order(tmp_path):
    names = ["a_failures.jsonl", "a.jsonl", "a_materialized_inputs.jsonl"]
    for name in names:
        (tmp_path / name).touch()
    (run,) = find_runs([tmp_path / name for name in names])
    assert run.main.name == "a.jsonl"


def test_a_file_given_twice_is_read_once(tmp_path):
    path = file_with(tmp_path, b"{}\n")
    (run,) = find_runs([path, tmp_path / "." / "rollouts.jsonl"])
    assert len(list(run)) == 1


def test_a_file_given_under_another_name_is_read_once(tmp_path):
    path = file_with(tmp_path, b"{}\n")
    (tmp_path / "latest.jsonl").symlink_to(path)
    assert len(find_runs([path, tmp_path / "latest.jsonl"])) == 1


def test_two_files_that_differ_only_in_their_suffix_are_both_read(tmp_path):
    names = ["a.jsonl", "a.json", "a.jsonl.gz"]
    runs = find_runs([file_with(tmp_path, b"{}\n", name) for name in names])
    assert [Path(run.main).name for run in runs] == names


def test_a_pipe_is_read_once_from_its_beginning(tmp_path):
    pipe = tmp_path / "pipe.jsonl"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(b'{"reward": 1.0}\n',))
    writer.start()
    document = audit_files([pipe], options=Options(jobs=2)).to_json()
    writer.join()
    assert document["dispositions"]["scored"] == 1


def test_a_compressed_run_finds_its_compressed_sidecar(tmp_path):
    (tmp_path / "a.jsonl.gz").touch()
    (tmp_path / "a_failures.jsonl.gz").touch()
    (run,) = find_runs([tmp_path / "a.jsonl.gz"])
    assert run.failures.name == "a_failures.jsonl.gz"


def test_siblings_can_be_left_alone(tmp_path):
    (tmp_path / "a.jsonl").touch()
    (tmp_path / "a_failures.jsonl").touch()
    (run,) = find_runs([tmp_path / "a.jsonl"], siblings=False)
    assert run.failures is None


def test_a_sidecar_alone_is_a_run_without_a_main_file(tmp_path):
    (tmp_path / "a_failures.jsonl").touch()
    (run,) = find_runs([tmp_path / "a_failures.jsonl"])
    assert run.main is None
    assert run.failures.name == "a_failures.jsonl"


def test_a_file_that_has_only_the_name_of_a_sidecar_ending_is_a_main_file(tmp_path):
    (tmp_path / "_failures.jsonl").touch()
    (run,) = find_runs([tmp_path / "_failures.jsonl"])
    assert run.main is not None


@pytest.mark.parametrize("path", ["missing.jsonl", "."])
def test_a_path_that_is_no_file_is_refused(path, tmp_path):
    with pytest.raises(ContractError, match="expected a rollout file"):
        find_runs([tmp_path / path])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"<PLACEHOLDER ROW>", "not JSON"),
        (b'{"reward": 1, "resp', "not JSON"),
        (b'{"reward": 1}{"reward": 0}', "not JSON"),
        (b'{"reward": 1, "text": "caf\xc3', "not UTF-8: byte 0xc3 at position 26"),
        (b'{"reward": 1, "text": "\xff"}', "not UTF-8: byte 0xff at position 23"),
        (b"[1, 2]", "not a JSON object but list"),
        (b"null", "not a JSON object but NoneType"),
        (b"\x00" * 20, "not JSON"),
        (b"[" * 100_000, "not JSON: nested too deeply"),
    ],
)
def test_a_line_that_is_no_json_object_says_why(text, reason):
    with pytest.raises(UnreadableLineError, match=f"^{reason}"):
        decode(text)


def test_a_file_that_cannot_be_opened_is_refused_not_taken_for_an_empty_one(tmp_path):
    with pytest.raises(ContractError, match="expected a file that can be read"):
        lines_of(tmp_path / "gone.jsonl")


def test_nan_and_half_an_emoji_are_read_as_python_reads_them():
    assert str(decode(b'{"reward": NaN}')["reward"]) == "nan"
    assert decode(b'{"text": "\\ud83d"}') == json.loads('{"text": "\\ud83d"}')


def test_numbers_that_python_refuses_do_not_cost_a_line():
    assert str(decode(b'{"x": [nan, -NaN, inf, -INFINITY]}')["x"]) == "[nan, nan, inf, -inf]"
    assert decode(b'{"a": -inf, "text": "nan, \\"inf"}') == {"a": float("-inf"), "text": 'nan, "inf'}
    assert decode(b'{"x": ' + b"9" * 5000 + b', "reward": 1}') == {"x": float("inf"), "reward": 1}


@pytest.mark.parametrize(
    "text", [b'{"x": nanx}', b'{"x": 1nan}', b'{"x": +inf}', b'{"x": nan', b'{"x": infinit}']
)
def test_what_only_begins_like_such_a_number_is_refused(text):
    with pytest.raises(UnreadableLineError, match="not JSON"):
        decode(text)


def test_a_line_longer_than_a_piece_is_put_together(tmp_path, monkeypatch):
    monkeypatch.setattr(rollouts, "_PIECE", 16)
    long, short = b'{"a": "' + b"x" * 100 + b'"}', b'{"b": 1}'
    found = lines_of(file_with(tmp_path, long + b"\n" + short + b"\n\n" + long))
    assert found == [(1, long, None), (2, short, None), (4, long, None)]
