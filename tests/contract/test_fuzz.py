"""Whatever comes in: a result or a ContractError, never another exception."""

import contextlib
import json
import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from samplemask import ContractError, MaskPolicy, OutageError, Verdict, plan_rows, read_verdict
from samplemask.audit import audit_files

INDICES = ["_ng_task_index", "_ng_rollout_index", "_ng_attempt_index"]
FIELDS = [
    "reward",
    "mask_sample",
    "failure_kind",
    "failure_reason",
    "instance_config",
    "_ng_failure_class",
    "metrics",
]
WORDS = ["true", "False", "1", "0", "nan", "1e400", "\ud83d"]
NAMES = st.sampled_from(FIELDS) | st.text()
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.sampled_from(WORDS)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
ODD = st.sampled_from([object(), np.array([1]), np.array("x"), np.longdouble(1), range(2)])
OBJECTS = VALUES | st.binary(max_size=8) | st.complex_numbers() | ODD
RESPONSES = st.dictionaries(st.sampled_from(FIELDS), OBJECTS)


def read(response) -> Verdict | None:
    """Read it; None when it is refused. Anything else fails the test."""
    try:
        verdict = read_verdict(response)
    except ContractError:
        return None
    assert verdict.reward is None or math.isfinite(verdict.reward)
    assert verdict.mask_sample == bool(verdict.sources)
    assert verdict.failure_reason is None or 0 < len(verdict.failure_reason) <= 2000
    assert verdict.failure_kind is None or 0 < len(verdict.failure_kind) <= 200
    (verdict.failure_reason or "").encode("utf-8")
    (verdict.failure_kind or "").encode("utf-8")
    return verdict


@given(st.binary(max_size=200))
@example(b"\xef\xbb\xbf{}")
@example(b'{"reward":' + b"9" * 5000 + b"}")
@example(b"[" * 100_000)
@example(b'{"a":' * 100_000)
@example(b'{"reward": 1, "reward": "x"}')
def test_any_bytes(text):
    read(text)
    read(bytearray(text))


@given(st.text(max_size=200))
@example('{"failure_reason": "\ud83d"}')
@example('{"\ud83d": 1, "reward": 1}')
@example('{"reward": -1e400, "mask_sample": 1e400}')
def test_any_text(text):
    read(text)


@given(RESPONSES)
def test_any_response_object(response):
    read(response)


@given(OBJECTS)
def test_any_object(response):
    read(response)


@given(st.dictionaries(st.sampled_from(FIELDS), VALUES))
def test_any_json_object_reads_like_its_mapping(response):
    assert read(json.dumps(response)) == read(json.loads(json.dumps(response)))


@given(st.dictionaries(st.sampled_from(FIELDS), VALUES), st.data())
def test_any_cut_of_a_json_object(response, data):
    text = json.dumps(response).encode()
    read(text[: data.draw(st.integers(0, len(text)))])


@given(
    st.lists(OBJECTS, max_size=4) | OBJECTS,
    st.lists(OBJECTS, max_size=4) | OBJECTS,
    st.lists(OBJECTS, max_size=4) | OBJECTS,
)
def test_any_rows(masked, groups, kinds):
    try:
        plan = plan_rows(masked, groups, MaskPolicy(), kinds)
    except ContractError:
        return
    assert plan.trains_B.shape == plan.votes_B.shape == plan.masked_B.shape


OPTIONS = st.sampled_from(list(MaskPolicy.model_fields)) | st.text(max_size=5)


@given(st.dictionaries(OPTIONS, OBJECTS, max_size=3))
def test_any_policy_options(options):
    with contextlib.suppress(ContractError, OutageError):
        plan = plan_rows([True] * 60, None, MaskPolicy.from_config(options, "here"), [None] * 60)
        assert plan.masked_B.all()


LINES = st.lists(
    st.binary(max_size=40)
    | st.dictionaries(st.sampled_from(FIELDS + INDICES), VALUES, max_size=5).map(json.dumps).map(str.encode),
    max_size=6,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


@given(main=LINES, failures=LINES, inputs=LINES)
def test_any_rollout_files(folder, main, failures, inputs):
    for name, lines in (("", main), ("_failures", failures), ("_materialized_inputs", inputs)):
        (folder / f"run{name}.jsonl").write_bytes(b"\n".join(lines))
    document = audit_files([folder / "run.jsonl"]).to_json()
    assert sum(document["dispositions"].values()) == document["expected"]
    json.dumps(document, allow_nan=False)
