"""What rides along with the reads and writes of verl's V1 trainer and of its rollouts."""

import asyncio
import math
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("tensordict", reason="tensordict is not installed here")
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import NonTensorData, NonTensorStack, TensorDict

from samplemask import ContractError, RowPlan, SeamError
from samplemask_verl.loss import EXCLUSION
from samplemask_verl.stage_queue import (
    AllRows,
    reading,
    rewards_of,
    tagged,
    wrap_async_put,
    wrap_get,
    wrap_put,
    writing,
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


def test_a_reader_may_try_again():
    tries = []

    def fails_once(keys, partition_id, select_fields):
        tries.append(select_fields)
        if len(tries) == 1:
            raise ValueError("routed_experts")
        return read(keys, partition_id, select_fields)

    seen, get = [], wrap_get(fails_once)
    with reading(["extra_fields"], seen.append):
        with pytest.raises(ValueError, match="routed_experts"):
            get(["a", "b"], "train", ["uid", "routed_experts"])
        get(["a", "b"], "train", ["uid"])
        get(["a", "b"], "train", ["values"])
    assert [sorted(stored.keys()) for stored in seen] == [["extra_fields", "uid"]]
    assert tries == [["uid", "routed_experts", "extra_fields"], ["uid", "extra_fields"], ["values"]]


def test_what_was_read_already_is_not_read_again():
    ready, seen = TensorDict({"uid": torch.tensor([5])}, 1), []
    with reading((), seen.append, ready):
        assert wrap_get(None)(["a"], "train", ["uid"]) is ready
        assert sorted(get(["a", "b"], "train", ["values"]).keys()) == ["values"]
    assert seen == [ready]


def jagged(*rows):
    return torch.nested.as_nested_tensor([torch.tensor(row) for row in rows], layout=torch.jagged)


def rows_of(votes, trains, tokens):
    votes_B, trains_B = np.array(votes, dtype=bool), np.array(trains, dtype=bool)
    keys = [f"k{row}" for row in range(len(votes))]
    marks_B = torch.from_numpy(1 - trains_B.astype(np.int64))
    return AllRows(keys, RowPlan(trains_B, votes_B, ~votes_B), np.array(tokens), marks_B)


# Silent rows: the first, two neighbours, the last; k2 votes and does not train.
SOME = rows_of(votes=[0, 1, 1, 0, 1, 0], trains=[0, 1, 0, 0, 1, 0], tokens=[2, 1, 3, 1, 2, 1])
GIVEN = jagged([1.0], [2.0, 2.0, 2.0], [3.0, 4.0])


def test_the_write_of_the_rows_that_vote_writes_all_rows_and_their_marks():
    written = []
    put = wrap_put(lambda keys, partition_id, fields, tags: written.append((keys, fields, tags)))
    fields = TensorDict({"advantages": GIVEN, "response_mask": GIVEN.long()}, 3)
    other = TensorDict({"advantages": torch.zeros(1)}, 1)
    with writing(SOME):
        put(["k1", "k4"], "train", other)
        put(["k1", "k2", "k4"], "train", fields, [{}, {}, {}])
        put(keys=["k1", "k2", "k4"], partition_id="train", fields=fields)
        put(["k1", "k2", "k4"], "train", fields)
    assert written[0] == (["k1", "k4"], other, None)
    assert written[1] == (["k1", "k2", "k4"], fields, [{}, {}, {}])
    keys, whole, tags = written[2]
    assert (keys, tags, whole.batch_size) == (SOME.keys, None, (6,))
    expected = [[0, 0], [1], [0, 0, 0], [0], [3, 4], [0]]
    for name, dtype in (("advantages", torch.float32), ("response_mask", torch.int64)):
        assert [row.tolist() for row in whole[name].unbind()] == expected
        assert whole[name].dtype == dtype
    assert whole["advantages"].to_padded_tensor(9.0)[1].tolist() == [1, 9, 9]
    assert whole[EXCLUSION].tolist() == [1, 0, 1, 1, 0, 1]
    assert written[3][1] is fields  # the first write only
    assert sorted(fields.keys()) == ["advantages", "response_mask"]


def test_rows_have_the_lengths_that_verl_gave_them():
    told = rows_of(votes=[1, 0, 1], trains=[1, 0, 1], tokens=[9, 2, 9])
    whole = told.of(TensorDict({"returns": jagged([1.0], [2.0, 3.0])}, 2))
    assert [row.tolist() for row in whole["returns"].unbind()] == [[1], [0, 0], [2, 3]]
    assert told.tokens_B.tolist() == [9, 2, 9]


def test_rows_of_which_none_is_excluded_carry_no_marks():
    padded = replace(rows_of(votes=[1, 0], trains=[1, 0], tokens=[1, 2]), marks_B=torch.zeros(2, dtype=int))
    whole = padded.of(TensorDict({"returns": jagged([1.0])}, 1))
    assert [row.tolist() for row in whole["returns"].unbind()] == [[1], [0, 0]]
    assert EXCLUSION not in whole


ROW = st.tuples(st.booleans(), st.booleans(), st.integers(0, 3))  # votes, trains, tokens


@given(st.lists(ROW, min_size=1).filter(lambda rows: any(votes for votes, _, _ in rows)))
def test_each_row_is_verls_or_zeros(said):
    votes, trains, tokens = zip(*said, strict=True)
    trains = np.logical_and(votes, trains)
    given_rows = [[row + 1.0] * length for row, length in enumerate(tokens) if votes[row]]
    whole = rows_of(votes, trains, tokens).of(TensorDict({"returns": jagged(*given_rows)}, sum(votes)))
    expected = [
        [(row + 1.0) * trained] * length
        for row, (trained, length) in enumerate(zip(trains, tokens, strict=True))
    ]
    assert [row.tolist() for row in whole["returns"].unbind()] == expected


def test_a_stage_that_writes_nothing_is_refused():
    refused = pytest.raises(SeamError, match=r"expected it to write its rows .* found no such write")
    with refused, writing(SOME):
        wrap_put(lambda *put: None)(["k1", "k4"], "train", TensorDict({"advantages": torch.zeros(2)}, 2))


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
