"""Runs the experiment: python -m outage --docs docs."""

from __future__ import annotations

import argparse
import logging
import warnings
from pathlib import Path


def main() -> None:
    """Train, draw and write docs/experiment.md."""
    parser = argparse.ArgumentParser(prog="outage", description=__doc__)
    parser.add_argument("--docs", type=Path, default=Path("docs"), help="folder of experiment.md")
    parser.add_argument("--out", type=Path, default=Path("experiment-out"), help="folder of the raw numbers")
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=140)
    parser.add_argument("--redraw", action="store_true", help="draw the numbers of an earlier run again")
    options = parser.parse_args()
    # verl says at import which engines and accelerators it did not find; none is used here.
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    _run(options)


def _run(options: argparse.Namespace) -> None:
    import torch

    from outage import failures, figures, page, results

    torch.set_num_threads(1)  # the tensors are small
    options.out.mkdir(parents=True, exist_ok=True)
    numbers = options.out / "results.npz"
    if not options.redraw:
        measured = results.measure(failures.ENVIRONMENTS, range(options.seeds), options.steps, print)
        results.save(measured, numbers)
    found = results.load(numbers)
    steps, seeds = next(iter(found.values())).reward.shape
    titles = figures.draw_all(found, options.docs / "experiment")
    command = f"PYTHONPATH=examples python -m outage --seeds {seeds} --steps {steps}"
    (options.docs / "experiment.md").write_text(
        page.page(found, titles, seeds, steps, command), encoding="utf-8"
    )
    print(f"Wrote {options.docs}/experiment.md and its figures; the numbers are in {numbers}")


if __name__ == "__main__":
    main()
