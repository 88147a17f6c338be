"""Rows judged by their tags are decided as rows judged by their fields."""

from types import SimpleNamespace

import pytest

pytest.importorskip("tensordict", reason="tensordict is not installed here")
import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import NonTensorStack, TensorDict

from samplemask import MaskPolicy
from samplemask_verl.decision import decide, with_signal
from samplemask_verl.stage_queue import tagged
from samplemask_verl.told import told_by_fields, told_by_tags, verdict_fields

POLICIES = [
    MaskPolicy(),
    MaskPolicy(action="drop_group"),
    MaskPolicy(action="loss_multiplier"),
    MaskPolicy(scored_kinds={"agent_timeout"}),
    MaskPolicy(masked_kinds={"agent_timeout"}, min_valid=1),
]
INFOS = [
    {"mask_sample": False},
    {"mask_sample": False, "failure_kind": "agent_timeout"},
    {"mask_sample": True},
    {"mask_sample": True, "failure_kind": "agent_timeout"},
    {"mask_sample": True, "failure_kind": "session_lost"},
    {"_ng_failure_class": "judge_failed"},
    {},
]
SCORES = st.floats(-4, 4, width=32) | st.sampled_from([0.0, float("nan"), float("inf")])
ROW = st.tuples(st.sampled_from(INFOS), st.lists(SCORES, min_size=1, max_size=4))
SESSION = st.tuples(st.sampled_from(["a", "b"]), st.lists(ROW, min_size=1, max_size=2))


def batch_of(rows, padding=0):
    """Rows as they lie in TransferQueue, stored by verl's agent loop, with padding that copies the first."""
    rows = rows + [(f"pad_{row}_0", "pad", {}, [0.0]) for row in range(padding)]
    keys, uids, infos, scores = map(list, zip(*rows, strict=True))
    fields = TensorDict(
        {
            "uid": NonTensorStack(*uids),
            "rm_scores": torch.nested.as_nested_tensor(
                [torch.tensor(s) for s in scores], layout=torch.jagged
            ),
            "extra_fields": NonTensorStack(*({"reward_extra_info": info} for info in infos)),
        },
        len(keys),
    )
    tags = tagged(keys, fields, [{"response_len": len(row)} for row in scores])
    for row in range(len(keys) - padding, len(keys)):
        tags[row] = {**tags[0], "response_len": 1, "is_padding": True}
    return SimpleNamespace(keys=keys, tags=tags, fields=None), fields


@given(st.lists(SESSION, min_size=1, max_size=6), st.integers(0, 2), st.sampled_from(POLICIES))
def test_the_decision_from_tags_is_the_decision_from_fields(sessions, padding, policy):
    rows = [
        (f"{uid}_{session}_{index}", uid, info, scores)
        for session, (uid, outputs) in enumerate(sessions)
        for index, (info, scores) in enumerate(outputs)
    ]
    batch, fields = batch_of(rows, padding)
    by_tags, by_fields = told_by_tags(batch), told_by_fields(batch, fields)
    measured = np.isfinite(by_fields.rows.reward_B)[: len(rows)]
    assert (by_tags is None) == (not measured.all())
    if by_tags is None:
        return
    assert by_tags.tokens_B.tolist() == by_fields.tokens_B.tolist()
    assert by_tags.rows.reward_B[: len(rows)].tobytes() == by_fields.rows.reward_B[: len(rows)].tobytes()
    one, other = (
        with_signal(decide(told.rows, told.verdicts, policy), told.tokens_B) for told in (by_tags, by_fields)
    )
    for name in ("trains_B", "votes_B", "masked_B"):
        assert getattr(one.plan, name).tolist() == getattr(other.plan, name).tolist()
    assert one.counts == other.counts
    assert one.sessions.counts() == other.sessions.counts()


def test_a_padding_row_is_nothing_of_what_its_copied_tag_says():
    batch, _ = batch_of([("a_0_0", "a", {"mask_sample": True}, [7.0, 0.0])], padding=1)
    told = told_by_tags(batch)
    assert told.verdicts.masked_B.tolist() == [True, False]
    assert told.rows.padding_B.tolist() == [False, True]
    assert told.rows.group_B.tolist() == ["a", "pad"]
    assert (told.rows.reward_B.tolist(), told.tokens_B.tolist()) == ([7.0, 0.0], [2, 1])
    silent, _ = batch_of([("a_0_0", "a", {}, [7.0])], padding=1)
    assert told_by_tags(silent).verdicts.stated is False  # so that the trainer says that no verdict arrives


def test_rows_of_one_session_are_known_by_their_keys():
    rows = [("a_0_1", "a", {}, [1.0]), ("a_0_0", "a", {}, [1.0]), ("a_1_0", "a", {}, [1.0])]
    told = told_by_tags(batch_of(rows)[0])
    assert list(told.rows.session_B) == ["a_0", "a_0", "a_1"]
    assert told.rows.order_B.tolist() == [1, 0, 0]
    assert told_by_tags(batch_of(rows[1:])[0]).rows.session_B is None  # a row a session


def test_tags_do_not_speak_for_a_reward_model_that_wrote_its_own_verdicts():
    batch, _ = batch_of([("a_0_0", "a", {}, [1.0])])
    batch.fields = ["rm_scores", "mask_sample"]
    assert verdict_fields(batch) == ["extra_fields", "mask_sample"]
    assert told_by_tags(batch) is None


def test_one_row_without_a_tag_leaves_the_batch_to_its_fields():
    batch, _ = batch_of([("a_0_0", "a", {}, [1.0]), ("a_1_0", "a", {}, [1.0])])
    assert told_by_tags(batch) is not None
    for tag in ({"response_len": 1}, {"is_padding": True}):
        batch.tags[1] = tag
        assert told_by_tags(batch) is None
