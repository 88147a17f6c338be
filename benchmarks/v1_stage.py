"""verl's V1 advantage stage on the real TransferQueue, stock (`action: ignore`) and with samplemask.

python benchmarks/v1_stage.py ROWS SHORTEST LONGEST    # such as 512 1000 4000 response tokens

Prints wall-clock milliseconds, the best of several rounds in turn, and those of each TransferQueue call:
the calls wait for other processes, so processor time would not show them.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import numpy as np
import ray
import torch
import transfer_queue as tq
from omegaconf import OmegaConf
from verl.trainer.ppo.v1 import trainer_base
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

import samplemask_verl
from samplemask_verl import masked, scored

GROUP, ROUNDS, CHUNK = 16, 7, 64


class Trainer(trainer_base.PPOTrainer):
    """A PPOTrainer with only what its advantage stage reads."""

    on_sample_end = on_step_end = None

    def __init__(self, action: str) -> None:
        algorithm = {"adv_estimator": "grpo", "gamma": 1.0, "lam": 1.0, "use_kl_in_reward": False}
        algorithm["mask_sample"] = {"action": action}
        actor = {"rollout": {"n": GROUP}}
        self.config = OmegaConf.create({"algorithm": algorithm, "actor_rollout_ref": actor})


def put(name: str, rows: int, shortest: int, longest: int, share: float) -> list[str]:
    """Store rows as verl's agent loop does; `share` of them is masked."""
    chance, keys, stored = np.random.default_rng(0), [], []
    for row in range(rows):
        length = int(chance.integers(shortest, longest + 1))
        info = masked("session_lost") if chance.random() < share else scored(float(chance.integers(0, 2)))
        reward = torch.zeros(length)
        reward[-1] = info["score"]
        ones = torch.ones(length, dtype=torch.long)
        uid = f"{name}-{row // GROUP:08x}-0000-4000-8000-{row // GROUP:012x}"
        columns = {"uid": uid, "response_mask": ones, "loss_mask": ones, "rm_scores": reward}
        log_probs = {name: torch.full((length,), -1.0) for name in ("rollout_log_probs", "old_log_probs")}
        stored.append({**columns, **log_probs, "extra_fields": {"reward_extra_info": info}})
        keys.append(f"{uid}_{row % GROUP}_0")
    for start in range(0, rows, CHUNK):
        chunk = slice(start, start + CHUNK)
        tq.kv_batch_put(
            keys[chunk], "train", list_of_dict_to_tensordict(stored[chunk]), [{} for _ in keys[chunk]]
        )
    return keys


def timed(name: str, calls: list[str]) -> None:
    """Make a function of TransferQueue note in `calls` how long each call took."""
    function = getattr(tq, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            took = 1e3 * (time.perf_counter() - start)
            calls.append(f"{name.removeprefix('kv_batch_')} {len(kwargs['keys'])} rows {took:.0f}")

    setattr(tq, name, call)


def main(rows: int, shortest: int, longest: int) -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    ray.init(num_cpus=16, include_dashboard=False, log_to_driver=False)  # logical: TransferQueue wants them
    tq.init()
    samplemask_verl.install()
    healthy, mixed = (put(f"{share}", rows, shortest, longest, share) for share in (0.0, 0.1))
    calls: list[str] = []
    timed("kv_batch_get", calls)
    timed("kv_batch_put", calls)
    cases = {"stock": ("ignore", healthy), "healthy": ("exclude", healthy), "10 % masked": ("exclude", mixed)}
    best = dict.fromkeys(cases, (float("inf"), [""]))
    for _ in range(ROUNDS):
        for case, (action, keys) in cases.items():
            calls.clear()
            batch = tq.KVBatchMeta(partition_id="train", keys=keys, tags=[{} for _ in keys])
            start = time.perf_counter()
            Trainer(action)._compute_advantage(batch, {})
            best[case] = min(best[case], (1e3 * (time.perf_counter() - start), [*calls]))
    for case, (took, made) in best.items():
        print(f"{case:12} {took:6.0f} ms  ratio {took / best['stock'][0]:.2f}  {'; '.join(made)}")
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
