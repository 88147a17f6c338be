"""`check_loss` with torch: faults in a loss, its KL and its entropy are named; verl's own aggregation too."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed in this environment")
pytest.importorskip("verl", reason="verl is not installed in this environment")

from verl.trainer.ppo.core_algos import agg_loss, kl_penalty

from samplemask.testing import check_loss

MODES = ["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"]


def kept(values, inputs):
    return torch.where(inputs.mask.bool(), values, torch.zeros((), dtype=values.dtype))


def policy_loss(inputs):
    """The plain policy gradient, the low-variance KL and the entropy bonus, token mean."""
    ratio = kept(inputs.logprobs - inputs.old_logprobs, inputs).exp()
    gap = kept(inputs.ref_logprobs - inputs.logprobs, inputs)
    per_token = -kept(inputs.advantages, inputs) * ratio + 0.1 * (gap.exp() - gap - 1)
    per_token = per_token - 0.01 * kept(inputs.entropy, inputs)
    return kept(per_token, inputs).sum() / inputs.mask.sum().clamp(min=1)


def with_the_denominator_of_all_rows(inputs):
    return policy_loss(inputs) * inputs.mask.sum() / (len(inputs.mask) * inputs.mask.shape[1])


def with_kl_everywhere(inputs):
    gap = inputs.ref_logprobs - inputs.logprobs
    return policy_loss(inputs) + 0.1 * (gap.exp() - gap - 1).mean()


def with_entropy_everywhere(inputs):
    return policy_loss(inputs) - 0.01 * inputs.entropy.mean()


def multiplying_by_the_mask(inputs):
    ratio = (inputs.logprobs - inputs.old_logprobs).exp()
    return -(inputs.advantages * ratio * inputs.mask).sum() / inputs.mask.sum().clamp(min=1)


def dividing_by_nothing(inputs):
    return policy_loss(inputs) * (inputs.mask.sum() / inputs.mask.sum())


def test_a_sound_loss_passes():
    report = check_loss(policy_loss)
    report.raise_if_failed()
    assert len(report.findings) == 4


@pytest.mark.parametrize(
    ("loss", "properties"),
    [
        (with_the_denominator_of_all_rows, {"loss_deletion_equivalence"}),
        (multiplying_by_the_mask, {"loss_ignores_masked_content"}),
        (dividing_by_nothing, {"empty_batch_has_no_gradient"}),
    ],
)
def test_a_fault_is_named(loss, properties):
    assert set(check_loss(loss).failed) == properties


@pytest.mark.parametrize("loss", [with_kl_everywhere, with_entropy_everywhere])
def test_a_term_that_forgets_the_mask_has_gradients_in_masked_rows(loss):
    report = check_loss(loss)
    assert "no_gradient_in_masked_rows" in report.failed
    assert "gradient of a row that does not train has norm" in report["no_gradient_in_masked_rows"].problem


def verl_loss(mode, rows_that_count=None):
    """verl's own KL and aggregation; the masked rows' masks are zero, as the adapter leaves them."""

    def loss(inputs):
        ratio = (inputs.logprobs - inputs.old_logprobs).exp()
        per_token = -inputs.advantages * ratio
        per_token = per_token + 0.1 * kl_penalty(inputs.logprobs, inputs.ref_logprobs, "low_var_kl")
        rows = len(inputs.mask) if rows_that_count is None else rows_that_count(inputs)
        return agg_loss(
            per_token, inputs.mask, mode, batch_num_tokens=inputs.mask.sum(), global_batch_size=rows
        )

    return loss


def test_verls_mean_over_tokens_is_no_number_when_no_row_trains():
    report = check_loss(verl_loss("token-mean"))
    assert report.failed == ("empty_batch_has_no_gradient",)
    assert "the loss is nan" in report["empty_batch_has_no_gradient"].problem


@pytest.mark.parametrize("mode", MODES[1:])
def test_verls_means_over_sequences_need_the_number_of_rows_that_train(mode):
    assert "loss_deletion_equivalence" in check_loss(verl_loss(mode)).failed
    trained = check_loss(verl_loss(mode, lambda inputs: int(inputs.trains.sum())))
    assert trained["loss_deletion_equivalence"].holds
    assert trained["no_gradient_in_masked_rows"].holds
