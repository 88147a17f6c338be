"""What rides along with the reads and writes of verl's V1 advantage stage."""

import pytest

pytest.importorskip("tensordict", reason="tensordict is not installed here")
import torch
from tensordict import TensorDict

from samplemask import ContractError, SeamError
from samplemask_verl.loss import EXCLUSION
from samplemask_verl.stage_queue import marking, reading, wrap_get, wrap_put

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
    put = wrap_put(lambda keys, partition_id, fields=None, **others: written.append((fields, others)))
    fields = TensorDict({"advantages": torch.zeros(2)}, 2)
    with marking(torch.tensor([0, 1])):
        put(keys=["a", "b"], partition_id="train", fields=fields)
    with marking(None):
        put(keys=["a", "b"], partition_id="train", fields=fields)
    put(["a", "b"], "train", tags=[{}, {}])
    assert written[0][0][EXCLUSION].tolist() == [0, 1]
    assert sorted(written[1][0].keys()) == sorted(fields.keys()) == ["advantages"]
    assert written[2] == (None, {"tags": [{}, {}]})
