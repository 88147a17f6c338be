"""Mutation run over the core: `python integration/mutation/run.py --work DIR [--only NAME...]`.

mutmut reads packages from `src/` only, and ours have two source roots, so the run happens on a copy.
It fails when a surviving mutant is not argued in docs/mutants.md. Needs mutmut, pytest, hypothesis.
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
CORE = ("accounting", "errors", "failure_kinds", "groups", "policy", "seams", "verdict", "verdict_columns")
SELECTION = {  # modules of the adapters that choose rows
    "samplemask_nemo_rl": ("columns", "decision", "rows"),
    "samplemask_verl": ("decision", "verdicts"),
}
NAMES = [
    f"{package}/{name}" for package, names in {"samplemask": CORE, **SELECTION}.items() for name in names
]
TESTS = (
    *(f"tests/contract/test_{name}.py" for name in CORE),
    "tests/contract/test_policy_invariants.py",
    "tests/contract/test_policy_options.py",
    "tests/contract/test_policy_outage.py",
    "tests/contract/test_seams_problems.py",
    "tests/contract/test_verdict_json.py",
    "tests/contract/test_verdict_models.py",
    "tests/contract/test_verdict_rewards.py",
    "tests/adapters/test_nemo_rl_decision.py",
    "tests/adapters/test_nemo_rl_rows.py",
    "tests/adapters/test_verl_decision.py",
    "tests/adapters/test_verl_decision_edges.py",
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


def prepare(work: Path, files: list[str], tests: list[str]) -> None:
    """Copy the sources and the fast tests into `work`, laid out as mutmut wants them."""
    shutil.rmtree(work, ignore_errors=True)
    for root in ("contract", "adapters"):
        shutil.copytree(
            ROOT / root, work / "src", dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copytree(ROOT / "tests", work / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    (work / "mutants" / "src").mkdir(parents=True)  # Python remembers folders that were missing at start
    quoted = [", ".join(f'"{name}"' for name in names) for names in (files, tests)]
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


def is_argued(function: str, after: str) -> bool:
    text = ARGUED.read_text(encoding="utf-8") if ARGUED.exists() else ""
    return any(f"`{function}`" in line and f"`{after}`" in line for line in text.splitlines())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True, help="scratch folder; emptied first")
    parser.add_argument("--only", nargs="*", default=[], help="files to mutate, such as policy")
    parser.add_argument("--tests", nargs="*", default=TESTS)
    parser.add_argument("--jobs", default="1")
    options = parser.parse_args()
    wanted = [name for name in NAMES if not options.only or any(only in name for only in options.only)]
    roots = [ROOT / "contract", ROOT / "adapters"]
    files = [f"src/{name}.py" for name in wanted if any((root / f"{name}.py").exists() for root in roots)]
    prepare(options.work, files, [test for test in options.tests if (ROOT / test).exists()])
    with (options.work / "run.log").open("w") as log:
        mutmut(options.work, "run", "--max-children", options.jobs, stdout=log, stderr=log)
    states = results(options.work)
    if not states or "not checked" in states.values():
        print((options.work / "run.log").read_text()[-2000:])
        return 1
    killed = [
        name for name, state in states.items() if state in ("killed", "timeout", "caught by type check")
    ]
    open_ones = 0
    for mutant in sorted(set(states) - set(killed)):
        before, after = changed_lines(options.work, mutant)
        function = function_of(mutant)
        argued = is_argued(function, after)
        open_ones += not argued
        state = "argued" if argued else "OPEN"
        print(f"{state}  {function}  ({states[mutant]}, {mutant})\n  - {before}\n  + {after}")
    print(
        f"{len(states)} mutants, {len(killed)} killed, {open_ones} neither killed nor argued in {ARGUED.name}"
    )
    return 1 if open_ones else 0


if __name__ == "__main__":
    sys.exit(main())
