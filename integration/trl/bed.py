"""One step of TRL's real GRPOTrainer on CPU: a random Qwen2 of two layers, SGD, rollouts written by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

WORDS = [f"w{number}" for number in range(62)]
PROMPT = [2, 3, 4]
COMPLETIONS = ([5, 6, 7, 1], [8, 9, 10, 11, 12, 1], [13, 14, 1], [15, 16, 17, 18, 1])  # 1 ends a response


def build_model(folder: Path) -> str:
    """Write the model and its tokenizer; return where they are."""
    vocabulary = {word: index for index, word in enumerate(["<pad>", "<eos>", *WORDS])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(vocabulary), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(folder)
    fast.save_pretrained(folder)
    return str(folder)


def train_one_step(
    model: str,
    rows: Sequence[int],
    add_rewards: Callable[[dict[str, Any]], dict[str, Any]],
    reward: Callable[..., Any],
    **options: Any,
) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Train one group for one step.

    Args:
        model: Folder of the model.
        rows: Which of `COMPLETIONS` are sampled.
        add_rewards: Adds fields to the rollout function's result.
        reward: The reward function.
        options: Of GRPOConfig.

    Returns:
        How far the step moved each weight, and the advantages of the rows.
    """
    settings: dict[str, Any] = {
        "output_dir": model + "-out", "per_device_train_batch_size": len(rows), "num_generations": len(rows),
        "max_steps": 1, "learning_rate": 0.1, "lr_scheduler_type": "constant", "optim": "sgd",
        "max_grad_norm": 0.0, "beta": 0.0, "scale_rewards": "none", "max_completion_length": 8,
        "report_to": "none", "use_cpu": True, "bf16": False, "save_strategy": "no", "disable_tqdm": True,
        "gradient_checkpointing": False, "shuffle_dataset": False, "seed": 0,
    }  # fmt: skip

    def rollout(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        completions = [list(COMPLETIONS[row]) for row in rows]
        logprobs = [[-4.0] * len(ids) for ids in completions]
        found = {"prompt_ids": [PROMPT] * len(rows), "completion_ids": completions, "logprobs": logprobs}
        return add_rewards(found)

    trainer = GRPOTrainer(
        model=model,
        args=GRPOConfig(**{**settings, **options}),
        reward_funcs=reward,
        train_dataset=Dataset.from_list([{"prompt": "w0 w1 w2"}]),
        rollout_func=rollout,
    )
    noise = torch.Generator().manual_seed(1)  # away from the reference policy: there the KL gradient is zero
    with torch.no_grad():
        for value in trainer.model.parameters():
            value.add_(0.05 * torch.randn(value.shape, generator=noise))
    before = {name: value.detach().clone() for name, value in trainer.model.named_parameters()}
    trainer.train()
    moved = {name: value.detach() - before[name] for name, value in trainer.model.named_parameters()}
    return moved, list(trainer._logs["advantages"])
