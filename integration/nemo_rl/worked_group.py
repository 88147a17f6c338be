"""The worked group of four in docs/concepts.md, computed by the real NeMo-RL.

SAMPLEMASK_NEMO_RL_CHECKOUT=... python -m pytest integration/nemo_rl/test_worked_group.py checks the table;
with SAMPLEMASK_WRITE_DOCS=1 it writes it.
"""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import torch

NAME = "worked group in NeMo-RL"
TABLES = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "_tools" / "tables.py"))


def estimators() -> dict[str, Any]:
    """Return NeMo-RL's estimators that compare a row with its prompt group, by what they do."""
    from nemo_rl.algorithms import advantage_estimator as host
    from nemo_rl.algorithms.loss import ClippedPGLossConfig

    def make(maker: Any, **options: Any) -> Any:
        loss = ClippedPGLossConfig(ratio_clip_min=0.2, ratio_clip_max=0.2, ratio_clip_c=None)
        return maker(host.AdvEstimatorConfig(**options), loss)

    grpo = host.GRPOAdvantageEstimator
    return {
        "`grpo`": make(grpo),
        "`grpo`, `normalize_rewards: false`": make(grpo, normalize_rewards=False),
        "`grpo`, `use_leave_one_out_baseline: false`": make(grpo, use_leave_one_out_baseline=False),
        "`grpo`, both false": make(grpo, use_leave_one_out_baseline=False, normalize_rewards=False),
        "`reinforce_plus_plus`": make(host.ReinforcePlusPlusAdvantageEstimator),
    }


def advantages(estimator: Any, masked: bool) -> str:
    """Return the advantages of rewards [1, 1, 0, 0]; with `masked`, row 1 carries a verdict."""
    batch = {"mask_sample": torch.tensor([False, masked, False, False])}
    result = estimator.compute_advantage(
        torch.ones(4, 3, dtype=torch.long),
        torch.tensor([1.0, 1.0, 0.0, 0.0]),
        torch.ones(4, 2),
        repeated_batch=batch,
    )
    return ", ".join(f"{value + 0.0:.3g}" for value in result[:, 0].tolist())


def table() -> str:
    """Return the table; the adapter must be installed."""
    rows = [
        [name, advantages(estimator, False), advantages(estimator, True)]
        for name, estimator in estimators().items()
    ]
    head = ["NeMo-RL at 7ea279a", "without samplemask", "`exclude`"]
    return str(TABLES["as_table"](head, rows))
