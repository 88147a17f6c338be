"""Weights after an optimizer step: with masked rows as without them. NeMo-RL's loop, estimator and loss."""

import bed
import pytest
import torch
from nemo_rl.algorithms.loss import ClippedPGLossConfig, ClippedPGLossFn
from nemo_rl.distributed.batched_data_dict import BatchedDataDict


class Model(torch.nn.Module):
    """Next-token log probabilities of a language model with 40 tokens and 8 dimensions."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = torch.nn.Embedding(40, 8), torch.nn.Linear(8, 40)

    def forward(self, ids):
        logits = self.head(self.embed(ids[:, :-1]))
        return torch.log_softmax(logits, -1).gather(-1, ids[:, 1:, None]).squeeze(-1)


def trained(data, token_level):
    """Weights and gradient norm of one AdamW step of NeMo-RL's policy gradient loss with a KL penalty."""
    model = Model()
    config = ClippedPGLossConfig(reference_policy_kl_penalty=0.1, token_level_loss=token_level)
    data = BatchedDataDict({name: value.clone() for name, value in data.items()})
    tokens = data["token_mask"][:, 1:] * data["sample_mask"].unsqueeze(-1)
    data["prev_logprobs"][:, 1:] = model(data["input_ids"]).detach()
    loss, _ = ClippedPGLossFn(config)(
        model(data["input_ids"]),
        data,
        global_valid_seqs=data["sample_mask"].sum(),
        global_valid_toks=tokens.sum(),
    )
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9)
    torch.optim.AdamW(model.parameters(), lr=1e-2).step()
    return torch.cat([weight.detach().flatten() for weight in model.parameters()]), norm


def rollouts(rewards, masked, groups):
    """Results whose answers differ from row to row."""
    results = bed.batch_of(rewards, masked, groups)
    for row, result in enumerate(results):
        result["message_log"][1]["token_ids"] = torch.tensor([10 + row, 20 + row, 30])
    return results


def step(rewards, masked, groups, kept=None):
    results = rollouts(rewards, masked, groups)
    results = results if kept is None else [results[row] for row in kept]
    groups = len({int(each["message_log"][0]["token_ids"][0]) for each in results})
    parts = bed.components(groups, len(results) // groups)
    bed.run_grpo(parts, [results])
    return parts["trained"][0]


@pytest.mark.parametrize("token_level", [True, False])
@pytest.mark.parametrize(
    ("rewards", "masked", "groups", "kept"),
    [
        ([1.0, 1e6, 0.0, 0.25], {1}, 1, [0, 2, 3]),
        ([1.0, 1.0, 0.0, 1.0, 0.0, 0.5], {0, 1}, 2, [3, 4, 5]),  # the first group is thin: all of it goes
    ],
)
def test_weights_and_gradient_norm_are_those_of_training_without_the_rows(
    adapter, rewards, masked, groups, kept, token_level
):
    weights, norm = trained(step(rewards, masked, groups), token_level)
    expected, expected_norm = trained(step(rewards, masked, groups, kept), token_level)
    assert norm == pytest.approx(expected_norm.item(), rel=1e-5)
    assert torch.allclose(weights, expected, atol=1e-6, rtol=0)


def test_stock_nemo_rl_takes_another_step():
    weights, _ = trained(step([1.0, 1.0, 0.0, 0.25], {1}, 1), True)
    expected, _ = trained(step([1.0, 1.0, 0.0, 0.25], {1}, 1, [0, 2, 3]), True)
    assert (weights - expected).abs().max() > 1e-4
