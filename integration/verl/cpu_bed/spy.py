"""Writes down each mini batch that the training engine was given, and the weights after its step.

It wraps the stock FSDP engine below everything that samplemask patches, so it sees what really trains; and
TransferQueue, where it sees the tags of sampled rows and what is read.
"""

import hashlib
import json
import os

import torch
import wrapt


@wrapt.when_imported("verl.workers.engine.fsdp.transformer_impl")
def _watch_engine(module):
    engine_class = module.FSDPEngine
    stock_forward_backward, stock_step = engine_class.forward_backward_batch, engine_class.optimizer_step

    def forward_backward_batch(self, data, loss_function, forward_only=False):
        outputs = stock_forward_backward(self, data, loss_function, forward_only)
        if not forward_only:
            self.cpu_bed_mini_batch = _mini_batch(data)
        return outputs

    def optimizer_step(self):
        grad_norm = stock_step(self)
        _write_down(
            "CPU_BED_ACTOR_LOG",
            engine=type(self).__name__,
            **self.cpu_bed_mini_batch,
            **_after(self, grad_norm),
        )
        return grad_norm

    if os.environ.get("CPU_BED_ACTOR_LOG"):
        engine_class.forward_backward_batch, engine_class.optimizer_step = (
            forward_backward_batch,
            optimizer_step,
        )


@wrapt.when_imported("verl.trainer.ppo.v1.replay_buffer")
def _watch_samples(module):
    stock = module.ReplayBuffer._materialize_batch

    def _materialize_batch(self, partition_id, *args, **kwargs):
        batch = stock(self, partition_id, *args, **kwargs)
        _write_down("CPU_BED_QUEUE_LOG", partition=partition_id, tags=batch.tags)
        return batch

    module.ReplayBuffer._materialize_batch = _materialize_batch


@wrapt.when_imported("transfer_queue.interface")
def _watch_reads(module):
    stock = module.async_kv_batch_get

    async def async_kv_batch_get(keys, partition_id, select_fields=None):
        _write_down("CPU_BED_QUEUE_LOG", partition=partition_id, reads=select_fields)
        return await stock(keys=keys, partition_id=partition_id, select_fields=select_fields)

    module.async_kv_batch_get = async_kv_batch_get


def _mini_batch(data) -> dict:
    return {
        "columns": sorted(map(str, data.keys())),
        "uid": [str(_plain(uid)) for uid in data["uid"]] if "uid" in data else None,
        "response_mask": _row_sums(data, "response_mask"),
        "loss_mask": _row_sums(data, "loss_mask"),
        "advantages": _row_sums(data, "advantages"),
        "returns": _row_sums(data, "returns"),
        "reward": _row_sums(data, "rm_scores"),
        "global_batch_size": _plain(data.get("global_batch_size", None)),
    }


def _plain(value):
    return getattr(value, "data", value)


def _row_sums(data, name):
    return [float(row.float().sum()) for row in data[name].unbind()] if name in data else None


def _after(engine, grad_norm) -> dict:
    state = {name: _whole(tensor).detach().cpu() for name, tensor in engine.module.state_dict().items()}
    if _rank() == 0:
        torch.save(state, f"{os.environ['CPU_BED_ACTOR_LOG']}.{type(engine).__name__}.pt")
    return {"grad_norm": grad_norm, "weights": _hash(state)}


def _whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def _hash(state) -> str:
    """Hash a state dict: equal hashes are equal bits."""
    digest = hashlib.sha256()
    for name in sorted(state):
        digest.update(name.encode())
        digest.update(state[name].contiguous().numpy().tobytes())
    return digest.hexdigest()


def _rank() -> int:
    return int(os.environ.get("RANK", 0))


def _write_down(log_variable: str, **record) -> None:
    record["rank"] = _rank()
    if path := os.environ.get(log_variable):
        with open(path, "a", encoding="utf-8") as log:
            log.write(json.dumps(record) + "\n")
