"""Compatibility matrix: `python integration/compatibility/run.py --work DIR --write docs/compatibility.md`.

Makes one environment per cell under DIR, runs tests in it, and writes the tables between two marks of the
document. A cell whose Python is not on this machine or that needs gigabytes (`--large`) is "not run"; one
that was not asked for (`--only`) keeps its row.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
START, END = "<!-- matrix: start -->", "<!-- matrix: end -->"
CORE = "verdict* policy* groups accounting seams* errors failure_kinds import_is_light"
ALONE = "without its dependencies: "
"""Marks what is installed last: verl 0.8.0 wants numpy 1, which what else it needs no longer takes."""
TEST_TOOLS = ("pytest>=8", "hypothesis>=6.100")


@dataclass(frozen=True)
class Part:
    """One table: cells that run the same tests.

    Attributes:
        title: Its heading.
        shown: The packages whose versions are shown.
        tests: Paths, from the repository's root.
        cells: Python and what is installed in it.
        large: Requirements that bring gigabytes; installed only with `--large`.
    """

    title: str
    shown: tuple[str, ...]
    tests: tuple[str, ...]
    cells: tuple[tuple[str, tuple[str, ...]], ...]
    large: tuple[str, ...] = ()


def tests_of_core() -> tuple[str, ...]:
    found = (path for name in CORE.split() for path in ROOT.glob(f"tests/contract/test_{name}.py"))
    names = [str(path.relative_to(ROOT)) for path in sorted(found)]
    return (*names, *(f"tests/testing/test_{name}.py" for name in ("batches", "public_cases", "responses")))


def verl(version: str) -> tuple[str, tuple[str, ...]]:
    """Return the cell of one version of verl, with what the trainer of the tested one needs."""
    lines = (ROOT / "integration/verl/requirements.txt").read_text().splitlines()
    needed = tuple(line for line in lines if line and not line.startswith("#"))
    return "3.11", (f"{ALONE}verl=={version}", *needed)


LOWEST, NEWEST = ("pydantic==2.7.*", "numpy==1.26.*"), ("pydantic", "numpy>=2")
PARTS = (
    Part(
        "The contract: its core and the test kit",
        ("pydantic", "numpy"),
        tests_of_core(),
        (
            *((python, each) for python in ("3.10", "3.11", "3.12") for each in (LOWEST, NEWEST)),
            ("3.13", ("pydantic==2.8.*", "numpy==2.1.*")),  # the first that have files for it
            ("3.13", NEWEST),
        ),
    ),
    Part(
        "torch: the adapters on stand-ins, and tensors in the contract",
        ("torch", "numpy"),
        (
            "tests/adapters",
            "tests/contract/test_groups.py",
            "tests/contract/test_verdict_rewards.py",
            "tests/testing",
        ),
        tuple(("3.11", (f"torch=={version}", "wrapt>=1.16", "numpy", "pydantic")) for version in
              ("2.9.1", "2.11.0", "2.13.0", "2.14.1")),
        large=("torch==2.9.1", "torch==2.11.0", "torch==2.14.1"),
    ),
    Part(
        "verl: the estimators and the legacy trainer's advantage stage, on real verl",
        ("verl", "torch", "numpy"),
        tuple(
            f"integration/verl/test_{name}.py"
            for name in ("estimators", "legacy_advantage", "components", "legacy_stage")
        ),
        (verl("0.8.0"), verl("0.9.1")),
    ),
)  # fmt: skip


def run(command: list, **options) -> subprocess.CompletedProcess:
    return subprocess.run(command, text=True, capture_output=True, check=False, cwd=ROOT, **options)


def find_python(version: str) -> str | None:
    """Return a Python of this version: on the path, or one of pyenv's."""
    installed = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
    for candidate in (shutil.which(f"python{version}"), *map(str, installed)):
        if candidate and run([candidate, "-c", "pass"]).returncode == 0:  # pyenv's shims may lead nowhere
            return candidate
    return None


def environment(work: Path, python: str, packages: tuple[str, ...]) -> Path | None:
    """Return the interpreter of a cell's environment, made if need be; None without such a Python."""
    home = work / re.sub(r"[^a-z0-9.]+", "-", "-".join((f"py{python}", *packages)).replace(ALONE, ""))[:60]
    interpreter = home / "bin" / "python"
    if not (home / ".ready").exists():
        found = find_python(python)
        if found is None:
            return None
        run([found, "-m", "venv", "--clear", str(home)]).check_returncode()
        pip = [interpreter, "-m", "pip", "install", "--quiet"]
        run([*pip, "--upgrade", "pip>=25.1"])
        alone = [name.removeprefix(ALONE) for name in packages if name.startswith(ALONE)]
        others = [name for name in packages if not name.startswith(ALONE)]
        for wanted in ([*others, *TEST_TOOLS], ["--no-deps", *alone] if alone else ["pip"]):
            done = run([*pip, "--prefer-binary", *wanted])
            if done.returncode:
                raise SystemExit(f"{home.name}: {done.stderr[-2000:]}")
        (home / ".ready").touch()
    return interpreter


