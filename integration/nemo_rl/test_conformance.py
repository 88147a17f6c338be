"""The conformance suite on NeMo-RL's own group-relative estimators, stock and with the adapter."""

import pytest
from nemo_rl.algorithms import advantage_estimator as host
from nemo_rl.algorithms.loss import ClippedPGLossConfig

from samplemask.testing import check_estimator, grpo_batch
from samplemask.testing.nemo_rl_host import nemo_rl_estimator, to_nemo_rl

SKIP = {"padding_inert": "NeMo-RL's batches carry no padding rows at this level"}


def make(maker, **options):
    loss = ClippedPGLossConfig(ratio_clip_min=0.2, ratio_clip_max=0.2, ratio_clip_c=None)
    return maker(host.AdvEstimatorConfig(**options), loss)


ESTIMATORS = {
    f"{name}-{'loo' if loo else 'mean'}-{'std' if norm else 'plain'}": (
        maker, {"name": name, "use_leave_one_out_baseline": loo, "normalize_rewards": norm},
    )
    for name, maker in (("grpo", host.GRPOAdvantageEstimator), ("gdpo", host.GDPOAdvantageEstimator))
    for loo in (False, True)
    for norm in (False, True)
}  # fmt: skip


def stock_of(estimator):
    compute = type(estimator).compute_advantage
    compute = getattr(compute, "__wrapped__", compute)
    return nemo_rl_estimator(estimator, lambda **columns: compute(estimator, **columns))


@pytest.mark.parametrize("name", ESTIMATORS)
def test_stock_estimators_let_masked_rows_vote(name):
    maker, options = ESTIMATORS[name]
    report = check_estimator(stock_of(make(maker, **options)), name=name, skip=SKIP)
    assert {"deletion_equivalence", "masked_rows_are_zero", "masked_content_irrelevant"} <= set(report.failed)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_with_the_adapter_every_property_holds(adapter, name):
    maker, options = ESTIMATORS[name]
    estimator = make(maker, **options)
    report = check_estimator(
        nemo_rl_estimator(estimator), name=name, stock=stock_of(estimator), exact=True, atol=1e-4, skip=SKIP
    )
    report.raise_if_failed()
    assert report["deletion_equivalence"].holds


def test_a_batch_becomes_nemo_rls_own():
    batch = grpo_batch(2, 2, padding=1)
    columns = to_nemo_rl(batch)
    assert columns["total_reward"].tolist() == pytest.approx(batch.reward_B.tolist())
    assert columns["loss_multiplier"].tolist() == [float(not m and not p) for m, p in zip(
        batch.masked_B, batch.padding_B, strict=True)]  # fmt: skip
    assert columns.size == 5
    assert [info.get("full_result", {}).get("mask_sample") for info in columns["extra_env_info"]] == [
        *batch.masked_B[:4].tolist(), None,
    ]  # fmt: skip
