"""Real V1 advantage stage, real TransferQueue: `verify: true` changes nothing that trains."""

import pytest

pytest.importorskip("verl", reason="verl is not installed in this environment")
tq = pytest.importorskip("transfer_queue", reason="TransferQueue is not installed")
import torch
from tensordict import TensorDict
from test_v1_advantage import FOUR, LENGTHS, put, trainer

pytestmark = pytest.mark.usefixtures("transfer_queue", "plugin")


REJECTION = {
    "rollout_is": "token",
    "rollout_is_threshold": 2.0,
    "rollout_is_batch_normalize": True,
    "rollout_rs": "token_k1",
    "rollout_rs_threshold": "0.7_1.4",
}


def test_verify_leaves_the_weights_of_rollout_correction_as_they_were():
    """The stage rejects tokens in response_mask; a second run must not start from what the first left."""
    written = []
    for verify in (False, True):
        batch = put(FOUR)
        stored = tq.kv_batch_get(keys=batch.keys, partition_id="train", select_fields=["old_log_probs"])
        ramp = [
            torch.linspace(-1.0, -0.2, len(row)) for row in stored["old_log_probs"].unbind()
        ]  # ratios from 1 to 2.2: some tokens are rejected
        fields = TensorDict({"old_log_probs": torch.nested.as_nested_tensor(ramp, layout=torch.jagged)}, 4)
        tq.kv_batch_put(keys=batch.keys, partition_id="train", fields=fields)
        made = trainer(mask_sample={"verify": verify}, rollout_correction=REJECTION)
        made._compute_advantage(batch, {})
        names = ["rollout_is_weights", "response_mask"]
        stored = tq.kv_batch_get(keys=batch.keys, partition_id="train", select_fields=names)
        written.append([stored[name].values() for name in names])
    assert 0 < written[0][1].sum() < sum(LENGTHS[:4]) - LENGTHS[1]  # some of the trained tokens are rejected
    assert all(torch.equal(once, twice) for once, twice in zip(*written, strict=True))
