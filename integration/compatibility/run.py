"""Compatibility matrix of the contract: `python integration/compatibility/run.py --work DIR --write FILE`.

Makes one environment per cell under DIR, runs the contract's tests in it, and writes the table between
two marks of FILE (docs/compatibility.md). A Python that is not on this machine is a cell "not here".
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
START, END = "<!-- contract matrix: start -->", "<!-- contract matrix: end -->"
LOWEST, NEWEST = ("pydantic==2.7.*", "numpy==1.26.*"), ("pydantic", "numpy>=2")
CELLS = [
    ("3.10", *LOWEST),
    ("3.10", *NEWEST),
    ("3.11", *LOWEST),
    ("3.11", *NEWEST),
    ("3.12", *LOWEST),
    ("3.12", *NEWEST),
    ("3.13", "pydantic==2.8.*", "numpy==2.1.*"),
    ("3.13", *NEWEST),
]
CORE = "verdict* policy* groups accounting seams* errors failure_kinds import_is_light"
TESTS = [
    *(
        str(path.relative_to(ROOT))
        for name in CORE.split()
        for path in ROOT.glob(f"tests/contract/test_{name}.py")
    ),
    *(f"tests/testing/test_{name}.py" for name in ("batches", "public_cases", "responses")),
]
VERSIONS = """
import numpy, platform, pydantic
print(platform.python_version(), pydantic.VERSION, numpy.__version__)
"""


def run(command: list, **options) -> subprocess.CompletedProcess:
    return subprocess.run(command, text=True, capture_output=True, check=False, cwd=ROOT, **options)


def find_python(version: str) -> str | None:
    """Return a Python of this version: on the path, or one of pyenv's."""
    installed = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
    for candidate in (shutil.which(f"python{version}"), *map(str, installed)):
        if candidate and run([candidate, "-c", "pass"]).returncode == 0:  # pyenv's shims may lead nowhere
            return candidate
    return None


def environment(work: Path, python: str, pydantic: str, numpy: str) -> Path | None:
    """Return the interpreter of a cell's environment, made if need be; None without such a Python."""
    home = work / re.sub(r"[^a-z0-9.]+", "-", f"py{python}-{pydantic}-{numpy}")
    interpreter = home / "bin" / "python"
    if not (home / ".ready").exists():
        found = find_python(python)
        if found is None:
            return None
        run([found, "-m", "venv", "--clear", str(home)]).check_returncode()
        packages = [pydantic, numpy, "pytest>=8", "hypothesis>=6.100"]
        done = run([interpreter, "-m", "pip", "install", "--quiet", "--only-binary", ":all:", *packages])
        if done.returncode:
            raise SystemExit(f"{home.name}: {done.stderr[-2000:]}")
        (home / ".ready").touch()
    return interpreter


def cell(work: Path, tests: list[str], python: str, pydantic: str, numpy: str) -> tuple[str, bool]:
    """Return one row of the table, and whether it is all right."""
    interpreter = environment(work, python, pydantic, numpy)
    if interpreter is None:
        return f"| {python} | {pydantic} | {numpy} | not on this machine |", True
    versions = run([interpreter, "-c", VERSIONS]).stdout.split()
    paths = os.pathsep.join(str(ROOT / name) for name in ("contract", "adapters"))
    variables = {**os.environ, "PYTHONPATH": paths, "HYPOTHESIS_STORAGE_DIRECTORY": str(work / ".hypothesis")}
    done = run([interpreter, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests], env=variables)
    (work / "last.log").write_text(done.stdout + done.stderr)
    counts = re.findall(r"(\d+) (passed|failed|errors?|skipped)", done.stdout.strip().splitlines()[-1])
    said = ", ".join(f"{count} {what}" for count, what in counts) or "no test ran"
    print(*versions, said, file=sys.stderr)
    if done.returncode:
        print(done.stdout[-3000:], file=sys.stderr)
    return f"| {' | '.join(versions)} | {said} |", done.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="folder for the environments; kept")
    parser.add_argument("--write", type=Path, help="document whose table is replaced")
    parser.add_argument("--only", help="one Python, such as 3.12")
    parser.add_argument("--tests", nargs="*", default=TESTS, help="what to run; the core's tests by default")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    chosen = [each for each in CELLS if options.only in (None, each[0])]
    rows = [cell(options.work, options.tests, *each) for each in chosen]
    head = [
        "| Python | pydantic | numpy | tests of the core and the test kit |",
        "| --- | --- | --- | --- |",
    ]
    title = ["## The contract", "", "Written by `python integration/compatibility/run.py`.", ""]
    table = "\n".join([START, "", *title, *head, *(row for row, _ in rows), "", END])
    if options.write:
        text = options.write.read_text(encoding="utf-8") if options.write.exists() else "# Compatibility\n"
        before, start, rest = text.partition(START)
        after = rest.partition(END)[2] if start else "\n"
        options.write.write_text(f"{before.rstrip()}\n\n{table}{after}", encoding="utf-8")
    else:
        print(table)
    return 0 if all(good for _, good in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
