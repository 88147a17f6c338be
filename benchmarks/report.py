"""Writes the tables and the plot of docs/performance.md from pytest-benchmark's JSON.

python benchmarks/report.py RESULTS.json...

Several files are taken together, such as that of a host which needs an environment of its own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1] / "docs"
sys.path.insert(0, str(DOCS / "_tools"))
from tables import as_table, with_table

Found = dict[str, dict[int, dict[str, dict[str, Any]]]]
"""By table, rows and case: the best seconds, and what was noted beside them."""


def best_of(document: dict[str, Any]) -> Found:
    """Return the best round of all passes for each line."""
    found: Found = {}
    for entry in document["benchmarks"]:
        noted = entry["extra_info"]
        case = found.setdefault(noted["table"], {}).setdefault(noted["rows"], {})
        line = case.setdefault(noted["case"], {"seconds": float("inf")})
        line |= {**noted, "seconds": min(line["seconds"], entry["stats"]["min"])}
    return found


def against_stock(table: dict[int, dict[str, dict[str, Any]]], memory: bool) -> str:
    """Return the table of a host: each case beside stock in the same run."""
    head = [
        "Rows",
        "Case",
        "Stock",
        "With samplemask",
        "Ratio",
        *(["New tensors, MB (stock)"] if memory else []),
    ]
    lines = []
    for rows, cases in sorted(table.items()):
        stock = cases.get("stock")
        for case, line in cases.items():
            if stock is None or case == "stock":
                continue
            ratio = line["seconds"] / stock["seconds"]
            shown = f"{ratio:.2f}" if ratio > 0.2 else f"1/{1 / ratio:.0f}"
            cells = [f"{rows:,}", case, _time(stock["seconds"]), _time(line["seconds"]), shown]
            if memory:
                known = "megabytes" in line and "megabytes" in stock
                cells.append(f"{line['megabytes']:.1f} ({stock['megabytes']:.1f})" if known else "")
            lines.append(cells)
    return as_table(head, lines)


def planning(table: dict[int, dict[str, dict[str, Any]]]) -> str:
    """Return the table of `plan_rows`."""
    lines = []
    for rows, cases in sorted(table.items()):
        for case, line in cases.items():
            memory = f"{line['bytes_per_row']:.0f}" if "bytes_per_row" in line else ""
            lines.append([f"{rows:,}", case, _time(line["seconds"]), memory])
    return as_table(["Rows", "Group ids", "Time", "Peak bytes a row"], lines)


def reading(table: dict[int, dict[str, dict[str, Any]]]) -> str:
    """Return the table of the readers, per row."""
    ((rows, cases),) = table.items()
    first = next(iter(cases.values()))["seconds"]
    return as_table(
        ["Reader", "Microseconds a row", "Times faster"],
        (
            [case, f"{line['seconds'] / rows * 1e6:.2f}", f"{first / line['seconds']:.1f}"]
            for case, line in cases.items()
        ),
    )


def imports(table: dict[int, dict[str, dict[str, Any]]]) -> str:
    """Return the table of import times, processor time of a whole new process."""
    return as_table(["Process", "Time"], ([case, _time(line["seconds"])] for case, line in table[1].items()))


def plot(found: Found, path: Path) -> None:
    """Draw cost against rows."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "samplemask"
    from matplotlib import pyplot

    names = [name for name in found if "grpo" in name and len(found[name]) > 2]
    figure, axes = pyplot.subplots(1, len(names), figsize=(4.2 * len(names), 3.6), squeeze=False)
    for axis, name in zip(axes[0], names, strict=True):
        for case, points in _curves(found[name]):
            axis.loglog(*zip(*points, strict=True), marker="o", label=case, alpha=0.8)
        axis.set(title=name, xlabel="rows", ylabel="processor seconds")
        axis.legend(fontsize="x-small")
        axis.grid(visible=True, alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def _curves(table: dict[int, dict[str, dict[str, Any]]]) -> Iterator[tuple[str, list[tuple[int, float]]]]:
    for case in dict.fromkeys(case for cases in table.values() for case in cases):
        yield (
            case,
            [(rows, cases[case]["seconds"]) for rows, cases in sorted(table.items()) if case in cases],
        )


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def main(results: list[Path]) -> None:
    """Fill in the page."""
    documents = [json.loads(path.read_text(encoding="utf-8")) for path in results]
    document = {**documents[0], "benchmarks": [entry for one in documents for entry in one["benchmarks"]]}
    found, machine = best_of(document), document["machine_info"]
    page = DOCS / "performance.md"
    text = page.read_text(encoding="utf-8")
    made = {
        "machine": as_table(
            ["Processor", "Cores", "Python", "Date"],
            [
                [
                    machine["cpu"].get("brand_raw", machine["machine"]),
                    str(machine["cpu"].get("count", "")),
                    machine["python_version"],
                    document["datetime"][:10],
                ]
            ],
        ),
        "verl": "\n\n".join(
            f"**{name}**\n\n{against_stock(found[name], memory='vectorized' in name)}"
            for name in found
            if name.startswith("verl ")
        ),
        "NeMo-RL": against_stock(found["NeMo-RL grpo"], memory=False) if "NeMo-RL grpo" in found else "",
        "plan_rows": planning(found["plan_rows"]),
        "reading": reading(found["reading"]),
        "imports": imports(found["import"]),
    }
    for name, table in made.items():
        if table:  # without a NeMo-RL checkout the page keeps what it says
            text = with_table(text, f"benchmark of {name}", table)
    page.write_text(text, encoding="utf-8")
    plot(found, DOCS / "performance.svg")


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
