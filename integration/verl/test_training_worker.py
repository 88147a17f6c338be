"""Real FSDP2 training worker: excluded rows move no gradient, no weight and no optimizer state."""

import math
from dataclasses import replace

import pytest

pytest.importorskip("verl", reason="verl is not installed in this environment")
import torch
from cpu_bed.assets import build_assets
from cpu_bed.step import LOSS_MODES, Row, Step
from cpu_bed.workers import Workers

EXCLUDED, COUNTED = 1, 2
KEPT_ROWS, MASKED_ROWS = (0, 3, 4, 7), (1, 2, 5, 6)
TRASH = (float("nan"), float("inf"), -float("inf"), 1e6)
POLICY_LOSSES = [
    *("vanilla", "dppo_tv", "dppo_kl", "gspo", "sapo", "gpg"),
    *("clip_cov", "kl_cov", "geo_mean", "dro", "cispo"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("assets")
    build_assets(folder)
    return folder / "model"


@pytest.fixture(scope="module")
def alone(model):
    workers = Workers(model, ranks=1)
    yield workers
    workers.close()


@pytest.fixture(scope="module")
def pair(model):
    workers = Workers(model, ranks=2)
    yield workers
    workers.close()


def rows(mark=EXCLUDED, masked=MASKED_ROWS):
    """Eight rows of different lengths; the masked ones hold trash in every number and long responses."""
    random = torch.Generator().manual_seed(1)

    def draw(count, low, high):
        return (torch.rand(count, generator=random) * (high - low) + low).tolist()

    made = []
    for index, (prompt, length) in enumerate(
        zip((5, 4, 6, 5, 4, 7, 5, 6), (6, 3, 8, 5, 4, 7, 2, 6), strict=True)
    ):
        numbers = {
            "old_log_probs": draw(length, -6.0, -5.0),
            "ref_log_prob": draw(length, -6.0, -5.0),
            "advantages": draw(1, -2.0, 2.0) * length,
            "returns": draw(length, -1.0, 1.0),
            "values": draw(length, -1.0, 1.0),
        }
        row = Row(
            [int(token) for token in draw(prompt, 0, 250)],
            [int(token) for token in draw(length, 0, 250)],
            numbers,
        )
        if index in masked:
            row.response = row.response + [7] * 9
            row.numbers = {name: [TRASH[index % 4]] * (length + 9) for name in numbers}
            row.mark = mark
        made.append(row)
    return made


def kept(made, indices=KEPT_ROWS):
    return [made[index] for index in indices]


def actor_step(mode, scale, row_count, micro_batch, **more):
    loss = {
        "loss_agg_mode": mode,
        "loss_scale_factor": scale,
        "use_kl_loss": True,
        "kl_loss_coef": 0.3,
        "entropy_coeff": 0.05,
    }
    return Step("actor", row_count, micro_batch, loss=loss, **more)


def critic_step(mode, row_count, micro_batch, **more):
    return Step("critic", row_count, micro_batch, loss={"loss_agg_mode": mode}, **more)


def distance(one, other):
    """Largest difference, relative to the largest number of the reference."""
    assert one.keys() == other.keys()
    scale = max(float(tensor.abs().max()) for tensor in other.values())
    return max(float((one[name] - other[name]).abs().max()) for name in other) / scale


def assert_same(outcome, deleted):
    assert distance(outcome.gradients, deleted.gradients) <= 1e-6
    assert distance(outcome.weights, deleted.weights) <= 1e-6


def numbers_of(metrics):
    return [number for values in metrics.values() for number in values]


@pytest.mark.parametrize("every_row_passes", [False, True])
@pytest.mark.parametrize(("mode", "scale"), LOSS_MODES)
def test_excluded_rows_leave_gradients_and_weights_as_if_deleted(alone, mode, scale, every_row_passes):
    made = rows()
    # Micro batches of four with two excluded rows each, against micro batches of the two others.
    step = actor_step(mode, scale, row_count=8, micro_batch=4, return_outputs=every_row_passes)
    outcome = alone.train([made], step)
    assert len(outcome.passes) == (2 if every_row_passes else 1)
    deleted = alone.train([kept(made)], actor_step(mode, scale, row_count=4, micro_batch=2))
    assert_same(outcome, deleted)


@pytest.mark.parametrize("every_row_passes", [False, True])
@pytest.mark.parametrize(("mode", "scale"), LOSS_MODES)
def test_on_two_ranks_too(alone, pair, mode, scale, every_row_passes):
    made = rows()
    micro_batch = 4 if every_row_passes else 2  # two of them train
    step = actor_step(mode, scale, row_count=8, micro_batch=micro_batch, return_outputs=every_row_passes)
    outcome = pair.train([made[:4], made[4:]], step)
    deleted = pair.train([kept(made, (0, 3)), kept(made, (4, 7))], actor_step(mode, scale, 4, micro_batch=2))
    assert_same(outcome, deleted)


@pytest.mark.parametrize("every_row_passes", [False, True])
@pytest.mark.parametrize(("mode", "scale"), LOSS_MODES)
def test_a_rank_that_holds_only_excluded_rows_joins_in_and_adds_nothing(
    alone, pair, mode, scale, every_row_passes
):
    made = rows(masked=(4, 5, 6, 7))
    step = actor_step(mode, scale, row_count=8, micro_batch=4, return_outputs=every_row_passes)
    outcome = pair.train([made[:4], made[4:]], step)
    deleted = alone.train([made[:4]], actor_step(mode, scale, row_count=4, micro_batch=4))
    assert_same(outcome, deleted)
    assert all(math.isfinite(number) for number in numbers_of(outcome.metrics))


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
def test_micro_batches_made_by_size_too(alone, pair, mode):
    made = rows()
    deleted = alone.train([kept(made)], actor_step(mode, None, row_count=4, micro_batch=4))
    step = actor_step(mode, None, row_count=8, micro_batch=4, dynamic_tokens=40)
    assert_same(alone.train([made], step), deleted)
    assert_same(pair.train([made[:4], made[4:]], step), deleted)


@pytest.mark.parametrize("policy_loss", POLICY_LOSSES)
def test_every_policy_loss_of_verl(alone, policy_loss):
    made = rows()
    step = actor_step(
        "seq-mean-token-mean", None, 8, micro_batch=8, policy_loss=policy_loss, return_outputs=True
    )
    outcome = alone.train([made], step)
    assert_same(outcome, alone.train([kept(made)], replace(step, row_count=4, micro_batch=4)))
    assert all(math.isfinite(number) for number in numbers_of(outcome.metrics))


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
def test_the_critic_too(alone, pair, mode):
    made = rows()
    deleted = alone.train([kept(made)], critic_step(mode, row_count=4, micro_batch=2))
    assert_same(alone.train([made], critic_step(mode, row_count=8, micro_batch=4)), deleted)
    assert_same(pair.train([made[:4], made[4:]], critic_step(mode, row_count=8, micro_batch=4)), deleted)


def test_the_loss_has_a_kl_term_and_an_entropy_term_that_are_not_zero(alone):
    metrics = alone.train([rows()], actor_step("token-mean", None, 8, 4)).metrics
    assert abs(metrics["kl_loss"][0]) > 0.01
    assert abs(metrics["actor/entropy_loss"][0]) > 1


@pytest.mark.parametrize("role", ["actor", "critic"])
def test_what_excluded_rows_hold_moves_nothing_bit_for_bit(alone, role):
    step = (
        actor_step("seq-mean-token-mean", None, 8, 4) if role == "actor" else critic_step("token-mean", 8, 4)
    )
    made, other = rows(), rows()
    for index in MASKED_ROWS:
        other[index].response = [(token + 17) % 250 for token in other[index].response]
        other[index].numbers = {name: [0.5] * len(values) for name, values in other[index].numbers.items()}
    one, two = alone.train([made], step), alone.train([other], step)
    assert distance(one.gradients, two.gradients) == 0
    assert distance(one.weights, two.weights) == 0


@pytest.mark.parametrize(("ranks", "role"), [(1, "actor"), (1, "critic"), (2, "actor"), (2, "critic")])
def test_a_step_without_a_row_to_train_leaves_no_trace(request, ranks, role):
    workers = request.getfixturevalue("alone" if ranks == 1 else "pair")
    step = actor_step("token-mean", None, 8, 4) if role == "actor" else critic_step("token-mean", 8, 4)
    before = workers.train([rows()[: 8 // ranks]] * ranks, step)
    masked = rows(masked=range(8))
    outcome = workers.train([masked[: 8 // ranks]] * ranks, replace(step, reset=False))
    assert outcome.gradients == {}
    assert outcome.learning_rate_steps == 0
    assert distance(outcome.weights, before.weights) == 0
    assert distance(outcome.optimizer, before.optimizer) == 0
    assert outcome.metrics["mfu"] == [0.0]  # verl's trainers need this key
    assert all(math.isfinite(number) for number in numbers_of(outcome.metrics))


def test_a_skipped_last_mini_batch_still_advances_the_learning_rate_once(alone):
    made = rows(masked=(4, 5, 6, 7))
    outcome = alone.train([made], actor_step("token-mean", None, 4, 4, mini_batch=4))
    deleted = alone.train([made[:4]], actor_step("token-mean", None, 4, 4))
    assert outcome.learning_rate_steps == deleted.learning_rate_steps == 1
    assert distance(outcome.weights, deleted.weights) == 0
    assert distance(outcome.optimizer, deleted.optimizer) == 0


def test_with_denominator_host_the_row_count_of_verl_stays(alone):
    made, host = rows(), rows(mark=COUNTED)
    valid = alone.train([made], actor_step("seq-mean-token-mean", None, 8, 4)).gradients
    halved = alone.train([host], actor_step("seq-mean-token-mean", None, 8, 4)).gradients
    assert distance({name: 2 * value for name, value in halved.items()}, valid) <= 1e-6
    same = alone.train([host], actor_step("token-mean", None, 8, 4)).gradients
    assert distance(same, alone.train([made], actor_step("token-mean", None, 8, 4)).gradients) == 0


def test_rows_that_verl_itself_masked_keep_their_place_in_the_denominator(alone):
    made = rows(masked=())
    for index in MASKED_ROWS:
        made[index].mask = [0] * len(made[index].response)
    step = actor_step("seq-mean-token-sum", None, 8, 4)
    stock = actor_step("seq-mean-token-sum", None, 8, 4, marked=False)
    assert distance(alone.train([made], step).gradients, alone.train([made], stock).gradients) == 0


def length(row):
    return len(row.prompt) + len(row.response)


def test_excluded_rows_do_not_pass_through_the_model(alone):
    made = rows()
    outcome = alone.train([made], actor_step("token-mean", None, row_count=8, micro_batch=2))
    assert outcome.passes == [[length(made[0]), length(made[3])], [length(made[4]), length(made[7])]]
    assert outcome.counted == [[length(row) for row in kept(made)]]
    stock = alone.train([made], actor_step("token-mean", None, 8, micro_batch=2, marked=False))
    assert len(stock.passes) == 4
    assert stock.counted == [[length(row) for row in made]]


def test_the_shortest_excluded_row_fills_a_micro_batch_up(alone):
    made = rows(masked=(1, 2, 4, 5, 6))
    outcome = alone.train([made], actor_step("token-mean", None, row_count=8, micro_batch=2))
    assert [length(made[index]) for index in (1, 2, 4, 5, 6)] == [16, 23, 17, 23, 16]
    assert outcome.passes == [[length(made[0]), 16], [length(made[3]), length(made[7])]]
    assert_same(outcome, alone.train([kept(made, (0, 3, 7))], actor_step("token-mean", None, 3, 3)))


def test_ranks_keep_as_many_rows_as_the_fullest_of_them(alone, pair):
    made = rows(masked=(0, 1, 2, 6))
    step = actor_step("seq-mean-token-mean", None, row_count=8, micro_batch=1)
    outcome = pair.train([made[:4], made[4:]], step)
    fillers = sorted(made[:3], key=length)[:2]
    first = [row for row in made[:4] if row is made[3] or row in fillers]
    assert outcome.passes == [[length(row)] for row in first]
    assert outcome.counted == [[length(row) for row in (*first, made[4], made[5], made[7])]]
    assert_same(outcome, alone.train([kept(made, (3, 4, 5, 7))], replace(step, row_count=4, micro_batch=4)))


def test_a_skipped_mini_batch_counts_no_token(alone):
    made = rows(masked=(4, 5, 6, 7))
    outcome = alone.train([made], actor_step("token-mean", None, 4, 4, mini_batch=4))
    assert outcome.counted == [[length(row) for row in made[:4]], []]
