"""A rollout file of 2 GB with 1 % torn lines, audited within 300 MB; and the same audit killed half way.

    python benchmarks/audit_memory.py [--gigabytes 2] [--row-bytes 4096] [--limit-mb 300] [--folder DIR]

The file is generated in a temporary folder and deleted afterwards.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Runs the command and says on standard error how much memory it took at most, in KiB.
CHILD = (
    "import resource, sys; from samplemask.cli import main; status = main(sys.argv[1:]); "
    "print('PEAK', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr); sys.exit(status)"
)
WORDS = ["reward", "Zimmer", "日本語", "naïve", "tool_call", "🙂", "0.5", '\\"quoted\\"', "lorem", "ipsum"]


def generate(path: Path, size: int, row_bytes: int, torn_every: int = 100) -> dict[str, int]:
    """Write the file; return how many rows of each kind it holds."""
    chance = random.Random(1)
    fillers = [" ".join(chance.choices(WORDS, k=row_bytes // 7)) for _ in range(50)]
    counts, written, number = {"scored": 0, "masked": 0, "torn": 0}, 0, 0
    with path.open("wb") as stream:
        while written < size:
            masked = number % 20 == 7
            fields = {
                "_ng_task_index": number // 8,
                "_ng_rollout_index": number % 8,
                "reward": float(number % 2),
                "mask_sample": masked,
                "failure_kind": "session_lost" if masked else None,
                "agent_ref": {"name": f"agent_{number % 3}"},
            }
            text = json.dumps(fields)[:-1] + f', "response": {{"text": "{fillers[number % 50]}"}}}}'
            line = text.encode()
            if number % torn_every == 50:
                line = line[: chance.randrange(len(line) // 2, len(line) - 1)]
                counts["torn"] += 1
            else:
                counts["masked" if masked else "scored"] += 1
            written += stream.write(line + b"\n")
            number += 1
    return counts


def audit(path: Path, jobs: int) -> tuple[dict, float, float]:
    """Return the document, the peak memory in MB and the seconds."""
    command = [sys.executable, "-c", CHILD, "audit", str(path), "--json", "--jobs", str(jobs)]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    peak = float(done.stderr.split("PEAK")[1]) / 1024
    return json.loads(done.stdout), peak, time.perf_counter() - start


def killed_half_way(path: Path, seconds: float) -> None:
    """Kill an audit in the middle: nothing may be on standard output and no page may be there."""
    page = path.with_suffix(".html")
    command = [sys.executable, "-c", CHILD, "audit", str(path), "--json", "--html", str(page)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        time.sleep(seconds)
        assert process.poll() is None, "the audit ended before it could be killed"
        process.kill()
        assert process.stdout is not None
        assert process.stdout.read() == b""
    assert not page.exists()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--row-bytes", type=int, default=4096)
    parser.add_argument("--limit-mb", type=float, default=300.0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = Path(folder) / "rollouts.jsonl"
        counts = generate(path, int(options.gigabytes * 1e9), options.row_bytes)
        document, peak, seconds = audit(path, options.jobs)
        size = path.stat().st_size
        print(f"{size / 1e9:.2f} GB, {sum(counts.values()):,} lines, {counts['torn']:,} of them torn")
        print(f"peak memory {peak:.0f} MB, {seconds:.1f} s, {size / seconds / 1e6:.0f} MB/s")
        assert document["dispositions"]["scored"] == counts["scored"]
        assert document["dispositions"]["masked"] == counts["masked"]
        assert document["unreadable"]["count"] == counts["torn"]
        assert peak < options.limit_mb, f"more than {options.limit_mb} MB"
        killed_half_way(path, seconds / 4)  # this time the file is in memory, so it is read faster
        print("killed half way: nothing printed, no page")


if __name__ == "__main__":
    main()