def versions(interpreter: Path, names: tuple[str, ...]) -> list[str]:
    """Return the version of Python and of each package."""
    code = "import importlib.metadata as m, json, platform, sys\n"
    code += "print(json.dumps([platform.python_version(), *map(m.version, sys.argv[1:])]))"
    return json.loads(run([interpreter, "-c", code, *names]).stdout)


def tested(work: Path, part: Part, interpreter: Path) -> tuple[str, bool]:
    """Run a part's tests; return what pytest counted, and whether it is all right."""
    paths = os.pathsep.join(str(ROOT / name) for name in ("contract", "adapters"))
    variables = {**os.environ, "PYTHONPATH": paths, "HYPOTHESIS_STORAGE_DIRECTORY": str(work / ".hypothesis")}
    done = run([interpreter, "-m", "pytest", "-q", "-p", "no:cacheprovider", *part.tests], env=variables)
    (work / "last.log").write_text(done.stdout + done.stderr)
    if done.returncode:
        print(done.stdout[-3000:], done.stderr[-1000:], file=sys.stderr)
    last = (done.stdout.strip().splitlines() or [""])[-1]
    counts = re.findall(r"(\d+) (passed|failed|errors?|skipped)", last)
    return ", ".join(f"{count} {what}" for count, what in counts) or "no test ran", done.returncode == 0


def earlier_rows(document: Path | None) -> dict[str, list[str]]:
    """Return the rows of each table of the document."""
    text = document.read_text(encoding="utf-8").partition(START)[2] if document else ""
    parts = (part.partition("\n") for part in text.partition(END)[0].split("### ")[1:])
    return {title: re.findall(r"^\|.*\|$", body, re.MULTILINE)[2:] for title, _, body in parts}


def row(part: Part, python: str, packages: tuple[str, ...], earlier: str | None, options) -> tuple[str, bool]:
    """Return one row of a table, and whether it is all right."""
    bare = [each.removeprefix(ALONE) for each in packages]
    named = [next((each for each in bare if each.startswith(name)), "") for name in part.shown]
    label = " ".join((python, *named))
    reason, interpreter = None, None
    if options.only and not any(text in label for text in options.only):
        if earlier:
            return earlier, True
        reason = "not run"
    elif not options.large and set(packages) & set(part.large):
        reason = "not run: it needs gigabytes (`--large`)"
    else:
        interpreter = environment(options.work, python, packages)
        reason = None if interpreter else "not run: no such Python on this machine"
    if reason:
        return f"| {' | '.join((python, *named))} | {reason} |", True
    found = versions(interpreter, part.shown)
    said, good = tested(options.work, part, interpreter)
    print(*found, said, file=sys.stderr, flush=True)
    return f"| {' | '.join(found)} | {said} |", good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="folder for the environments; kept")
    parser.add_argument("--write", type=Path, help="document whose tables are replaced")
    parser.add_argument("--only", nargs="*", help="cells to run, such as 3.12 or torch or verl==0.8.0")
    parser.add_argument("--large", action="store_true", help="also the cells that download gigabytes")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    lines, good, earlier = [], True, earlier_rows(options.write)
    for part in PARTS:
        kept = zip_longest(part.cells, earlier.get(part.title, [])[: len(part.cells)])
        rows = [row(part, *cell, before, options) for cell, before in kept]
        good = good and all(fine for _, fine in rows)
        head = ("Python", *part.shown, "result")
        rule = " | ".join("---" for _ in head)
        lines += [f"### {part.title}", "", f"| {' | '.join(head)} |", f"| {rule} |"]
        lines += [*(text for text, _ in rows), ""]
    tables = "\n".join([START, "", *lines, END])
    if options.write:
        before, start, rest = options.write.read_text(encoding="utf-8").partition(START)
        if not start:
            raise SystemExit(f"{options.write}: no mark {START} to write the tables at")
        options.write.write_text(before + tables + rest.partition(END)[2], encoding="utf-8")
    else:
        print(tables)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
