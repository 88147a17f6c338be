"""A masked rollout that generated no tokens does not fail its batch; an unmasked one is still an error."""

from types import SimpleNamespace

import bed
import pytest
import torch
from nemo_rl.environments.nemo_gym import NemoGym

TOKENIZER = SimpleNamespace(
    eos_token_id=7, pad_token_id=0,
    apply_chat_template=lambda *_, **__: [5, 5],
    batch_decode=lambda items: ["" for _ in items],
)  # fmt: skip


def gym_result(reward, tokens=(), **verdict):
    item = {"type": "message", "role": "assistant", "content": []}
    if tokens:
        item.update(
            prompt_token_ids=[1, 2, 3],
            generation_token_ids=list(tokens),
            generation_log_probs=[0.0] * len(tokens),
        )
    return {
        "reward": reward, "responses_create_params": {"input": [{"role": "user", "content": "hi"}]},
        "response": {"output": [item]}, **verdict,
    }  # fmt: skip


def postprocess(result):
    """The method of the real NemoGym actor, in this process."""
    actor = object.__new__(NemoGym.__ray_metadata__.modified_class)
    actor.cfg = {}
    return actor._postprocess_nemo_gym_to_nemo_rl_result({}, result, TOKENIZER)


def rollouts():
    results = [
        gym_result(1.0, (10, 11, 12)),
        gym_result(1.0, mask_sample=True, failure_kind="session_lost"),
        gym_result(0.0, (10, 11, 12)),
        gym_result(0.0, (10, 11, 12)),
    ]
    return [postprocess(result) for result in results]


@pytest.mark.parametrize("path", bed.PATHS)
def test_a_masked_rollout_without_tokens_becomes_a_row_that_neither_trains_nor_votes(adapter, path):
    step = bed.run(path, bed.components(1, 4), rollouts())
    assert step.sample_mask == [1, 0, 1, 1]
    assert step.advantages == pytest.approx([2 / 3, 0.0, -1 / 3, -1 / 3])
    assert step.metrics["mask_sample/kind/session_lost"] == 1.0


@pytest.mark.parametrize("path", bed.PATHS)
def test_the_first_row_of_a_group_may_be_the_one_without_tokens(adapter, path):
    first, second, *others = rollouts()
    step = bed.run(path, bed.components(1, 4), [second, first, *others])
    assert step.sample_mask == [0, 1, 1, 1]
    assert step.advantages == pytest.approx([0.0, 2 / 3, -1 / 3, -1 / 3])


def test_an_unmasked_rollout_without_tokens_is_still_nemo_rls_error(adapter):
    with pytest.raises(ValueError, match="no generation data"):
        postprocess(gym_result(1.0))


def test_stock_nemo_rl_fails_the_batch_for_a_masked_rollout_too():
    with pytest.raises(ValueError, match="no generation data"):
        postprocess(gym_result(0.0, mask_sample=True))


def test_a_whole_group_without_tokens_takes_its_prompt_from_the_chat_template(adapter):
    result = postprocess(gym_result(0.0, mask_sample=True))
    assert result["input_message_log"][0]["token_ids"].tolist() == [5, 5]
    assert result["message_log"][1]["token_ids"].tolist() == [7]
    assert torch.equal(result["message_log"][1]["generation_logprobs"], torch.zeros(1))
