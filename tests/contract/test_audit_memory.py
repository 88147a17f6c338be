"""Memory does not grow with the size of a file; the small version of benchmarks/audit_memory.py."""

import json
import subprocess
import sys

import pytest

resource = pytest.importorskip("resource", reason="peak memory is measured the Unix way")

CHILD = (
    "import resource, sys; from samplemask.cli import main; main(sys.argv[1:]); "
    "print('PEAK', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
)


def generate(path, megabytes):
    """Rows of 64 KB, one in a hundred torn; returns how many are whole."""
    whole, filler = 0, "naïve 日本語 🙂 " * 2500
    with path.open("wb") as stream:
        for number in range(megabytes * 1024 // 64):
            text = json.dumps({"reward": 1.0, "response": {"text": filler}}, ensure_ascii=False).encode()
            torn = number % 100 == 50
            stream.write(text[:-5000] + b"\n" if torn else text + b"\n")
            whole += not torn
    return whole


def audited(path):
    command = [sys.executable, "-c", CHILD, "audit", str(path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout), int(done.stderr.split("PEAK")[1]) / 1024


def test_a_file_ten_times_as_long_takes_no_more_memory(tmp_path):
    peaks = []
    for megabytes in (8, 80):
        path = tmp_path / f"{megabytes}.jsonl"
        whole = generate(path, megabytes)
        document, peak = audited(path)
        assert document["dispositions"]["scored"] == whole
        assert document["unreadable"]["count"] == megabytes * 1024 // 64 - whole
        peaks.append(peak)
    assert peaks[1] - peaks[0] < 16
    assert peaks[1] < 300
