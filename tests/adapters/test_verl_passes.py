"""Which rows pass through the model, with a stand-in engine; the real one runs in integration/verl."""

from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="torch is not installed in this environment")
import torch

from samplemask_verl.passes import rows_to_pass, tell_computed_tokens

TOOLS = SimpleNamespace(get=lambda data, name, default=None: data.get(name, default))
LENGTHS = [3, 9, 5, 7, 2, 8]


class FSDPEngine:
    """Has the name of verl's engine and one rank."""

    def get_data_parallel_group(self):
        return None


class Subclass(FSDPEngine):
    pass


class MegatronEngine(FSDPEngine.__base__):
    get_data_parallel_group = FSDPEngine.get_data_parallel_group


def mini_batch(**more):
    rows = torch.nested.as_nested_tensor([torch.zeros(n) for n in LENGTHS], layout=torch.jagged)
    return {"input_ids": rows, "use_dynamic_bsz": False, "micro_batch_size_per_gpu": 2, **more}


def chosen(kept, engine=None, **more):
    flags = [row in kept for row in range(len(LENGTHS))]
    return rows_to_pass(engine or FSDPEngine(), TOOLS, mini_batch(**more), flags, "cpu")


def test_kept_rows_pass_in_their_order():
    assert chosen({4, 1}) == [1, 4]
    assert chosen({5, 0, 2, 3}, engine=Subclass()) == [0, 2, 3, 5]


def test_the_shortest_excluded_rows_fill_up_a_micro_batch():
    assert chosen({1}) == [1, 4]
    assert chosen({1, 3, 4}) == [0, 1, 3, 4]
    assert chosen({0, 1}, micro_batch_size_per_gpu=3) == [0, 1, 4]
    assert chosen({0, 1, 2, 3}, micro_batch_size_per_gpu=3) is None


def test_micro_batches_made_by_size_need_no_filling():
    assert chosen({1}, use_dynamic_bsz=True) == [1]
    by_default = mini_batch()
    del by_default["use_dynamic_bsz"], by_default["micro_batch_size_per_gpu"]
    flags = [row in (1, 3, 5) for row in range(len(LENGTHS))]
    assert rows_to_pass(FSDPEngine(), TOOLS, by_default, flags, "cpu") == [1, 3, 5]


@pytest.mark.parametrize(
    "more",
    [{"engine": MegatronEngine()}, {"force_group_size": 2}, {"return_model_output": True}],
    ids=["another engine", "rows that belong together", "outputs are wanted"],
)
def test_all_rows_pass_where_fewer_could_break_the_engine(more):
    assert chosen({1}, **more) is None


def test_all_rows_pass_when_none_is_excluded():
    assert chosen(set(range(6))) is None
    assert chosen({0, 1, 2, 3, 4}, use_dynamic_bsz=True) == [0, 1, 2, 3, 4]


def test_the_workers_own_list_of_tokens_holds_what_was_computed():
    counted = list(LENGTHS)
    data = mini_batch(global_token_num=counted)
    tell_computed_tokens(FSDPEngine(), TOOLS, data, [1, 4])
    assert counted == [9, 2]
    tell_computed_tokens(FSDPEngine(), TOOLS, data, [])
    assert counted == []
    data["global_token_num"] = None
    tell_computed_tokens(FSDPEngine(), TOOLS, data, [1])
    assert data["global_token_num"] is None
