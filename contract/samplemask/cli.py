"""The `samplemask` command."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Sequence

import samplemask
from samplemask.audit import audit_files
from samplemask.errors import ContractError, SampleMaskError
from samplemask.report import table

_DESCRIPTION = """\
A failed rollout is not a zero. Reads the environment's verdict on each rollout
(mask_sample, failure_kind) and says which rewards are measurements."""

_AUDIT = """\
Counts every rollout of NeMo Gym rollout files once: scored, masked, failed,
omitted or unknown. Finds the failure sidecar (NAME_failures.jsonl) and the
materialized inputs (NAME_materialized_inputs.jsonl) beside a file."""

_EXAMPLES = """\
examples:
  samplemask audit rollouts.jsonl
  samplemask audit run-*/rollouts.jsonl --json
  zcat rollouts.jsonl.gz | samplemask audit -"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns:
        0, or 1 when a check failed, or 2 when the input cannot be used.
    """
    options = _parser().parse_args(arguments)
    try:
        status: int = options.run(options)
        sys.stdout.flush()
        return status
    except SampleMaskError as error:
        print(f"samplemask: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader of our output (head) has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="samplemask", description=_DESCRIPTION, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"samplemask {samplemask.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_audit(commands)
    doctor = commands.add_parser("doctor", help="show which hosts are found and what is active")
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
    audit.add_argument(
        "--no-siblings", action="store_true", help="read only the files named, nothing that lies beside them"
    )
    audit.add_argument(
        "--failures-as-zero",
        action="append",
        default=[],
        metavar="CLASS",
        help="count failures of this class as a measured zero (repeatable)",
    )
    audit.set_defaults(run=_audit)


def _audit(options: argparse.Namespace) -> int:
    audit = audit_files(
        options.files, siblings=not options.no_siblings, failures_as_zero=options.failures_as_zero
    )
    print(json.dumps(audit.to_json(), indent=2, allow_nan=False) if options.json else table(audit))
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from samplemask.doctor import run_doctor

    return run_doctor()


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
