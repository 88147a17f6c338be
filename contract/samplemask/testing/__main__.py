"""`python -m samplemask.testing verl`: the conformance table of verl, stock and with the plugin."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from samplemask.testing.conformance import Report
from samplemask.testing.verl_host import Treatment


def main(arguments: list[str] | None = None) -> int:
    """Print or write the table; 1 when the plugin does not make everything hold."""
    parser = argparse.ArgumentParser(prog="python -m samplemask.testing", description=__doc__)
    parser.add_argument("host", choices=["verl"])
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the Markdown to this file")
    options = parser.parse_args(arguments)

    from samplemask.testing.verl_table import as_markdown, install_plugin, verl_reports

    treatments: list[Treatment] = ["stock", "response_mask_zeroed"]
    if install_plugin():
        treatments.append("installed")
    reports: dict[Treatment, list[Report]] = {name: verl_reports(name) for name in treatments}
    text = as_markdown(reports)
    if options.write:
        options.write.write_text(text, encoding="utf-8")
    else:
        print(text)
    if "installed" not in reports:
        print("samplemask_verl is not installed here: only stock verl was tried.", file=sys.stderr)
    broken = [report for report in reports.get("installed", []) if not report]
    for report in broken:
        print(report, file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
