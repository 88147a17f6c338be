"""Rewards, tensors, and the words of every refusal."""

import math

import numpy as np
import pytest

from samplemask import ContractError, Verdict, read_verdict


def test_a_zero_dimensional_array_that_holds_itself_is_refused():
    loop = np.array(None, dtype=object)
    loop[()] = loop
    with pytest.raises(ContractError, match=r"^mask_sample"):
        read_verdict({"reward": 1, "mask_sample": loop})
    with pytest.raises(ContractError, match=r"^reward"):
        read_verdict({"reward": loop})


def test_torch_tensors_of_no_dimension_are_flags_and_rewards():
    torch = pytest.importorskip("torch")
    verdict = read_verdict({"reward": torch.tensor(0.5), "mask_sample": torch.tensor(True)})
    assert verdict == Verdict(0.5, True, None, None, ("mask_sample",), False)
    with pytest.raises(ContractError, match=r"^mask_sample"):
        read_verdict({"reward": 1, "mask_sample": torch.tensor([True])})
    with pytest.raises(ContractError, match=r"^mask_sample"):
        read_verdict({"reward": 1, "mask_sample": torch.tensor(1, device="meta")})


@pytest.mark.parametrize(
    ("value", "reward"),
    [
        (1, 1.0),
        (-3, -3.0),
        (0, 0.0),
        (True, 1.0),
        (False, 0.0),
        ("0.5", 0.5),
        (" 1e2 ", 100.0),
        (np.float32(0.5), 0.5),
        (np.int8(-2), -2.0),
        (np.bool_(True), 1.0),
        (np.array(0.25), 0.25),
        (np.array("0.75"), 0.75),
        (np.longdouble(2), 2.0),
        (1e308, 1e308),
        (5e-324, 5e-324),
    ],
)
def test_every_number_is_a_reward(value, reward):
    verdict = read_verdict({"reward": value})
    assert verdict == Verdict(reward, False)
    assert type(verdict.reward) is float


@pytest.mark.parametrize("response", [{}, {"reward": None}, {"reward": np.array(None)}])
def test_a_missing_reward_masks_and_never_becomes_zero(response):
    verdict = read_verdict(response)
    assert verdict == Verdict(None, True, "samplemask:reward_missing", None, ("reward",), False)


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        -math.inf,
        "nan",
        "-inf",
        "1e400",
        10**400,
        -(10**400),
        np.float32("nan"),
        np.array(math.inf),
        np.float64("-inf"),
    ],
    ids=lambda value: f"{type(value).__name__}",
)
def test_a_reward_that_is_not_finite_masks(value):
    verdict = read_verdict({"reward": value, "mask_sample": False})
    assert verdict == Verdict(None, True, "samplemask:reward_not_finite", None, ("reward",), False)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "abc",
        "1,5",
        "1_0",
        np.array("1_0"),
        [],
        [1.0],
        {},
        {"total": 1},
        object(),
        b"1",
        1j,
        np.array([1.0]),
        np.complex64(1 + 1j),
        np.timedelta64(1, "s"),
        np.datetime64(1, "ns"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_reward_that_is_no_number_is_refused_on_an_unmasked_row(value):
    with pytest.raises(
        ContractError, match=r"^reward: expected a number or null, found .* Return one number"
    ):
        read_verdict({"reward": value})


@pytest.mark.parametrize("value", ["", "abc", [1.0], {}, math.nan, None, 10**400, np.complex64(1j)])
def test_the_reward_of_a_masked_row_may_be_anything(value):
    verdict = read_verdict({"reward": value, "mask_sample": True, "failure_kind": "verifier_error"})
    assert verdict == Verdict(None, True, "verifier_error", None, ("mask_sample",), False)


def test_a_masked_row_keeps_its_finite_reward():
    assert read_verdict({"reward": 9, "mask_sample": True}).reward == 9.0


def test_a_missing_reward_with_an_environment_kind_says_what_the_environment_said():
    verdict = read_verdict({"failure_kind": "judge_failed"})
    assert verdict.failure_kind == "samplemask:reward_missing"
    assert verdict.failure_reason == "the environment said failure_kind='judge_failed'"
    kept = read_verdict({"failure_kind": "judge_failed", "failure_reason": "HTTP 500"})
    assert kept.failure_reason == "HTTP 500"


class Tensor:
    """Like a torch tensor of no dimension: its dtype has no kind."""

    ndim, dtype = 0, object()

    def __init__(self, value):
        self.value = value

    def item(self):
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


def test_a_zero_dimensional_tensor_is_read_through_its_item():
    verdict = read_verdict({"reward": Tensor(0.5), "mask_sample": Tensor(True)})
    assert verdict == Verdict(0.5, True, None, None, ("mask_sample",), False)


def test_a_tensor_that_cannot_say_what_it_holds_is_refused():
    with pytest.raises(ContractError, match=r"^mask_sample"):
        read_verdict({"reward": 1, "mask_sample": Tensor(RuntimeError("meta tensor"))})
    with pytest.raises(ContractError, match=r"^reward"):
        read_verdict({"reward": Tensor(Tensor(1.0))})


def test_an_object_that_has_a_dimension_but_no_item_is_refused():
    class Shape:
        ndim = 0

    class NoType:
        ndim = 0

        def item(self):
            return True

    with pytest.raises(ContractError, match=r"^mask_sample"):
        read_verdict({"reward": 1, "mask_sample": Shape()})
    assert read_verdict({"reward": 1, "mask_sample": NoType()}).mask_sample is True


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (
            {"reward": "x"},
            "reward: expected a number or null, found 'x' (str). "
            "Return one number, or mask_sample=True if there is none.",
        ),
        (
            {"reward": 1, "instance_config": 3},
            "instance_config: expected an object or null, found 3 (int). "
            "Send it as an object, or leave it out.",
        ),
        (
            {"reward": 1, "failure_kind": 3},
            "failure_kind: expected a string or null, found 3 (int). Send text, or leave it out.",
        ),
        (
            3,
            "verify response: expected a mapping, a pydantic model or one JSON object, found 3 (int). "
            "Pass the response body.",
        ),
        ("[]", "verify response: expected one JSON object, found [] (list). Pass one response at a time."),
    ],
)
def test_every_refusal_says_where_expected_found_and_what_to_do(response, message):
    with pytest.raises(ContractError) as error:
        read_verdict(response)
    assert str(error.value) == message
