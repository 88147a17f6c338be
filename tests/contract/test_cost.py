"""What the contract costs a batch, in bytes and calls; no clock is read."""

import tracemalloc

import numpy as np
import pytest

from samplemask import MaskPolicy, plan_rows, read_columns, read_verdict, verdict_columns

ROWS = 100_000
PROMPTS = np.arange(ROWS // 16)
TEXT = np.array([f"{prompt:08x}-0000-4000-8000-{prompt:012x}" for prompt in PROMPTS])
GROUPS = {
    "integers": np.repeat(PROMPTS, 16),
    "uuids, objects": np.repeat(TEXT, 16).astype(object),
    "uuids, fixed width": np.repeat(TEXT, 16),
}


@pytest.mark.parametrize("ids", GROUPS)
def test_a_plan_takes_at_most_forty_bytes_a_row(ids):
    masked_B = np.arange(ROWS) % 10 == 0
    plan_rows(masked_B[:160], GROUPS[ids][:160], MaskPolicy())  # what is allocated once
    tracemalloc.start()
    plan_rows(masked_B, GROUPS[ids], MaskPolicy())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak / len(masked_B) <= 40


def test_a_batch_is_read_once_for_each_different_verdict_however_many_rows_it_has(monkeypatch):
    read = []

    def counted(said):
        read.append(said)
        return read_verdict(said)

    monkeypatch.setattr(verdict_columns, "read_verdict", counted)
    masked_B = np.arange(ROWS) % 10 == 0
    kinds = np.where(masked_B, "session_lost", None)
    rewards = np.linspace(0.0, 1.0, ROWS)
    columns = read_columns({"reward": rewards, "mask_sample": masked_B, "failure_kind": kinds})
    assert len(read) == 2
    assert columns.masked_B.sum() == ROWS // 10
    assert columns.reward_B.tolist() == rewards.tolist()
