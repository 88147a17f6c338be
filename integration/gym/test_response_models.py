"""Gym's own pydantic response models read the same as the JSON that they become."""

import importlib

import pytest

nemo_gym = pytest.importorskip("nemo_gym", reason="NeMo Gym is not installed here (it needs Python 3.13)")
from hypothesis import given, settings
from hypothesis import strategies as st
from nemo_gym.base_resources_server import BaseMultiRewardVerifyResponse, BaseVerifyResponse
from nemo_gym.failure_kinds import FAILURE_KINDS
from sums_server import SumsVerifyResponse
from test_verify_over_http import request_body

from samplemask import Verdict, read_verdict

MODELS = [BaseVerifyResponse, BaseMultiRewardVerifyResponse, SumsVerifyResponse]
EXAMPLES = ["example_single_tool_call", "example_multi_step", "example_session_state_mgmt"]


def make(model, **fields):
    body = {name: request_body("3")[name] for name in ("responses_create_params", "response")}
    if model is BaseMultiRewardVerifyResponse:
        body["reward_components"] = {"format": 1.0}
    return model.model_validate(body | fields)


@pytest.mark.parametrize("model", MODELS)
def test_unset_defaults_are_scored(model):
    assert read_verdict(make(model, reward=1.0)) == Verdict(1.0, False)


@settings(max_examples=50, deadline=None)
@given(
    model=st.sampled_from(MODELS),
    reward=st.floats(allow_nan=False, allow_infinity=False),
    flag=st.booleans(),
    kind=st.one_of(st.none(), st.sampled_from(sorted(FAILURE_KINDS))),
    reason=st.one_of(st.none(), st.text(max_size=20)),
)
def test_a_model_and_its_json_read_the_same(model, reward, flag, kind, reason):
    response = make(model, reward=reward, mask_sample=flag, failure_kind=kind, failure_reason=reason)
    verdict = read_verdict(response)
    assert verdict == read_verdict(response.model_dump_json()) == read_verdict(response.model_dump())
    assert (verdict.reward, verdict.mask_sample, verdict.failure_kind) == (reward, flag, kind)


@pytest.mark.parametrize("server", EXAMPLES)
def test_the_own_response_models_of_gyms_example_servers_can_be_read(server):
    app = importlib.import_module(f"resources_servers.{server}.app")
    models = [
        value
        for value in vars(app).values()
        if isinstance(value, type) and issubclass(value, BaseVerifyResponse)
    ]
    assert models
    for model in models:
        required = {name: 0 for name, field in model.model_fields.items() if field.is_required()}
        response = model.model_construct(**(required | {"reward": 0.5, "mask_sample": True}))
        assert read_verdict(response) == Verdict(0.5, True, sources=("mask_sample",))
