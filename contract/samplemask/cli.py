"""The `samplemask` command."""

from __future__ import annotations

import argparse
import importlib
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import samplemask
from samplemask.audit import Audit, Limit, Options, audit_runs, broken_rules, counted
from samplemask.errors import ContractError, SampleMaskError
from samplemask.progress import progress_bar
from samplemask.quality import Counting
from samplemask.report import Style, table
from samplemask.report_html import write_page
from samplemask.rollouts import find_runs

_DESCRIPTION = """\
A failed rollout is not a zero. Reads the environment's verdict on each rollout
(mask_sample, failure_kind) and says which rewards are measurements."""

_AUDIT = """\
Counts every rollout of NeMo Gym rollout files once: scored, masked, failed,
omitted or unknown. Finds the failure sidecar (NAME_failures.jsonl) and the
materialized inputs (NAME_materialized_inputs.jsonl) beside a file."""

_LIMIT = Limit()

_EXAMPLES = """\
examples:
  samplemask audit rollouts.jsonl
  samplemask audit run-*/rollouts.jsonl --json
  samplemask audit rollouts.jsonl --html page.html --strict --max-lost 0.1
  zcat rollouts.jsonl.gz | samplemask audit -"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns:
        0, or 1 when a check failed, or 2 when the input cannot be used.
    """
    options = _parser().parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal that knows only ASCII is no reason to fail
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status: int = options.run(options)
        sys.stdout.flush()
        return status
    except SampleMaskError as error:
        print(f"samplemask: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("samplemask: interrupted; nothing was printed or written", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output (head) has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="samplemask", description=_DESCRIPTION, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"samplemask {samplemask.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_audit(commands)
    doctor = commands.add_parser("doctor", help="show which hosts are found and what is active")
    doctor.add_argument(
        "overrides", nargs="*", metavar="OVERRIDE", help="overrides of a verl run, to see what it would do"
    )
    doctor.set_defaults(run=_doctor)
    demo = commands.add_parser("demo", help="show what failed rollouts do to training, and without them")
    demo.add_argument("--out", metavar="DIR", help="directory for the picture and the report")
    demo.set_defaults(run=_demo)
    return parser


def _add_audit(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    audit = commands.add_parser(
        "audit",
        help="account for every rollout of a file",
        description=_AUDIT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    audit.add_argument("files", nargs="+", metavar="FILE", help="rollout file (plain, gzip, zstd), or -")
    audit.add_argument("--json", action="store_true", help="print the audit as JSON (docs/audit.md)")
    audit.add_argument("--html", metavar="PAGE", help="also write the audit as one self-contained HTML page")
    audit.add_argument(
        "--no-siblings", action="store_true", help="read only the files named, nothing that lies beside them"
    )
    audit.add_argument(
        "--one-run",
        action="store_true",
        help="the files are shards of one run: equal indices are the same rollout",
    )
    audit.add_argument(
        "--jobs",
        type=_at_least(1),
        default=1,
        metavar="N",
        help="processes that read, from 256 MB on, where they begin to help (default 1)",
    )
    _add_counting(audit.add_argument_group("what counts"))
    _add_checks(audit.add_argument_group("checks, for CI"))
    audit.set_defaults(run=_audit)


def _add_counting(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--failures-as-zero",
        action="append",
        default=[],
        metavar="CLASS",
        help="count failures of this class as a measured zero (repeatable)",
    )
    group.add_argument(
        "--failed",
        choices=("zero", "exclude"),
        default="zero",
        help="a failed attempt in pass@k and the counted mean: one that did not pass (default), or none",
    )
    group.add_argument(
        "--missing-as-zero",
        action="store_true",
        help="in pass@k and the counted mean, take rollouts that left no row (omitted, unknown) for zeros",
    )
    group.add_argument(
        "--expected",
        type=_at_least(0),
        default=0,
        metavar="N",
        help="how many rollouts there should be in all",
    )
    group.add_argument(
        "--omitted",
        type=_at_least(0),
        default=0,
        metavar="N",
        help="how many of them are known not to have run",
    )


def _add_checks(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--strict",
        action="store_true",
        help="exit with 1 if a rollout is unknown, a line unreadable, or too much is lost",
    )
    group.add_argument(
        "--max-lost",
        type=_fraction,
        default=_LIMIT.max_lost,
        metavar="FRACTION",
        help="largest fraction of masked and failed rollouts that is no alarm (default 0.5)",
    )
    group.add_argument(
        "--min-rollouts",
        type=_at_least(1),
        default=_LIMIT.min_rollouts,
        metavar="N",
        help="fewest rollouts for which there can be an alarm (default 50)",
    )


def _at_least(smallest: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = smallest - 1
        if value < smallest:
            raise argparse.ArgumentTypeError(f"expected a whole number from {smallest}, found {text!r}")
        return value

    return read


def _fraction(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:
        raise argparse.ArgumentTypeError(f"expected a fraction from 0 to 1, found {text!r}")
    return value


def _audit(options: argparse.Namespace) -> int:
    runs = find_runs(options.files, siblings=not options.no_siblings)
    bar = progress_bar(runs)
    try:
        audit = audit_runs(runs, _options(options), bar)
    finally:
        if bar is not None:
            bar.close()
    if options.html:
        write_page(audit, Path(options.html))
    print(json.dumps(audit.to_json(), indent=2) if options.json else table(audit, Style(_wants_colour())))
    if not any(file.rows for file in audit.reader.files):
        raise ContractError(_nothing_read(audit, options.files))
    broken = broken_rules(audit) if options.strict else []
    for rule in broken:
        print(f"samplemask: --strict: {rule}", file=sys.stderr)
    return 1 if broken else 0


def _nothing_read(audit: Audit, files: Sequence[str]) -> str:
    lines = sum(file.lines for file in audit.reader.files)
    found = (
        f"{lines:,} {counted(lines, 'line[, and it cannot|s, and none can]')} be read" if lines else "no line"
    )
    return (
        f"{', '.join(files)}: expected rollouts, one JSON object a line, found {found}. "
        "Nothing was measured. Check the path."
    )


def _options(options: argparse.Namespace) -> Options:
    return Options(
        failures_as_zero=options.failures_as_zero,
        counting=Counting(options.failed, options.missing_as_zero),
        expected=options.expected,
        omitted=options.omitted,
        limit=Limit(options.max_lost, options.min_rollouts),
        jobs=options.jobs,
        one_run=options.one_run,
    )


def _wants_colour() -> bool:
    """Colour a terminal, unless https://no-color.org asks not to."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _doctor(options: argparse.Namespace) -> int:
    from samplemask.doctor import run_doctor

    return run_doctor(options.overrides)


def _demo(options: argparse.Namespace) -> int:
    try:
        demo = importlib.import_module("samplemask.demo")
    except ModuleNotFoundError as error:
        if error.name != "samplemask.demo":
            raise
        raise ContractError(
            "samplemask demo: expected the module samplemask.demo, found none in this installation. "
            "Install a complete samplemask wheel."
        ) from error
    status: int | None = demo.run_demo(options.out)
    return status or 0


if __name__ == "__main__":
    sys.exit(main())
