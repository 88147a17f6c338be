"""The demo's numbers come from real verl, and it leaves verl as it found it."""

import numpy as np
import pytest

pytest.importorskip("verl", reason="verl is not installed in this environment")

import samplemask_verl
from samplemask.demo import estimates, rollouts
from samplemask.policy import MaskPolicy
from samplemask.testing.reference import reference_advantage


@pytest.mark.parametrize("active", [False, True])
def test_verl_and_the_reference_agree_on_the_recorded_run(active):
    (samplemask_verl.install if active else samplemask_verl.uninstall)()
    batch = rollouts.read_batch(rollouts.recording())
    found = estimates.estimate(batch)
    assert samplemask_verl.is_active() is active
    assert found.source.startswith("the real verl 0.9")
    stock = reference_advantage(batch, policy=MaskPolicy(action="ignore"))
    assert np.allclose(found.stock_B, stock, rtol=0, atol=1e-12)
    assert np.allclose(found.masked_B, reference_advantage(batch), rtol=0, atol=1e-12)
    assert not found.masked_B[~found.trains_B].any()
    samplemask_verl.uninstall()
