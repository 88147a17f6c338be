"""Placeholders for masked rollouts without generation tokens: rows that neither train nor vote.

Every consumer wants at least one assistant token (reward shaping) and the prompt of the row's
siblings (grouping; SingleController takes the prompt's length from row 0).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch

MARK = "_samplemask_placeholder"
"""Set in the verify response of a placeholder; it is visible in NeMo-RL's rollout tables."""


def placeholder_result(nemo_gym_result: dict[str, Any], tokenizer: Any) -> dict[str, Any]:
    """Build the result of a masked rollout that generated nothing.

    Args:
        nemo_gym_result: The verify response; marked in place.
        tokenizer: NeMo-RL's tokenizer.

    Returns:
        One prompt message and one assistant message of a single end-of-sequence token.
    """
    nemo_gym_result[MARK] = True
    end = int(getattr(tokenizer, "eos_token_id", None) or 0)
    prompt = {
        "role": "user",
        "content": "",
        "token_ids": torch.tensor(_prompt_ids(nemo_gym_result, tokenizer) or [end]),
    }
    answer = {
        "role": "assistant",
        "content": "",
        "token_ids": torch.tensor([end]),
        "generation_logprobs": torch.tensor([0.0]),
        "is_invalid_tool_call": False,
        "has_malformed_thinking": False,
    }
    return {"message_log": [prompt, answer], "input_message_log": [prompt], "full_result": nemo_gym_result}


def adopt_prompts(results: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> None:
    """Give each placeholder the prompt tokens of a sibling, in place.

    Args:
        results: NeMo-RL's results of the Gym, one a row.
        keys: One key a row; rows with equal keys have the same prompt.
    """
    if not any(_is_placeholder(result) for result in results):
        return
    prompts = {
        key: result["input_message_log"][0]["token_ids"]
        for key, result in zip(keys, results, strict=True)
        if not _is_placeholder(result)
    }
    for key, result in zip(keys, results, strict=True):
        if _is_placeholder(result) and key in prompts:
            for log in (result["message_log"], result["input_message_log"]):
                log[0]["token_ids"] = torch.as_tensor(prompts[key]).clone()


def refuse_placeholders(full_results: Sequence[Mapping[str, Any]]) -> None:
    """Raise what NeMo-RL raises for a rollout without tokens, where nothing may be masked.

    Raises:
        ValueError: One of the verify responses belongs to a placeholder.
    """
    if any(MARK in result for result in full_results):
        raise ValueError(
            "NeMo Gym returned a masked rollout with no generation data, and env.should_mask_flagged_samples "
            "is false, so the row would train. Remove that switch, or repair the environment."
        )


def prompt_key(nemo_gym_row: Mapping[str, Any]) -> str:
    """Return what identifies a row's prompt: its task, or else the input that it sends."""
    task = nemo_gym_row.get("_ng_task_index")
    sent = (nemo_gym_row.get("responses_create_params") or {}).get("input")
    return json.dumps([task, sent], sort_keys=True, default=str)


def _is_placeholder(result: Mapping[str, Any]) -> bool:
    return MARK in (result.get("full_result") or {})


def _prompt_ids(nemo_gym_result: Mapping[str, Any], tokenizer: Any) -> list[int]:
    sent = (nemo_gym_result.get("responses_create_params") or {}).get("input")
    try:
        return [int(token) for token in tokenizer.apply_chat_template(sent, tokenize=True)]
    except Exception:  # noqa: BLE001 - any chat template may fail; a sibling's prompt replaces this one
        return []
