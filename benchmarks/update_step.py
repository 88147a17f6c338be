"""One update of a mini batch by verl's real FSDP2 training worker, stock and with rows left out.

python benchmarks/update_step.py [--ranks N]    # in an environment with verl; some minutes

The model is tiny and runs on the CPU, so only ratios mean anything. Wall-clock time of a whole update, each
case in turn, the best of three; stock trains on all rows.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration" / "verl"))

from cpu_bed.assets import build_assets
from cpu_bed.step import Row, Step
from cpu_bed.workers import Workers

ROWS, PROMPT, RESPONSE, MICRO_BATCH = 64, 64, 448, 8
FIELDS = ("old_log_probs", "ref_log_prob", "advantages", "returns", "values")
SHARES = (None, 0.0, 0.1, 0.5, 0.9)
"""Masked rows; None: stock verl, whose batch has no mark."""


def rows(share: float) -> list[Row]:
    """Make a mini batch; the masked rows lie anywhere in it."""
    chance = random.Random(0)
    made = []
    for index in range(ROWS):
        prompt, response = ([chance.randrange(250) for _ in range(count)] for count in (PROMPT, RESPONSE))
        numbers = {name: [-5.0] * RESPONSE for name in FIELDS}
        made.append(Row(prompt, response, numbers, mark=int(index < share * ROWS)))
    chance.shuffle(made)
    return made


def seconds(workers: Workers, ranks: int, share: float | None, tokens: int | None) -> float:
    """Time one update."""
    made = rows(share or 0.0)
    parts = [made[rank::ranks] for rank in range(ranks)]
    step = Step(
        "actor",
        ROWS,
        MICRO_BATCH,
        loss={"loss_agg_mode": "token-mean"},
        marked=share is not None,
        dynamic_tokens=tokens,
    )
    begun = time.perf_counter()
    workers.train(parts, step)
    return time.perf_counter() - begun


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=1, help="data-parallel ranks, each a process")
    ranks = parser.parse_args().ranks
    with tempfile.TemporaryDirectory() as folder:
        build_assets(Path(folder))
        workers = Workers(Path(folder) / "model", ranks=ranks)
        for name, tokens in (
            (f"of {MICRO_BATCH} rows", None),
            ("by size", MICRO_BATCH * (PROMPT + RESPONSE)),
        ):
            best = dict.fromkeys(SHARES, float("inf"))
            for share in SHARES * 3:
                best[share] = min(best[share], seconds(workers, ranks, share, tokens))
            for share, took in best.items():
                case = "stock" if share is None else f"{share:.0%} masked"
                print(f"micro batches {name}: {case:12} {took:6.2f} s  {took / best[None]:.2f} of stock")
        workers.close()


if __name__ == "__main__":
    main()
