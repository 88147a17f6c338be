"""The policy from verl's configuration."""

from types import SimpleNamespace

import pytest

from samplemask import ContractError, MaskPolicy
from samplemask_verl.config import VerlPolicy, acts, estimator_name, is_group_relative, policy_for, policy_of


def test_no_section_means_exclude():
    for algorithm in (None, {}, {"mask_sample": None}, SimpleNamespace(gamma=1.0)):
        assert policy_of(algorithm) == VerlPolicy()


def test_options_are_read():
    assert policy_of({"mask_sample": {"action": "drop_group", "min_valid": 3}}) == VerlPolicy(
        action="drop_group", min_valid=3
    )
    assert policy_of(SimpleNamespace(mask_sample={"scored_kinds": ["agent_timeout"]})).scored_kinds == {
        "agent_timeout"
    }


def test_an_unknown_option_names_its_place_and_a_near_one():
    with pytest.raises(
        ContractError, match=r"^algorithm\.mask_sample: unknown policy option 'min_vald'.*'min_valid'"
    ):
        policy_of({"mask_sample": {"min_vald": 3}})


def test_a_section_that_is_no_mapping_is_an_error():
    with pytest.raises(ContractError, match=r"algorithm\.mask_sample: expected a mapping"):
        policy_of({"mask_sample": "exclude"})


def test_resampling_cannot_be_combined_with_masking():
    with pytest.raises(ContractError, match=r"algorithm\.use_pf_ppo"):
        policy_of({"use_pf_ppo": True})
    assert policy_of({"use_pf_ppo": True, "mask_sample": {"action": "ignore"}}).action == "ignore"


def test_a_policy_that_ignores_acts_only_as_an_outage_guard():
    assert acts(MaskPolicy())
    assert not acts(MaskPolicy(action="ignore"))
    assert acts(MaskPolicy(action="ignore", max_masked_fraction=0.5))


def test_group_statistics_are_known_by_the_index_argument():
    assert is_group_relative(lambda token_level_rewards, index, **kwargs: None)
    assert not is_group_relative(lambda token_level_rewards, **kwargs: None)


def test_min_valid_applies_to_group_relative_estimators_only():
    policy = VerlPolicy(min_valid=3)
    assert policy_for(policy, "grpo", True).min_valid == 3
    assert policy_for(policy, "gae", False).min_valid == 1
    assert policy_for(VerlPolicy(min_valid=1), "grpo_passk", True).min_valid == 2
    assert policy_for(VerlPolicy(min_valid=1), "grpo", True).min_valid == 1


def test_estimators_are_named_by_enum_or_string():
    assert estimator_name("grpo") == "grpo"
    assert estimator_name(SimpleNamespace(value="gae")) == "gae"
