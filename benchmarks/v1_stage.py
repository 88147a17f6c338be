"""verl's V1 advantage stage on the real TransferQueue, without and with samplemask.

python benchmarks/v1_stage.py ROWS SHORTEST LONGEST    # such as 512 1000 4000 response tokens

Rows are stored by the call of verl's agent loop: by stock verl for `stock` and for `fields`, where the plugin
is not in the rollout workers and verdicts have to be read, and with the plugin for `tags`.

Prints wall-clock milliseconds, the best of several rounds in turn, and those of each TransferQueue call: the
calls wait for other processes, so processor time would not show them. The ratios are the median and the
quartiles of the rounds', each to stock in the same round. Storing is timed, too.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from copy import copy
from statistics import quantiles
from typing import Any

import numpy as np
import ray
import torch
import transfer_queue as tq
import transfer_queue.interface
from omegaconf import OmegaConf
from verl.trainer.ppo.v1 import trainer_base
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

import samplemask_verl
from samplemask_verl import masked, scored

GROUP = 16
STEPS = ("global_steps", "min_global_steps", "max_global_steps")


class Trainer(trainer_base.PPOTrainer):
    """A PPOTrainer with only what its advantage stage reads."""

    on_sample_end = on_step_end = None

    def __init__(self) -> None:
        algorithm = {"adv_estimator": "grpo", "gamma": 1.0, "lam": 1.0, "use_kl_in_reward": False}
        actor = {"rollout": {"n": GROUP}}
        self.config = OmegaConf.create({"algorithm": algorithm, "actor_rollout_ref": actor})


def put(name: str, rows: int, shortest: int, longest: int, share: float) -> tq.KVBatchMeta:
    """Store rows as verl's agent loop does; `share` of them is masked. Return what verl samples."""
    chance, sessions = np.random.default_rng(0), []
    for row in range(rows):
        length = int(chance.integers(shortest, longest + 1))
        info = masked("session_lost") if chance.random() < share else scored(float(chance.integers(0, 2)))
        reward = torch.zeros(length)
        reward[-1] = info["score"]
        ones = torch.ones(length, dtype=torch.long)
        uid = f"{name}-{row // GROUP:08x}-0000-4000-8000-{row // GROUP:012x}"
        columns = {"uid": uid, "response_mask": ones, "loss_mask": ones, "rm_scores": reward}
        log_probs = {name: torch.full((length,), -1.0) for name in ("rollout_log_probs", "old_log_probs")}
        fields = {**columns, **log_probs, "extra_fields": {"reward_extra_info": info}}
        sizes = {"prompt_len": 100, "response_len": length, "seq_len": 100 + length}
        tag = {"status": "success", **sizes, **dict.fromkeys(STEPS, 1)}
        sessions.append((f"{uid}_{row % GROUP}_0", list_of_dict_to_tensordict([fields]), tag))

    async def store() -> None:
        for key, fields, tag in sessions:
            await tq.async_kv_batch_put(keys=[key], partition_id=name, fields=fields, tags=[tag])

    start = time.perf_counter()
    asyncio.run(store())
    print(f"{name:20} stored, {1e3 * (time.perf_counter() - start) / rows:.2f} ms a row")
    stored = tq.kv_list(name)[name]
    return tq.KVBatchMeta(partition_id=name, keys=list(stored), tags=list(stored.values()))


def timed(name: str, calls: list[str]) -> None:
    """Make a function of TransferQueue note in `calls` how long each call took, beneath what is patched."""
    function = getattr(transfer_queue.interface, name)

    async def call(**kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            return await function(**kwargs)
        finally:
            took = 1e3 * (time.perf_counter() - start)
            calls.append(f"{name.removeprefix('async_kv_batch_')} {len(kwargs['keys'])} rows {took:.0f}")

    setattr(transfer_queue.interface, name, call)


def main(*sizes: int) -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    ray.init(num_cpus=16, include_dashboard=False, log_to_driver=False)  # logical: TransferQueue wants them
    tq.init()
    shares = {"healthy": 0.0, "10 % masked": 0.1}
    batches = {f"fields, {name}": put(f"fields, {name}", *sizes, share) for name, share in shares.items()}
    samplemask_verl.install()
    batches |= {f"tags, {name}": put(f"tags, {name}", *sizes, share) for name, share in shares.items()}
    cases = {"stock": batches["fields, healthy"], **batches}
    calls: list[str] = []
    timed("async_kv_batch_get", calls)
    timed("async_kv_batch_put", calls)
    took: dict[str, list[float]] = {case: [] for case in cases}
    made = {}
    for _ in range(max(25, 4_000 // sizes[0])):
        samplemask_verl.uninstall()
        for case, batch in cases.items():
            calls.clear()
            trainer, batch = Trainer(), copy(batch)
            start = time.perf_counter()
            trainer._compute_advantage(batch, {})
            took[case].append(1e3 * (time.perf_counter() - start))
            if took[case][-1] == min(took[case]):
                made[case] = "; ".join(calls)
            samplemask_verl.install()  # all but the first case
    for case, rounds in took.items():
        ratios = [ours / stock for ours, stock in zip(rounds, took["stock"], strict=True)]
        low, middle, high = quantiles(ratios, n=4)
        print(f"{case:20} {min(rounds):6.1f} ms  ratio {middle:.3f} ({low:.3f} to {high:.3f})  {made[case]}")
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
