"""Verdicts of pydantic models: what a model holds, what it only defaults to, and its aliases."""

from typing import Any

import pytest
from pydantic import AliasChoices, AliasPath, BaseModel, ConfigDict, Field, RootModel, computed_field

from samplemask import ContractError, Verdict, read_verdict


class Config(BaseModel):
    mask_sample: bool = False


class Response(BaseModel):
    model_config = ConfigDict(extra="allow")

    reward: float | None = None
    mask_sample: bool = False
    failure_kind: str | None = None
    failure_reason: str | None = None


class Nested(BaseModel):
    reward: float
    mask_sample: bool = False
    instance_config: Config | None = None


def test_a_model_is_read_like_its_mapping():
    response = Response(reward=0.0, mask_sample=True, failure_kind="session_lost", failure_reason="gone")
    assert read_verdict(response) == Verdict(0.0, True, "session_lost", "gone", ("mask_sample",), False)


def test_a_default_that_nobody_set_is_not_a_statement():
    quiet = Nested(reward=1, instance_config=Config(mask_sample=True))
    spoken = Nested(reward=1, mask_sample=False, instance_config=Config(mask_sample=True))
    assert read_verdict(quiet) == Verdict(1.0, True, None, None, ("instance_config.mask_sample",), False)
    assert read_verdict(spoken) == Verdict(1.0, True, None, None, ("instance_config.mask_sample",), True)


def test_an_unset_nested_default_is_not_a_statement_either():
    response = Nested(reward=1, mask_sample=True, instance_config=Config())
    assert read_verdict(response).conflict is False


def test_a_default_of_true_masks():
    class Strict(BaseModel):
        reward: float
        mask_sample: bool = True

    assert read_verdict(Strict(reward=1)).sources == ("mask_sample",)


def test_extra_fields_of_a_model_are_read():
    response = Response(reward=0.0, _ng_failure_class="judge_failed", instance_config={"mask_sample": True})
    assert read_verdict(response).sources == ("instance_config.mask_sample", "_ng_failure_class")


def test_a_field_counts_under_its_alias():
    class Row(BaseModel):
        reward: float
        masked: bool = Field(False, alias="mask_sample")
        failure_class: str | None = Field(None, alias="_ng_failure_class")

    response = Row(reward=1, mask_sample=True, _ng_failure_class="judge_failed")
    assert read_verdict(response).sources == ("mask_sample", "_ng_failure_class")
    assert read_verdict(Row(reward=1)) == Verdict(1.0, False)


def test_a_field_counts_under_its_validation_and_serialization_alias():
    class Row(BaseModel):
        reward: float
        masked: bool = Field(False, validation_alias="mask_sample")
        kind: str = Field("session_lost", serialization_alias="failure_kind")

    verdict = read_verdict(Row(reward=1, mask_sample=True))
    assert verdict == Verdict(1.0, True, "session_lost", None, ("mask_sample",), False)


def test_a_field_counts_under_any_of_its_alias_choices():
    class Row(BaseModel):
        reward: float = Field(validation_alias=AliasPath("scores", 0))
        masked: bool = Field(False, validation_alias=AliasChoices("is_masked", "mask_sample"))

    verdict = read_verdict(Row.model_validate({"scores": [0.5], "is_masked": True}))
    assert verdict == Verdict(0.5, True, None, None, ("mask_sample",), False)


def test_a_computed_field_counts():
    class Row(BaseModel):
        reward: float

        @computed_field  # type: ignore[prop-decorator]
        @property
        def mask_sample(self) -> bool:
            return self.reward < 0

    assert read_verdict(Row(reward=-1)).mask_sample is True
    assert read_verdict(Row(reward=1)).mask_sample is False


def test_a_root_model_is_read_through():
    assert read_verdict(RootModel[dict[str, Any]]({"reward": 1, "mask_sample": True})).mask_sample is True
    with pytest.raises(ContractError, match=r"^verify response"):
        read_verdict(RootModel[list[int]]([1]))


def test_a_model_built_without_validation_may_lack_fields():
    verdict = read_verdict(Nested.model_construct())
    assert verdict == Verdict(None, True, "samplemask:reward_missing", None, ("reward",), False)


def test_a_model_without_a_reward_is_masked():
    assert read_verdict(Response()).failure_kind == "samplemask:reward_missing"


def test_a_subclass_inherits_the_reading():
    class Longer(Nested):
        trace: str = "x" * 1000

    assert read_verdict(Longer(reward=1, mask_sample=True)).mask_sample is True


def test_a_model_holding_an_unreadable_flag_is_refused():
    class Loose(BaseModel):
        reward: float
        mask_sample: Any = None

    with pytest.raises(ContractError, match=r"^mask_sample: .* found 'maybe'"):
        read_verdict(Loose(reward=1, mask_sample="maybe"))
