"""What leaves the loss of the verl adapter, as pure tensor functions; real verl runs in integration/verl."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch", reason="torch is not installed in this environment")
import torch

from samplemask import SampleMaskError
from samplemask_verl.loss import (
    EXCLUDED,
    EXCLUDED_BUT_COUNTED,
    EXCLUSION,
    KEPT,
    LEFT_OUT,
    exclusion_column,
    on_kept_rows,
    select_rows,
    wrap_train_batch,
    zero_rows,
)
from samplemask_verl.steps import wrap_v1_update

NAN = float("nan")


def jagged(*rows):
    return torch.nested.as_nested_tensor([torch.tensor(row) for row in rows], layout=torch.jagged)


def lists(nested):
    return [row.tolist() for row in nested.unbind()]


def test_rows_that_do_not_train_are_marked_and_the_hosts_padding_is_not():
    trains = np.array([True, False, False])
    padding = np.array([False, False, True])
    assert exclusion_column(trains, padding, "valid").tolist() == [KEPT, EXCLUDED, KEPT]
    assert exclusion_column(trains, padding, "host").tolist() == [KEPT, EXCLUDED_BUT_COUNTED, KEPT]
    assert exclusion_column(trains, None, "valid").tolist() == [KEPT, EXCLUDED, EXCLUDED]


def test_a_jagged_output_loses_whole_rows_and_keeps_its_gradient():
    first, second = torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([NAN], requires_grad=True)
    output = torch.nested.as_nested_tensor([first, second], layout=torch.jagged)
    kept = select_rows(output, torch.tensor([True, False]), torch.tensor([2, 1]))
    assert lists(kept) == [[1.0, 2.0]]
    (kept.values() * 3).sum().backward()
    assert first.grad.tolist() == [3.0, 3.0]
    assert second.grad.tolist() == [0.0]


def test_flat_and_dense_outputs_lose_the_same_rows_and_other_values_stay():
    kept, lengths = torch.tensor([False, True]), torch.tensor([2, 1])
    assert select_rows(torch.tensor([NAN, NAN, 5.0]), kept, lengths).tolist() == [5.0]
    assert select_rows(torch.tensor([[NAN], [6.0]]), kept, lengths).tolist() == [[6.0]]
    assert select_rows(torch.tensor(7.0), kept, lengths).item() == 7.0
    assert select_rows("text", kept, lengths) == "text"


TOKENS = st.lists(st.floats(width=32), min_size=1, max_size=4)


@settings(deadline=None)
@given(
    st.lists(st.tuples(TOKENS, st.booleans()), min_size=1, max_size=6).filter(
        lambda rows: any(k for _, k in rows)
    )
)
def test_selecting_rows_is_deleting_the_others(rows):
    kept = torch.tensor([keep for _, keep in rows])
    lengths = torch.tensor([len(tokens) for tokens, _ in rows])
    whole = jagged(*(tokens for tokens, _ in rows))
    deleted = jagged(*(tokens for tokens, keep in rows if keep))
    selected = select_rows(whole, kept, lengths)
    assert selected.offsets().tolist() == deleted.offsets().tolist()
    assert torch.equal(selected.values().nan_to_num(), deleted.values().nan_to_num())
    flat = select_rows(whole.values(), kept, lengths)
    assert torch.equal(flat.nan_to_num(), deleted.values().nan_to_num())


def test_masks_become_zero_in_excluded_rows_whatever_their_layout():
    excluded = torch.tensor([True, False])
    mask = jagged([1, 1], [1])
    assert lists(zero_rows(mask, excluded)) == [[0, 0], [1]]
    assert lists(mask) == [[1, 1], [1]]
    padded = torch.nested.to_padded_tensor(zero_rows(mask, excluded), padding=7)
    assert padded.tolist() == [[0, 0], [1, 7]]
    assert zero_rows(torch.ones(2, 3, dtype=torch.long), excluded).tolist() == [[0, 0, 0], [1, 1, 1]]


TOOLS = SimpleNamespace(
    index_select_tensor_dict=lambda data, rows: {
        name: jagged(*(lists(value)[row] for row in rows)) if value.is_nested else value[rows]
        for name, value in data.items()
    },
    get=lambda data, name, default=None: data.get(name, default),
    assign_non_tensor=lambda data, **values: data.update(values),
)


def micro_batch(*marks):
    return {
        EXCLUSION: torch.tensor(marks),
        "input_ids": jagged([1, 1], [1]),
        "advantages": jagged([2.0, 3.0], [NAN]),
        "response_mask": jagged([1, 1], [1]),
    }


def mean_loss(model_output, data):
    log_probs = model_output["log_probs"].values()
    return (log_probs * data["advantages"].values()).mean(), {"rows": len(data[EXCLUSION])}


def output_of(weight):
    values = torch.stack([weight, weight, weight])
    return {"log_probs": torch.nested.nested_tensor_from_jagged(values, offsets=torch.tensor([0, 2, 3]))}


def test_the_hosts_loss_sees_only_the_rows_that_remain():
    weight = torch.tensor(1.0, requires_grad=True)
    loss, metrics = on_kept_rows(TOOLS, mean_loss)(
        model_output=output_of(weight), data=micro_batch(KEPT, EXCLUDED)
    )
    loss.backward()
    assert loss.item() == 2.5
    assert weight.grad.item() == 2.5
    assert metrics == {"rows": 1}


def test_a_micro_batch_without_a_kept_row_gives_a_connected_zero_and_finite_metrics():
    weight = torch.tensor(1.0, requires_grad=True)

    def loss_with_metric(model_output, data):
        loss, _ = mean_loss(model_output, data)
        return loss, {"loss": loss.item(), "tokens": int(data["response_mask"].values().sum())}

    loss, metrics = on_kept_rows(TOOLS, loss_with_metric)(
        model_output=output_of(weight * NAN), data=micro_batch(EXCLUDED, EXCLUDED_BUT_COUNTED)
    )
    assert loss.item() == 0.0
    assert loss.requires_grad
    assert metrics == {"loss": 0.0, "tokens": 0}


def test_without_a_mark_or_without_an_excluded_row_the_hosts_own_call_goes_through():
    seen = []
    wrapped = on_kept_rows(TOOLS, lambda **call: seen.append(call))
    unmarked = {"advantages": jagged([1.0], [1.0])}
    wrapped(model_output={}, data=unmarked)
    healthy = micro_batch(KEPT, KEPT)
    wrapped(model_output={}, data=healthy)
    wrapped(student_logits="logits", data=healthy)
    assert [call["data"] is data for call, data in zip(seen, (unmarked, healthy, healthy), strict=True)] == [
        True
    ] * 3


class Engine:
    """Stands in for a verl engine with one rank; counts its optimizer steps."""

    steps = 0

    def get_data_parallel_group(self):
        return None

    def is_mp_src_rank_with_outputs(self):
        return True

    def train_batch(self, data, loss_function):
        self.steps += 1
        self.data = data
        return {"model_output": {}, "loss": [1.0], "metrics": {"grad_norm": 1.0}}


@pytest.fixture
def engine():
    class Patched(Engine):
        train_batch = wrap_train_batch(SimpleNamespace(get_device_name=lambda: "cpu"), TOOLS)(
            Engine.train_batch
        )

    return Patched()


def mini_batch(*marks, **more):
    return {**micro_batch(*marks), "loss_mask": jagged([1, 1], [1]), "global_batch_size": 2, **more}


@pytest.mark.parametrize(("mark", "rows"), [(EXCLUDED, 1), (EXCLUDED_BUT_COUNTED, 2)])
def test_the_row_count_follows_the_mark_and_the_callers_batch_stays_as_it_was(engine, mark, rows):
    data = mini_batch(KEPT, mark)
    engine.train_batch(data, mean_loss)
    assert engine.data["global_batch_size"] == rows
    assert lists(engine.data["loss_mask"]) == [[1, 1], [0]]
    assert data["global_batch_size"] == 2
    assert lists(data["loss_mask"]) == [[1, 1], [1]]


def test_a_mini_batch_without_a_row_to_train_takes_no_step_and_no_scheduler(engine):
    data = mini_batch(EXCLUDED, EXCLUDED, update_lr_scheduler=True)
    outputs = engine.train_batch(data, mean_loss)
    assert outputs == {"model_output": {}, "loss": [], "metrics": {LEFT_OUT: [2.0]}}
    assert engine.steps == 0
    assert data["update_lr_scheduler"] is False


def test_rows_that_the_host_masked_do_not_train_either(engine):
    data = mini_batch(KEPT, EXCLUDED, loss_mask=jagged([0, 0], [1]))
    engine.train_batch(data, mean_loss)
    assert engine.steps == 0


def test_the_scheduler_moves_once_when_an_earlier_mini_batch_of_the_step_trained(engine):
    engine.train_batch(mini_batch(KEPT, KEPT, update_lr_scheduler=False), mean_loss)
    last = mini_batch(EXCLUDED, EXCLUDED, update_lr_scheduler=True)
    engine.train_batch(last, mean_loss)
    assert last["update_lr_scheduler"] is True
    next_step = mini_batch(EXCLUDED, EXCLUDED, update_lr_scheduler=True)
    engine.train_batch(next_step, mean_loss)
    assert next_step["update_lr_scheduler"] is False


def test_the_trainer_stops_when_the_training_processes_send_no_receipt():
    def _update_actor(self, batch, metrics):
        metrics.update(self.reported)
        return batch

    update = wrap_v1_update(_update_actor)
    batch = SimpleNamespace(fields=["advantages", EXCLUSION])
    update(SimpleNamespace(reported={f"actor/{LEFT_OUT}": 1.0}), batch, {})
    update(SimpleNamespace(reported={}), SimpleNamespace(fields=["advantages"]), {})
    with pytest.raises(SampleMaskError, match=r"the actor's training processes.*found no such report"):
        update(SimpleNamespace(reported={f"critic/{LEFT_OUT}": 1.0}), batch, {})
