"""How fast the audit reads: ratios against `json.loads` on the same file, per core.

    python benchmarks/audit_speed.py FILE...

Give real rollout files; those in NeMo Gym's wheel lie under `**/data/*rollouts*.jsonl`. Each figure is the
best of several passes in processor time, from a warm page cache, so it compares work, not disks. 256 MB and
more are also read by several processes, in wall time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import fastsimdjson

from samplemask.audit import Options, audit_files
from samplemask.ledger import Ledger
from samplemask.reader import WORTH_PROCESSES, Reader, parts_of
from samplemask.rollouts import Lines, find_runs

PASSES = 9


def best(work: Callable[[], object], clock: Callable[[], float]) -> float:
    """Return the seconds of the fastest pass."""
    seconds = []
    for _ in range(PASSES):
        start = clock()
        work()
        seconds.append(clock() - start)
    return min(seconds)


def with_json_loads(path: Path) -> None:
    with path.open("rb") as stream:
        for line in stream:
            with contextlib.suppress(ValueError):
                json.loads(line)


def with_parser_only(path: Path) -> None:
    for line in Lines(path):
        with contextlib.suppress(ValueError):
            fastsimdjson.parse(line)


def with_lines_only(path: Path) -> None:
    for _ in Lines(path):
        pass


def with_reader(path: Path, fast: bool) -> None:
    reader = Reader(Ledger(), fast=fast)
    for part in parts_of(find_runs([path], siblings=False)):
        reader.read(part)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path)
    files = parser.parse_args().files
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rollouts.jsonl"
        with path.open("wb") as target:
            for file in files:
                content = file.read_bytes()
                target.write(content if content.endswith(b"\n") else content + b"\n")
        measure(path)


def measure(path: Path) -> None:
    size = path.stat().st_size
    cpu = time.process_time
    works = {
        "json.loads, line by line": (lambda: with_json_loads(path), cpu),
        "lines only, no decoding": (lambda: with_lines_only(path), cpu),
        "fastsimdjson's parser only": (lambda: with_parser_only(path), cpu),
        "reader, complete": (lambda: with_reader(path, fast=False), cpu),
        "reader, fast": (lambda: with_reader(path, fast=True), cpu),
        "whole audit, fast": (lambda: audit_files([path], siblings=False), cpu),
    }
    if size >= WORTH_PROCESSES:
        for jobs in (1, os.cpu_count() or 1):
            options = Options(jobs=jobs)
            works[f"whole audit, {jobs} processes (wall time)"] = (
                lambda options=options: audit_files([path], siblings=False, options=options),
                time.perf_counter,
            )
    lines = sum(1 for _ in Lines(path))
    print(f"{size / 1e6:.1f} MB, {lines} lines, Python {sys.version.split()[0]}")
    seconds = {name: best(work, clock) for name, (work, clock) in works.items()}
    base = seconds["json.loads, line by line"]
    for name, spent in seconds.items():
        print(f"  {name:<42} {size / spent / 1e6:8.0f} MB/s  {base / spent:6.2f} x")


if __name__ == "__main__":
    main()
