"""Runs `python -m verl.trainer.main_ppo` and reads back what it did."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from cpu_bed.assets import build_assets

_BED = Path(__file__).resolve().parents[1]
_REPOSITORY = _BED.parents[1]
_LOGS = ("metrics.jsonl", "actor.jsonl", "environment.jsonl", "queue.jsonl", "output.txt")
_FP32 = ("param_dtype", "reduce_dtype", "buffer_dtype")


@dataclass(frozen=True)
class Run:
    """What one trainer run did.

    Attributes:
        folder: Where it ran.
        returncode: Exit code of the trainer; None when the bed stopped it.
        output: Everything it printed, from all processes.
        steps: Metrics of each step, as verl's own file logger wrote them.
        mini_batches: What the training engine was given (see `spy.py`), all roles and ranks.
        rollouts: What the environment said of each rollout (see `environment.py`).
        queue: What was sampled and read from TransferQueue (see `spy.py`).
        seconds: Wall-clock duration.
    """

    folder: Path
    returncode: int | None
    output: str
    steps: list[dict[str, Any]]
    mini_batches: list[dict[str, Any]]
    rollouts: list[dict[str, Any]] = field(repr=False, default_factory=list)
    queue: list[dict[str, Any]] = field(repr=False, default_factory=list)
    seconds: float = 0.0

    def actor(self, rank: int = 0) -> list[dict[str, Any]]:
        """The mini batches that reached the actor's engine on one rank."""
        return [row for row in self.mini_batches if row["rank"] == rank and "LMHead" in row["engine"]]

    def critic(self, rank: int = 0) -> list[dict[str, Any]]:
        """The mini batches that reached the critic's engine on one rank."""
        return [row for row in self.mini_batches if row["rank"] == rank and "ValueHead" in row["engine"]]

    def final_weights(self) -> dict[str, Any]:
        """The actor's weights after its last optimizer step, by name."""
        import torch

        return torch.load(self.folder / "actor.jsonl.FSDPEngineWithLMHead.pt")

    def tags(self) -> list[dict[str, Any]]:
        """The tags of the training rows that were sampled, in order."""
        sampled = [row["tags"] for row in self.queue if row["partition"] == "train" and "tags" in row]
        return [tag for tags in sampled for tag in tags]

    def fields_read(self) -> set[str]:
        """The fields of training rows that were read by name."""
        train = [row for row in self.queue if row["partition"] == "train"]
        return {name for row in train for name in row.get("reads") or ()}

    def check(self) -> Run:
        """Raise, with the end of the output, unless the trainer ended well."""
        if self.returncode != 0:
            raise AssertionError(f"trainer exit code {self.returncode}; output ends:\n{self.output[-6000:]}")
        return self


def run_trainer(
    folder: Path,
    *overrides: str,
    steps: int = 1,
    gpus: int = 1,
    samplemask: bool = True,
    environment: dict[str, Any] | None = None,
    kill_after_steps: int | None = None,
    timeout_seconds: float = 900,
) -> Run:
    """Run the real trainer in a process of its own.

    Args:
        folder: The run's folder: empty, or that of an earlier run which is to be resumed.
        *overrides: Hydra overrides, after the bed's own.
        steps: Training steps.
        gpus: Data-parallel ranks.
        samplemask: False runs stock verl.
        environment: Keyword arguments of `environment.compute_score`.
        kill_after_steps: Kill the trainer, as an outage would, once so many steps are logged.
        timeout_seconds: The run is stopped after this time.
    """
    if not (folder / "model").exists():
        build_assets(folder)
    for name in _LOGS:
        (folder / name).unlink(missing_ok=True)
    # Ray puts Unix sockets here, and their paths may be 107 bytes long at most.
    with tempfile.TemporaryDirectory(prefix="cpubed", ignore_cleanup_errors=True) as ray_folder:
        command = [sys.executable, "-m", "verl.trainer.main_ppo"]
        command += _settings(folder, Path(ray_folder), steps, gpus, environment or {})
        started = time.monotonic()
        returncode = _run(
            command + list(overrides), folder, samplemask, ray_folder, timeout_seconds, kill_after_steps
        )
        seconds = time.monotonic() - started
    return Run(
        folder,
        returncode,
        (folder / "output.txt").read_text(encoding="utf-8", errors="replace"),
        [row["data"] for row in _read_lines(folder / "metrics.jsonl")],
        _read_lines(folder / "actor.jsonl"),
        _read_lines(folder / "environment.jsonl"),
        _read_lines(folder / "queue.jsonl"),
        seconds,
    )


