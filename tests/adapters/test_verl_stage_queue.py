"""What rides along with the reads and writes of verl's V1 trainer and of its rollouts."""

import asyncio
import math

import pytest

pytest.importorskip("tensordict", reason="tensordict is not installed here")
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict

from samplemask import ContractError, SeamError
from samplemask_verl.loss import EXCLUSION
from samplemask_verl.stage_queue import (
    marking,
    reading,
    rewards_of,
    tagged,
    wrap_async_put,
    wrap_get,
    wrap_put,
)

STORED = {"uid": torch.arange(2), "extra_fields": torch.tensor([7, 8]), "values": torch.zeros(2)}


def read(keys, partition_id, select_fields):
    return TensorDict({name: STORED[name] for name in select_fields}, 2)


get = wrap_get(read)


def test_the_first_read_brings_more_fields_and_the_reader_sees_its_own():
    seen = []
    with reading(["extra_fields"], seen.append):
        assert sorted(get(["a", "b"], "train", select_fields=["uid"]).keys()) == ["uid"]
        assert sorted(get(["a", "b"], "train", select_fields=["values"]).keys()) == ["values"]
    assert [sorted(stored.keys()) for stored in seen] == [["extra_fields", "uid"]]
    assert sorted(get(["a", "b"], "train", ["uid", "extra_fields"]).keys()) == ["extra_fields", "uid"]


def test_an_error_of_the_judge_is_the_readers_and_ends_the_riding():
    def judge(stored):
        raise ContractError("row 1")

    with pytest.raises(ContractError, match="row 1"), reading(["extra_fields"], judge):
        get(["a", "b"], "train", ["uid"])
    assert sorted(get(["a", "b"], "train", ["uid"]).keys()) == ["uid"]


def test_a_stage_that_reads_nothing_is_refused():
    refused = pytest.raises(SeamError, match=r"expected it to read its rows .* found no such read")
    with refused, reading(["extra_fields"], print):
        pass


def test_a_write_carries_the_marks_and_what_the_writer_holds_stays_as_it_is():
    written = []
    put = wrap_put(lambda keys, partition_id, fields, tags: written.append((fields, tags)))
    fields = TensorDict({"advantages": torch.zeros(2)}, 2)
    with marking(torch.tensor([0, 1])):
        put(keys=["a", "b"], partition_id="train", fields=fields)
    with marking(None):
        put(keys=["a", "b"], partition_id="train", fields=fields)
    put(["a", "b"], "train", tags=[{}, {}])
    assert written[0][0][EXCLUSION].tolist() == [0, 1]
    assert sorted(written[1][0].keys()) == sorted(fields.keys()) == ["advantages"]
    assert written[2] == (None, [{}, {}])


KEYS = ["u_0_0", "u_1_0"]
SAID = [{"reward_extra_info": {"mask_sample": False}}, {"mask_sample": True, "failure_kind": "session_lost"}]


def rollouts(scores=((0.0, 0.5), (0.25, 0.5)), uids=("u", "u"), extra=SAID, **columns):
    fields = {"rm_scores": torch.tensor(scores), "uid": NonTensorStack(*uids)}
    return TensorDict({**fields, "extra_fields": NonTensorStack(*extra), **columns}, 2)


def sizes(*lengths):
    return [{"response_len": length} for length in lengths]


def test_a_rollout_is_stored_with_its_verdict_and_its_reward_in_its_tag():
    stored, tags = [], sizes(2, 2)

    async def store(keys, partition_id, fields, tags, data_parser=None):
        stored.append((keys, partition_id, tags, data_parser))

    put = wrap_async_put(store)
    asyncio.run(put(keys=KEYS, partition_id="train", fields=rollouts(), tags=tags, data_parser=print))
    masked = [0.75, True, True, False, "session_lost"]
    told = [{"response_len": 2, "samplemask": 0.5}, {"response_len": 2, "samplemask": masked}]
    assert stored == [(KEYS, "train", told, print)]
    assert tags == sizes(2, 2)  # the writer's own
    wrap_put(lambda *put: stored.append(put))(KEYS, "train", rollouts(), tags)
    assert stored[1][3] == told


def test_a_write_without_verdicts_keeps_its_tags():
    assert tagged(KEYS, None, [{"status": "running"}]) == [{"status": "running"}]
    assert tagged(KEYS, TensorDict({"advantages": torch.zeros(2)}, 2), None) is None


@pytest.mark.parametrize(
    ("fields", "tags"),
    [
        (rollouts().exclude("rm_scores"), sizes(2, 2)),  # a reward model will say
        (rollouts(mask_sample=torch.zeros(2)), sizes(2, 2)),  # another place speaks
        (rollouts(uids=("other", "other")), sizes(2, 2)),  # verl groups by the field, not by the key
        (rollouts(), sizes(3, 3)),  # response_len is not that of the scores
        (rollouts(), [{}, {}]),
        (rollouts(), None),
        (rollouts().exclude("uid"), sizes(2, 2)),
        (rollouts(uid=NonTensorData("u", [2])), sizes(2, 2)),  # one value for all rows
        (rollouts(extra_fields=NonTensorStack("a", "b")), sizes(2, 2)),
        (rollouts(rm_scores=torch.ones(2)), sizes(1, 1)),
        (rollouts(rm_scores=NonTensorStack([1.0], [1.0])), sizes(1, 1)),
        (rollouts(rm_scores=torch.ones(2, 2, requires_grad=True)), sizes(2, 2)),
        (rollouts(extra_fields=TensorDict({"mask_sample": torch.ones(2)}, 2)), sizes(2, 2)),
    ],
)
def test_what_the_trainer_could_not_rely_on_overwrites_an_older_tag_with_nothing(fields, tags):
    assert [tag["samplemask"] for tag in tagged(KEYS, fields, tags)] == [None, None]


def test_a_row_that_cannot_be_told_leaves_the_others_tags_alone():
    fields = rollouts(extra=[{"mask_sample": "maybe"}, SAID[1]])
    assert [type(tag["samplemask"]) for tag in tagged(KEYS, fields, sizes(2, 2))] == [type(None), list]
    no_session, told = tagged(["u_0", "u_1_0"], rollouts(), sizes(2, 2))
    assert (no_session["samplemask"], type(told["samplemask"])) == (None, list)


def test_rewards_are_the_sums_of_token_scores_nested_or_not():
    scores = [torch.tensor([0.1, 0.2]), torch.tensor([float("nan"), 1.0])]
    for layout in (torch.stack(scores), torch.nested.as_nested_tensor(scores, layout=torch.jagged)):
        rewards, tokens = rewards_of(layout)
        tenth, fifth = 0.10000000149011612, 0.20000000298023224  # the doubles of those 32-bit scores
        assert rewards[0] == tenth + fifth
        assert math.isnan(rewards[1])
        assert (rewards.dtype, tokens.tolist()) == (float, [2, 2])


def test_a_reward_has_the_same_bits_whatever_it_is_stored_with():
    scores = torch.rand(4, 999, generator=torch.Generator().manual_seed(0))
    alone = [rewards_of(row.unsqueeze(0))[0][0] for row in scores]
    longer = torch.nested.as_nested_tensor([torch.ones(7), *scores], layout=torch.jagged)
    assert rewards_of(scores)[0].tolist() == alone
    assert rewards_of(longer)[0].tolist() == [7.0, *alone]
