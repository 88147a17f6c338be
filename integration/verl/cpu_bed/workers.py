"""verl's real `TrainingWorker` with its FSDP2 engine, on one or two ranks of its own processes, without Ray.

A test hands over rows as plain numbers and gets back gradients, weights and optimizer state.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch

from cpu_bed.run import plugin_variables
from cpu_bed.step import Outcome, Row, Step

_TOKEN_FIELDS = ("old_log_probs", "ref_log_prob", "advantages", "returns", "values")


class Workers:
    """Real training workers, one process per rank.

    Args:
        model: Folder of the tiny model.
        ranks: Data-parallel size.
        samplemask: False: stock verl.
    """

    def __init__(self, model: Path, ranks: int, samplemask: bool = True):
        context = multiprocessing.get_context("spawn")
        port = _free_port()
        self._pools = [
            ProcessPoolExecutor(
                1,
                mp_context=context,
                initializer=_start,
                initargs=(str(model), rank, ranks, port, samplemask),
            )
            for rank in range(ranks)
        ]

    def train(self, rows_by_rank: list[list[Row]], step: Step, timeout_seconds: float = 120) -> Outcome:
        """Train one step, from the initial weights unless `step.reset` is False.

        Raises:
            TimeoutError: A rank did not come back: it hangs.
        """
        started = [
            pool.submit(_train, rows, step) for pool, rows in zip(self._pools, rows_by_rank, strict=True)
        ]
        outcomes = [future.result(timeout_seconds) for future in started]
        return outcomes[0]

    def close(self) -> None:
        """End the processes."""
        for pool in self._pools:
            for process in list((pool._processes or {}).values()):
                process.kill()
            pool.shutdown(cancel_futures=True)


_model = ""
_built: dict[str, tuple[Any, dict[str, torch.Tensor], dict[str, Any]]] = {}


def _start(model: str, rank: int, ranks: int, port: int, samplemask: bool) -> None:
    global _model
    _model = model
    os.environ.update(plugin_variables(samplemask))
    os.environ.update(
        RANK=str(rank), LOCAL_RANK="0", WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    torch.set_num_threads(1)


def _train(rows: list[Row], step: Step) -> Outcome:
    from verl.utils import tensordict_utils as tools

    worker, initial, scheduler = _worker(step.role)
    engine = worker.engine
    if step.reset:
        _reset(engine, initial, scheduler)
    worker.set_loss_fn(_loss(step))
    seen = _record_gradients(engine)
    passes, counted = _record_passes(worker)
    batch = _batch(rows, step.marked)
    ranks = engine.get_data_parallel_size()
    tools.assign_non_tensor(
        batch,
        global_batch_size=step.row_count,
        mini_batch_size=step.mini_batch or len(rows) * ranks,
        micro_batch_size_per_gpu=step.micro_batch,
        use_dynamic_bsz=step.dynamic_tokens is not None,
        max_token_len_per_gpu=step.dynamic_tokens or 0,
        epochs=1,
        seed=1,
        temperature=1.0,
        dataloader_kwargs={"shuffle": False},
        calculate_entropy=step.role == "actor",
        return_model_output=step.return_outputs,
    )
    before = engine.lr_scheduler.state_dict()["last_epoch"]
    output = worker.train_mini_batch(batch)
    state = {
        f"{name}.{key}": _whole(value).clone()
        for name, parameter in engine.module.named_parameters()
        for key, value in engine.optimizer.state.get(parameter, {}).items()
    }
    advanced = engine.lr_scheduler.state_dict()["last_epoch"] - before
    return Outcome(
        seen, _weights(engine), state, advanced, tools.get(output, "metrics"), passes=passes, counted=counted
    )


def _record_gradients(engine: Any) -> dict[str, torch.Tensor]:
    seen: dict[str, torch.Tensor] = {}
    stock = type(engine).optimizer_step

    def optimizer_step() -> Any:
        for name, parameter in engine.module.named_parameters():
            gradient = _whole(parameter.grad).clone()
            seen[name] = seen[name] + gradient if name in seen else gradient
        return stock(engine)

    engine.optimizer_step = optimizer_step
    return seen


def _record_passes(worker: Any) -> tuple[list[list[int]], list[list[int]]]:
    passes: list[list[int]] = []
    counted: list[list[int]] = []
    stock_step, stock_flops = type(worker.engine).forward_step, type(worker.flops_counter).estimate_flops

    def forward_step(micro_batch: Any, *args: Any, **kwargs: Any) -> Any:
        passes.append(micro_batch["input_ids"].offsets().diff().tolist())
        return stock_step(worker.engine, micro_batch, *args, **kwargs)

    def estimate_flops(lengths: list[int], *args: Any, **kwargs: Any) -> Any:
        counted.append(list(lengths))
        return stock_flops(worker.flops_counter, lengths, *args, **kwargs)

    worker.engine.forward_step, worker.flops_counter.estimate_flops = forward_step, estimate_flops
    return passes, counted


def _reset(engine: Any, initial: dict[str, torch.Tensor], scheduler: dict[str, Any]) -> None:
    with torch.no_grad():
        for name, parameter in engine.module.named_parameters():
            parameter.to_local().copy_(_shard(initial[name], parameter))
    engine.optimizer.state.clear()
    engine.lr_scheduler.load_state_dict(scheduler)


def _shard(whole: torch.Tensor, parameter: Any) -> torch.Tensor:
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(whole, parameter.device_mesh, parameter.placements).to_local()


def _weights(engine: Any) -> dict[str, torch.Tensor]:
    return {name: _whole(value).detach().clone() for name, value in engine.module.named_parameters()}


def _whole(value: Any) -> torch.Tensor:
    return value.full_tensor() if hasattr(value, "full_tensor") else torch.as_tensor(value)


def _worker(role: str) -> Any:
    if role not in _built:
        worker = _build(role)
        worker.reset()
        _built[role] = (worker, _weights(worker.engine), worker.engine.lr_scheduler.state_dict())
    return _built[role]


def _build(role: str) -> Any:
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig, TrainingWorkerConfig
    from verl.workers.engine_workers import TrainingWorker

    torch.manual_seed(0)  # a critic's value head is new
    return TrainingWorker(
        TrainingWorkerConfig(
            model_type="language_model" if role == "actor" else "value_model",
            model_config=HFModelConfig(
                path=_model,
                use_remove_padding=False,
                enable_gradient_checkpointing=False,
                override_config={"attn_implementation": "eager"},
            ),
            engine_config=FSDPEngineConfig(
                strategy="fsdp2",
                model_dtype="fp32",
                mixed_precision={"param_dtype": "fp32", "reduce_dtype": "fp32"},
                use_torch_compile=False,
                use_dynamic_bsz=False,
                micro_batch_size_per_gpu=1,
                infer_micro_batch_size_per_gpu=1,
                fsdp_size=-1,
            ),
            # Adam's first step turns the rounding noise of a tiny gradient into a whole `lr`.
            optimizer_config=FSDPOptimizerConfig(lr=1e-4, total_training_steps=10, lr_warmup_steps=0),
            checkpoint_config=CheckpointConfig(),
        )
    )


def _loss(step: Step) -> Any:
    from verl.workers.config import FSDPActorConfig, FSDPCriticConfig, PolicyLossConfig
    from verl.workers.utils.losses import ppo_loss, value_loss

    sizes = {"ppo_mini_batch_size": 1, "ppo_micro_batch_size_per_gpu": 1}
    if step.role == "critic":
        return partial(value_loss, config=FSDPCriticConfig(strategy="fsdp2", **sizes, **step.loss))
    policy_loss = PolicyLossConfig(loss_mode=step.policy_loss, dro_beta=1.0)
    config = FSDPActorConfig(strategy="fsdp2", rollout_n=1, policy_loss=policy_loss, **sizes, **step.loss)
    return partial(ppo_loss, config=config)


def _batch(rows: list[Row], marked: bool) -> Any:
    from tensordict import TensorDict

    from samplemask_verl.loss import EXCLUSION

    whole = [torch.tensor(row.prompt + row.response) for row in rows]
    mask = [torch.tensor(row.mask or [1] * len(row.response)) for row in rows]
    fields = {
        "prompts": _jagged([torch.tensor(row.prompt) for row in rows]),
        "responses": _jagged([torch.tensor(row.response) for row in rows]),
        "input_ids": _jagged(whole),
        "position_ids": _jagged([torch.arange(len(ids)) for ids in whole]),
        "response_mask": _jagged(mask),
        "loss_mask": _jagged(mask),
    }
    for name in _TOKEN_FIELDS:
        fields[name] = _jagged([torch.tensor(row.numbers[name]) for row in rows])
    if marked:
        fields[EXCLUSION] = torch.tensor([row.mark for row in rows])
    return TensorDict(fields, batch_size=len(rows))


def _jagged(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.nested.as_nested_tensor(tensors, layout=torch.jagged)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
