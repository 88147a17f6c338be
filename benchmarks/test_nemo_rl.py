"""NeMo-RL's GRPO advantage step, stock and with samplemask: prompts of 256 tokens, groups of 8."""

import os
import sys
from pathlib import Path

import pytest

CHECKOUT = os.environ.get("SAMPLEMASK_NEMO_RL_CHECKOUT")
if not CHECKOUT:
    pytest.skip("SAMPLEMASK_NEMO_RL_CHECKOUT names no checkout of NVIDIA-NeMo/RL", allow_module_level=True)
pytest.importorskip("torch")
sys.path[:0] = [CHECKOUT, str(Path(__file__).parents[1] / "integration" / "nemo_rl" / "site")]
import nemo_rl_shim  # noqa: F401
import torch

WIDTH, GROUP, STOCK_ONCE = 256, 8, 16384


@pytest.mark.parametrize("case", ["stock", "healthy", "5 % masked"])
@pytest.mark.parametrize("rows", [512, 4096, 16384])
def test_advantages(measure, turn, rows, case):
    from nemo_rl.algorithms.advantage_estimator import AdvEstimatorConfig, GRPOAdvantageEstimator

    import samplemask_nemo_rl

    if rows == STOCK_ONCE and case == "stock" and turn:
        pytest.skip("takes about 40 seconds; once is enough")
    torch.set_num_threads(1)
    chance = torch.Generator().manual_seed(0)
    prompts = torch.randint(0, 50_000, (rows // GROUP, WIDTH), generator=chance).repeat_interleave(GROUP, 0)
    rewards = torch.randint(0, 2, (rows,), generator=chance).float()
    flags = torch.rand(rows, generator=chance) < (0.05 if "masked" in case else 0.0)
    config = AdvEstimatorConfig(normalize_rewards=True, use_leave_one_out_baseline=True)

    def call(estimator):
        return estimator.compute_advantage(
            prompt_ids=prompts,
            rewards=rewards,
            mask=torch.ones(rows, 8),
            repeated_batch={"mask_sample": flags},
        )

    if case != "stock":
        samplemask_nemo_rl.install()
    try:
        slow = case == "stock" and rows > 512
        measure(
            call,
            lambda: GRPOAdvantageEstimator(config, None),
            rounds=1 if slow else 3,
            table="NeMo-RL grpo",
            rows=rows,
            case=case,
        )
    finally:
        if case != "stock":
            samplemask_nemo_rl.uninstall()
