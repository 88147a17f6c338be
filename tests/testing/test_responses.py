"""What an environment may return, and what a trainer could misread."""

from typing import Any

import pytest
from pydantic import BaseModel, Field

from samplemask import Verdict
from samplemask.testing import ConformanceError, check_response


class Response(BaseModel):
    reward: float
    mask_sample: bool = False
    failure_kind: str | None = None
    failure_class: str | None = Field(None, alias="_ng_failure_class")


@pytest.mark.parametrize(
    ("response", "verdict"),
    [
        ({"reward": 1.0}, Verdict(1.0, False)),
        ({"reward": 0, "mask_sample": False}, Verdict(0.0, False)),
        (Response(reward=0.5), Verdict(0.5, False)),
        ('{"reward": 1}', Verdict(1.0, False)),
        (b'{"reward": 1}', Verdict(1.0, False)),
        (
            Response(reward=0, mask_sample=True, failure_kind="session_lost"),
            Verdict(0.0, True, "session_lost", None, ("mask_sample",)),
        ),
        (
            {"reward": 0, "mask_sample": True, "failure_kind": "swe:container_gone"},
            Verdict(0.0, True, "swe:container_gone", None, ("mask_sample",)),
        ),
        (
            {"reward": 0, "_ng_failure_class": "judge_failed"},
            Verdict(0.0, True, "judge_failed", None, ("_ng_failure_class",)),
        ),
        (
            Response(reward=0, _ng_failure_class="judge_failed"),
            Verdict(0.0, True, "judge_failed", None, ("_ng_failure_class",)),
        ),
    ],
)
def test_a_sound_response_gives_its_verdict(response, verdict):
    assert check_response(response) == verdict


@pytest.mark.parametrize(
    ("response", "words"),
    [
        ({"reward": 1, "mask_sample": "maybe"}, "the response cannot be read: mask_sample: expected a bool"),
        ({"reward": None}, r"no finite reward \(samplemask:reward_missing\)"),
        ({}, "no finite reward"),
        ({"reward": float("nan")}, r"no finite reward \(samplemask:reward_not_finite\)"),
        ({"reward": 0, "mask_sample": True}, "masks without a failure_kind"),
        ({"reward": 0, "mask_sample": True, "failure_kind": "oops"}, "'oops' is not in the vocabulary"),
        ({"reward": 1, "failure_kind": "oops"}, "'oops' is not in the vocabulary"),
        (
            {"reward": 0, "instance_config": {"mask_sample": True}, "failure_kind": "session_lost"},
            "masks only under instance_config",
        ),
        (
            {"reward": 0, "mask_sample": False, "instance_config": {"mask_sample": True}},
            "mask_sample and instance_config.mask_sample disagree",
        ),
        ({"reward": 1, "trace": object()}, r"sent as JSON it reads as nothing \(Object of type object"),
    ],
)
def test_a_response_that_could_be_misread_is_refused(response, words):
    with pytest.raises(ConformanceError, match=words):
        check_response(response)


def test_every_problem_is_told():
    with pytest.raises(ConformanceError) as error:
        check_response({"reward": 0, "instance_config": {"mask_sample": True}})
    assert str(error.value).splitlines()[0].startswith("the verify response reads as Verdict(reward=0.0")
    assert len(str(error.value).splitlines()) == 3


def test_a_default_that_json_would_state_is_no_difference():
    class Nested(BaseModel):
        reward: float
        mask_sample: bool = False
        extra: Any = None

    assert check_response(Nested(reward=1)) == Verdict(1.0, False)
