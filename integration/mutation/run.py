"""Mutation run over the core: `python integration/mutation/run.py --work DIR [--only NAME...]`.

mutmut reads packages from `src/` only, and ours have two source roots, so the run happens on a copy.
It fails when a surviving mutant is not argued in docs/mutants.md, and a full run also when an argued
one no longer survives. Needs what integration/mutation/requirements.txt lists.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ARGUED = ROOT / "docs" / "mutants.md"
START, END = "<!-- mutation run: start -->", "<!-- mutation run: end -->"
KILLED = ("killed", "timeout", "caught by type check")
CORE = ("accounting", "errors", "failure_kinds", "groups", "policy", "seams", "verdict", "verdict_columns")
SELECTION = {  # modules of the adapters that choose rows
    "samplemask_nemo_rl": ("columns", "decision", "rows"),
    "samplemask_verl": ("decision", "tags", "verdicts"),
}
NAMES = [
    f"{package}/{name}"
    for package, names in {"samplemask": (*CORE, "live"), **SELECTION}.items()
    for name in names
]
TESTS = (
    *(f"tests/contract/test_{name}.py" for name in CORE),
    "tests/contract/test_audit_live.py",
    "tests/contract/test_groups_runs.py",
    "tests/contract/test_policy_invariants.py",
    "tests/contract/test_policy_options.py",
    "tests/contract/test_policy_outage.py",
    "tests/contract/test_seams_problems.py",
    "tests/contract/test_verdict_json.py",
    "tests/contract/test_verdict_models.py",
    "tests/contract/test_verdict_rewards.py",
    "tests/adapters/test_nemo_rl_columns.py",
    "tests/adapters/test_nemo_rl_decision.py",
    "tests/adapters/test_nemo_rl_rows.py",
    "tests/adapters/test_verl_decision.py",
    "tests/adapters/test_verl_decision_edges.py",
    "tests/adapters/test_verl_tags.py",
    "tests/adapters/test_verl_verdicts.py",
)
SETTINGS = """
[tool.mutmut]
source_paths = ["src"]
only_mutate = [{files}]
pytest_add_cli_args_test_selection = [{tests}]
pytest_add_cli_args = ["-p", "no:cacheprovider"]

[tool.pytest.ini_options]
addopts = ["--import-mode=importlib"]
pythonpath = ["tests/support"]
filterwarnings = ["error"]
"""


def prepare(work: Path, files: list[str]) -> None:
    """Copy the sources and the fast tests into `work`, laid out as mutmut wants them."""
    if missing := [name for name in TESTS if not (ROOT / name).exists()]:
        raise SystemExit(f"no such tests: {missing}. Correct TESTS in {__file__}.")
    shutil.rmtree(work, ignore_errors=True)
    for root in ("contract", "adapters"):
        shutil.copytree(
            ROOT / root, work / "src", dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copytree(ROOT / "tests", work / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    (work / "mutants" / "src").mkdir(parents=True)  # Python remembers folders that were missing at start
    quoted = [", ".join(f'"{name}"' for name in names) for names in (files, TESTS)]
    (work / "pyproject.toml").write_text(SETTINGS.format(files=quoted[0], tests=quoted[1]))


def mutmut(work: Path, *arguments: str, **options) -> subprocess.CompletedProcess:
    environment = {
        **os.environ,
        "PYTHONPATH": str(work / "mutants" / "src"),
        "HYPOTHESIS_STORAGE_DIRECTORY": str(work / ".hypothesis"),
    }
    command = [sys.executable, "-m", "mutmut", *arguments]
    return subprocess.run(command, cwd=work, env=environment, text=True, check=False, **options)


def results(work: Path) -> dict[str, str]:
    """Return the state of every mutant by name."""
    out = mutmut(work, "results", "--all", "true", capture_output=True).stdout
    return dict(re.findall(r"^\s+(\S+): (.+)$", out, re.MULTILINE))


def changed_lines(work: Path, mutant: str) -> tuple[str, str]:
    """Return the first line that the mutant changed, before and after."""
    diff = mutmut(work, "show", mutant, capture_output=True).stdout.splitlines()
    sides = [
        [line[1:].strip() for line in diff if line[:1] == sign and line[:3] != sign * 3] for sign in "-+"
    ]
    return (sides[0] or [""])[0], (sides[1] or ["(line deleted)"])[0]


def function_of(mutant: str) -> str:
    name = re.sub(r"__mutmut_\d+$", "", mutant)
    return re.sub(r"\.x_|x?ǁ", ".", name).replace("..", ".")


def argued_ones() -> set[tuple[str, str]]:
    """Return function and changed line of each mutant that the document argues."""
    rows = re.findall(r"^\| `([^`]+)` \| `(.+?)` \| ", ARGUED.read_text(encoding="utf-8"), re.MULTILINE)
    return set(rows)


def module_of(mutant: str) -> str:
    return ".".join(mutant.split(".")[:2])


def table(states: dict[str, str], argued: set[str]) -> str:
    """Return how many mutants of each module were killed, argued, or are open."""
    lines = ["| module | mutants | killed | argued | open |", "| --- | --- | --- | --- | --- |"]
    for module in [*sorted(set(map(module_of, states))), "all"]:
        names = [name for name in states if module in (module_of(name), "all")]
        killed = sum(states[name] in KILLED for name in names)
        said = sum(name in argued for name in names)
        figures = (len(names), killed, said, len(names) - killed - said)
        lines.append(f"| `{module}` | {' | '.join(map(str, figures))} |")
    return "\n".join(lines)


def survivors(work: Path, states: dict[str, str]) -> tuple[set[str], set[tuple[str, str]]]:
    """Print every survivor; return the names of those that are argued, and the arguments that were used."""
    known, argued, used = argued_ones(), set(), set()
    for mutant in sorted(name for name, state in states.items() if state not in KILLED):
        before, after = changed_lines(work, mutant)
        argument = (function_of(mutant), after)
        if argument in known:
            argued.add(mutant)
            used.add(argument)
        word = "argued" if argument in known else "OPEN"
        print(f"{word}  {argument[0]}  ({states[mutant]}, {mutant})\n  - {before}\n  + {after}")
    return argued, used


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="scratch folder; emptied first")
    parser.add_argument("--only", nargs="*", default=[], help="files to mutate, such as policy")
    parser.add_argument("--jobs", default="1")
    parser.add_argument("--write", action="store_true", help="write the figures into docs/mutants.md")
    options = parser.parse_args()
    wanted = [name for name in NAMES if not options.only or any(only in name for only in options.only)]
    prepare(options.work, [f"src/{name}.py" for name in wanted])
    with (options.work / "run.log").open("w") as log:
        mutmut(options.work, "run", "--max-children", options.jobs, stdout=log, stderr=log)
    states = results(options.work)
    if not states or "not checked" in states.values():
        print((options.work / "run.log").read_text()[-2000:])
        return 1
    argued, used = survivors(options.work, states)
    stale = argued_ones() - used if wanted == NAMES else set()
    for function, line in sorted(stale):
        print(f"STALE  {function}: argued, but no such mutant survives\n  + {line}")
    figures = table(states, argued)
    print(figures)
    if options.write:
        before, _, rest = ARGUED.read_text(encoding="utf-8").partition(START)
        after = rest.partition(END)[2]
        ARGUED.write_text(f"{before}{START}\n\n{figures}\n\n{END}{after}", encoding="utf-8")
    survived = {name for name, state in states.items() if state not in KILLED}
    return 1 if survived - argued or stale else 0


if __name__ == "__main__":
    sys.exit(main())