def process_environment(folder: Path, samplemask: bool = True) -> dict[str, str]:
    """Environment variables of a process in which verl loads the bed and, if wished, samplemask."""
    roots = [_BED, _REPOSITORY / "contract", _REPOSITORY / "adapters"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "VERL_"))}
    path = os.pathsep.join([*map(str, roots), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return (
        kept
        | plugin_variables(samplemask)
        | {
            "PYTHONPATH": path,
            "VERL_FILE_LOGGER_PATH": str(folder / "metrics.jsonl"),
            "CPU_BED_ACTOR_LOG": str(folder / "actor.jsonl"),
            "CPU_BED_ENVIRONMENT_LOG": str(folder / "environment.jsonl"),
            "CPU_BED_QUEUE_LOG": str(folder / "queue.jsonl"),
            "HF_HUB_OFFLINE": "1",
            "HYDRA_FULL_ERROR": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "RAY_DEDUP_LOGS": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
        }
    )


def plugin_variables(samplemask: bool) -> dict[str, str]:
    """Environment variables that make verl load the bed and, if wished, samplemask."""
    modules = ["cpu_bed.plugin"]
    if samplemask and not any(point.name == "samplemask" for point in entry_points(group="verl.plugins")):
        modules.append("samplemask_verl.plugin")
    return {
        "VERL_USE_EXTERNAL_MODULES": ",".join(modules),
        "VERL_USE_EXTERNAL_PLUGINS": "samplemask" if samplemask else "none",
        "VERL_PLATFORM": "cpu",
        "VERL_ENGINE_DEVICE": "cuda",
    }


def _run(command, folder, samplemask, ray_folder, timeout_seconds, kill_after_steps) -> int | None:
    with open(folder / "output.txt", "wb") as output:
        trainer = subprocess.Popen(
            command,
            cwd=folder,
            env=process_environment(folder, samplemask),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    give_up = time.monotonic() + timeout_seconds
    try:
        while time.monotonic() < give_up:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return trainer.wait(0.5)
            if kill_after_steps and len(_read_lines(folder / "metrics.jsonl")) >= kill_after_steps:
                break
        return None
    finally:
        _stop(trainer, ray_folder)


def _stop(trainer: subprocess.Popen, ray_folder: str) -> None:
    """End the trainer and the Ray processes of this run, which carry its folder in their arguments."""
    import psutil

    with contextlib.suppress(ProcessLookupError):
        os.killpg(trainer.pid, signal.SIGKILL)
    trainer.wait()
    for process in psutil.process_iter(["cmdline"]):
        if any(ray_folder in argument for argument in process.info["cmdline"] or ()):
            with contextlib.suppress(psutil.Error):
                process.kill()


def _read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _settings(folder, ray_folder, steps, gpus, environment) -> list[str]:
    actor = "actor_rollout_ref.actor"
    return [
        f"data.train_files={folder}/train.parquet",
        f"data.val_files={folder}/val.parquet",
        *_SETTINGS.split(),
        f"actor_rollout_ref.model.path={folder}/model",
        f"critic.model.path={folder}/model",
        *(f"+{actor}.fsdp_config.mixed_precision.{name}=fp32" for name in _FP32),
        "+actor_rollout_ref.ref.fsdp_config.mixed_precision.param_dtype=fp32",
        f"reward.custom_reward_function.path={_BED}/cpu_bed/environment.py",
        *(
            f"+reward.custom_reward_function.reward_kwargs.{key}={_hydra(value)}"
            for key, value in environment.items()
        ),
        f"trainer.n_gpus_per_node={gpus}",
        f"trainer.total_training_steps={steps}",
        f"trainer.default_local_dir={folder}/checkpoints",
        f"+ray_kwargs.ray_init.num_gpus={gpus}",
        f"+ray_kwargs.ray_init._temp_dir={ray_folder}",
    ]


def _hydra(value: Any) -> str:
    return json.dumps(value).replace('"', "'")


# TransferQueue waits for ever when Ray counts fewer CPUs than it wants, hence num_cpus=16 (logical).
_SETTINGS = """
algorithm.adv_estimator=grpo
data.train_batch_size=4 data.max_prompt_length=64 data.max_response_length=12
data.dataloader_num_workers=0 data.filter_overlong_prompts=False data.shuffle=False
actor_rollout_ref.model.use_remove_padding=False
actor_rollout_ref.model.enable_gradient_checkpointing=False
+actor_rollout_ref.model.override_config.attn_implementation=eager
actor_rollout_ref.actor.strategy=fsdp2 actor_rollout_ref.actor.ppo_mini_batch_size=4
actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8 actor_rollout_ref.actor.optim.lr=1e-3
actor_rollout_ref.actor.use_torch_compile=False actor_rollout_ref.actor.fsdp_config.use_torch_compile=False
actor_rollout_ref.actor.fsdp_config.model_dtype=fp32
actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=8 actor_rollout_ref.ref.strategy=fsdp2
actor_rollout_ref.ref.fsdp_config.use_torch_compile=False
actor_rollout_ref.rollout.name=hfcpu actor_rollout_ref.rollout.n=4
actor_rollout_ref.rollout.tensor_model_parallel_size=1
actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8
actor_rollout_ref.rollout.agent.num_workers=1 actor_rollout_ref.rollout.calculate_log_probs=True
reward.num_workers=1
trainer.device=cpu trainer.nnodes=1 trainer.logger=[console,file] trainer.total_epochs=4
trainer.val_before_train=False trainer.test_freq=-1 trainer.save_freq=-1 trainer.resume_mode=disable
ray_kwargs.ray_init.num_cpus=16 +ray_kwargs.ray_init.include_dashboard=False
"""
