"""Prints what each loss mode of verl does with excluded rows, measured on the real training worker.

python integration/verl/loss_table.py docs/verl-loss-modes.md
"""

from __future__ import annotations

import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from cpu_bed.assets import build_assets
from cpu_bed.step import LOSS_MODES, Outcome, Row, Step
from cpu_bed.workers import Workers

EXCLUDED, COUNTED = 1, 2

HEAD = """# Excluded rows in verl's loss modes

Written by `python integration/verl/loss_table.py docs/verl-loss-modes.md`, with verl {verl} and torch
{torch}: gradient norms of one step of verl's real FSDP2 training worker, 8 rows of which 4 are excluded.

- *deleted*: the same batch without the 4 rows, and with 4 as its row count. This is what is right.
- *stock, masks zeroed*: verl without samplemask, when somebody zeroes `response_mask` and `loss_mask` of
  the 4 rows.
- *valid*, *host*: samplemask with `algorithm.mask_sample.denominator=valid` (the default) and `=host`.

| loss_agg_mode | loss_scale_factor | deleted | stock, masks zeroed | valid | host |
| --- | --- | --- | --- | --- | --- |"""

TAIL = """
verl divides the seq-mean modes by a constant number of rows, so every excluded row makes the step smaller;
`valid` takes the excluded rows off that number, over all data-parallel ranks. The token modes count the
tokens that remain and need no correction. Without `loss_scale_factor`, seq-mean-token-sum-norm divides by
the longest response of the micro batch; samplemask lets verl look at the rows that remain, so a long
excluded row does not change it. Rows that verl itself masks (overlong, padding) keep their place in verl's
row count under both settings."""


def make_rows() -> list[Row]:
    """Return eight rows; the excluded ones are longer than the others."""
    random = torch.Generator().manual_seed(1)
    rows = []
    for index in range(8):
        length = 4 + index % 3 + (5 if index % 4 in (1, 2) else 0)
        tokens = torch.randint(0, 250, (5 + length,), generator=random).tolist()
        numbers = {
            "old_log_probs": [-5.5] * length,
            "ref_log_prob": [-5.5] * length,
            "advantages": [float(torch.randn(1, generator=random))] * length,
            "returns": [0.0] * length,
            "values": [0.0] * length,
        }
        rows.append(Row(tokens[:5], tokens[5:], numbers))
    return rows


def norms(workers: Workers, mode: str, scale: int | None) -> list[float]:
    """Return the gradient norms of the four columns."""

    def step(rows: list[Row], row_count: int, micro_batch: int, marked: bool = True) -> float:
        loss = {"loss_agg_mode": mode, "loss_scale_factor": scale}
        return norm(workers.train([rows], Step("actor", row_count, micro_batch, loss=loss, marked=marked)))

    whole, gone = make_rows(), (1, 2, 5, 6)
    deleted = step([row for index, row in enumerate(whole) if index not in gone], 4, 2)
    columns = [deleted]
    for index in gone:
        whole[index].mask = [0] * len(whole[index].response)
    columns.append(step(whole, 8, 4, marked=False))
    for mark in (EXCLUDED, COUNTED):
        for index in gone:
            whole[index].mark = mark
        columns.append(step(whole, 8, 4))
    return columns


def norm(outcome: Outcome) -> float:
    """Return the norm of all gradients before clipping."""
    return float(torch.cat([tensor.flatten() for tensor in outcome.gradients.values()]).norm())


def main() -> None:
    """Write the page to the path that is the first argument."""
    with tempfile.TemporaryDirectory() as folder:
        build_assets(Path(folder))
        workers = Workers(Path(folder) / "model", ranks=1)
        lines = [HEAD.format(verl=version("verl"), torch=torch.__version__)]
        for mode, scale in LOSS_MODES:
            numbers = " | ".join(f"{value:.4f}" for value in norms(workers, mode, scale))
            lines.append(f"| {mode} | {scale or '–'} | {numbers} |")
        workers.close()
    Path(sys.argv[1]).write_text("\n".join([*lines, TAIL, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
