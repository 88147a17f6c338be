"""How long NeMo-RL's advantage step takes, stock and with samplemask.

`python benchmarks/nemo_rl_advantages.py`; needs an importable NeMo-RL (docs/nemo-rl.md). Prompts are
256 tokens wide, groups have 8 rows. Stock runs once, samplemask three times of which the best counts.
"""

import argparse
import time

import torch
from nemo_rl.algorithms.advantage_estimator import AdvEstimatorConfig, GRPOAdvantageEstimator

import samplemask_nemo_rl

WIDTH, GROUP = 256, 8


def batch(rows, masked_fraction):
    """Random prompts, rewards and flags of `rows` rows."""
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(0, 50_000, (rows // GROUP, WIDTH), generator=generator).repeat_interleave(
        GROUP, 0
    )
    rewards = torch.randint(0, 2, (rows,), generator=generator).float()
    flags = torch.rand(rows, generator=generator) < masked_fraction
    return {"prompt_ids": prompts, "rewards": rewards, "mask": torch.ones(rows, 8), "flags": flags}


def seconds(data):
    """Run the estimator once and return the advantages and the time."""
    config = AdvEstimatorConfig(normalize_rewards=True, use_leave_one_out_baseline=True)
    estimator = GRPOAdvantageEstimator(config, None)
    arguments = {name: data[name] for name in ("prompt_ids", "rewards", "mask")}
    start = time.perf_counter()
    result = estimator.compute_advantage(**arguments, repeated_batch={"mask_sample": data["flags"]})
    return result, time.perf_counter() - start


def main():
    """Print one line per batch size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[512, 4096, 16384])
    for rows in parser.parse_args().rows:
        healthy, damaged = batch(rows, 0.0), batch(rows, 0.05)
        stock, stock_time = seconds(healthy)
        samplemask_nemo_rl.install()
        ours, our_time = min((seconds(healthy) for _ in range(3)), key=lambda run: run[1])
        masked_time = min(seconds(damaged)[1] for _ in range(3))
        samplemask_nemo_rl.uninstall()
        print(
            f"{rows:6d} rows: stock {stock_time:7.2f} s, samplemask {our_time:6.3f} s "
            f"({stock_time / our_time:.0f} times), with 5 % masked {masked_time:6.3f} s; "
            f"same values: {torch.equal(stock, ours)}"
        )


if __name__ == "__main__":
    main()
