"""The shared vocabulary: unknown names are kept, counted and reported once."""

import logging
import warnings

import pytest

from samplemask import MaskPolicy, read_verdict
from samplemask.failure_kinds import (
    FAILURE_KINDS,
    check_kind,
    is_namespaced,
    is_registered,
    warn_once,
)


@pytest.fixture(autouse=True)
def forget(monkeypatch):
    monkeypatch.setattr("samplemask.failure_kinds._reported", set())


def test_the_vocabulary_has_the_22_names_of_gym_0_7():
    assert len(FAILURE_KINDS) == 22
    assert {"judge_failed", "session_lost", "transport_timeout", "verifier_error"} <= FAILURE_KINDS


def test_registered_and_namespaced_names_are_told_apart():
    assert is_registered("agent_timeout")
    assert not is_registered("agent_timeout ")
    assert is_namespaced("browser_2:tab_crashed")
    assert not is_namespaced("agent_timeout")


@pytest.mark.parametrize(
    "kind", ["", ":", "a:", ":b", "A:b", "a:B", "a-b:c", "a:b:c", "a:b\n", " a:b", "1a:b", "a:1b", "a.b:c"]
)
def test_only_server_colon_kind_is_namespaced(kind):
    assert not is_namespaced(kind)


@pytest.mark.parametrize("kind", [*sorted(FAILURE_KINDS), "swe:patch_failed", "samplemask:reward_missing"])
def test_known_names_are_silent(kind, caplog):
    assert check_kind(kind) == kind
    assert caplog.records == []


def test_an_unknown_name_is_kept_and_reported_once(caplog):
    assert [check_kind("brand_new_kind") for _ in range(3)] == ["brand_new_kind"] * 3
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("samplemask", logging.WARNING)
    assert record.getMessage() == (
        "unknown failure_kind 'brand_new_kind': kept and counted as it is. Use a name of NeMo Gym's "
        "vocabulary or the form '<server>:<kind>'. Said once per name."
    )


def test_each_unknown_name_is_reported_by_itself(caplog):
    check_kind("kind_a")
    check_kind("kind_b")
    assert len(caplog.records) == 2


def test_an_unknown_name_in_a_response_neither_masks_nor_fails(caplog):
    verdict = read_verdict({"reward": 1.0, "mask_sample": False, "failure_kind": "never_heard"})
    assert verdict.mask_sample is False
    assert verdict.failure_kind == "never_heard"
    assert "never_heard" in caplog.text


def test_an_unknown_name_in_a_policy_is_reported(caplog):
    MaskPolicy(scored_kinds={"agent_timeuot"})
    assert "agent_timeuot" in caplog.text


def test_reports_go_to_logging_and_never_to_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_kind("through_logging")


def test_the_memory_of_reported_names_is_bounded(caplog):
    for number in range(1100):
        check_kind(f"random_{number}")
    assert len(caplog.records) == 1000


def test_a_topic_is_reported_once_with_its_arguments(caplog):
    warn_once("topic", "said %s of %d", "one", 2)
    warn_once("topic", "said %s of %d", "two", 2)
    assert [record.getMessage() for record in caplog.records] == ["said one of 2"]
