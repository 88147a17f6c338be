"""What a row's tag says is what its fields say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samplemask import ContractError, failure_kinds
from samplemask_verl.tags import places_of, split_key, tag_of, uid_of, verdicts_of
from samplemask_verl.verdicts import read_rows

NAN = float("nan")


def test_a_measured_row_is_its_reward_alone():
    assert tag_of({"reward_extra_info": {"mask_sample": False, "failure_kind": ""}}, 0.5) == 0.5
    assert tag_of({"reward_extra_info": None, "mask_sample": "false"}, -1.0) == -1.0


@pytest.mark.parametrize(
    ("extra_fields", "tag"),
    [
        ({}, [1.0, False, False, False, None]),
        ({"failure_kind": "agent_timeout"}, [1.0, False, False, False, "agent_timeout"]),
        ({"mask_sample": False, "failure_kind": "agent_timeout"}, [1.0, True, False, False, "agent_timeout"]),
        ({"instance_config": {"mask_sample": True}}, [1.0, True, True, False, None]),
        ({"reward_extra_info": {"mask_sample": 1}, "failure_kind": "a:b"}, [1.0, True, True, False, "a:b"]),
        ({"_ng_failure_class": "judge_failed"}, [1.0, True, True, True, "judge_failed"]),
    ],
)
def test_every_other_row_is_spelled_out(extra_fields, tag):
    assert tag_of(extra_fields, 1.0) == tag


def test_a_row_whose_reward_is_no_number_is_left_to_the_trainer():
    for reward in (NAN, float("inf")):
        for said in ({}, {"mask_sample": False}, {"mask_sample": True, "failure_kind": "session_lost"}):
            assert tag_of(said, reward) is None


def test_what_cannot_be_read_is_left_to_the_trainer_which_says_so():
    assert tag_of({"mask_sample": "maybe"}, 1.0) is None
    assert tag_of({"reward_extra_info": {"mask_sample": True, "failure_kind": 7}}, 1.0) is None
    for flags in (np.array([True, False]), np.array([])):
        assert tag_of({"mask_sample": flags}, 1.0) is None
        with pytest.raises(ContractError, match=r"row 0 .*mask_sample"):
            read_rows(places_of([{"mask_sample": flags}]), np.ones(1))


def test_tags_are_read_back_as_lists_or_tuples():
    masked = [0.0, True, True, True, "session_lost"]
    for spelled in (masked, tuple(masked)):
        verdicts, rewards = verdicts_of([0.5, spelled])
        assert rewards.tolist() == [0.5, 0.0]
        assert (verdicts.masked_B.dtype, verdicts.masked_B.tolist()) == (bool, [False, True])
        assert (verdicts.failed_B.dtype, verdicts.failed_B.tolist()) == (bool, [False, True])
        assert verdicts.kinds_B == [None, "session_lost"]
        assert verdicts.stated is True


def test_no_verdict_is_stated_only_when_no_row_states_one():
    silent = [1.0, False, False, False, None]
    assert verdicts_of([silent, silent])[0].stated is False
    assert verdicts_of([silent, 1.0])[0].stated is True


@pytest.mark.parametrize("tags", [[], [0.5, None], [0.5, [0.5, True]], [1], ["samplemask"]])
def test_a_batch_with_a_row_of_which_nothing_is_told_is_not_judged_by_tags(tags):
    assert verdicts_of(tags) is None


def test_an_unknown_kind_is_reported_where_the_tags_are_read(monkeypatch):
    monkeypatch.setattr(failure_kinds, "_reported", set())
    verdicts_of([[0.0, True, True, False, "disk_on_fire"]])
    assert failure_kinds._reported == {"disk_on_fire"}


def test_keys_of_verls_form_name_uid_session_and_index():
    assert split_key("3f-a_12_0") == ("3f-a_12", 0)
    assert uid_of("3f-a_12_0") == "3f-a"
    assert uid_of("with_underscore_1_2") == "with_underscore"
    for other in ("3f-a", "3f-a_x", "3_4", "3f-a_0_²"):
        assert split_key(other) is None
        assert uid_of(other) is None


FLAGS = st.sampled_from([True, False, None, "true", "False", 0, 1, "", "maybe"])
KINDS = st.sampled_from([None, "", "session_lost", "agent_timeout", "server:kind"])
PLACE = st.fixed_dictionaries(
    {},
    optional={
        "mask_sample": FLAGS,
        "failure_kind": KINDS,
        "instance_config": st.none() | st.fixed_dictionaries({}, optional={"mask_sample": FLAGS}),
        "_ng_failure_class": KINDS,
        "failure_reason": st.just("why"),
    },
)
EXTRA = st.builds(lambda info, own: {**own, "reward_extra_info": info}, st.none() | PLACE, PLACE)
REWARDS = st.floats(width=32) | st.sampled_from([0.0, -0.0, NAN, float("inf")])


@given(st.lists(st.tuples(EXTRA, REWARDS), min_size=1, max_size=8))
def test_tags_say_what_the_fields_say_whenever_they_say_anything(batch):
    extra, rewards = zip(*batch, strict=True)
    read = verdicts_of([tag_of(fields, reward) for fields, reward in batch])
    if read is None:
        return
    verdicts, reward_B = read
    fields = read_rows(places_of(extra), np.array(rewards))
    assert reward_B.tobytes() == np.array(rewards).tobytes()
    assert verdicts.masked_B.tolist() == fields.masked_B.tolist()
    assert verdicts.failed_B.tolist() == fields.failed_B.tolist()
    assert verdicts.kinds_B == fields.kinds_B
    assert verdicts.stated == fields.stated
