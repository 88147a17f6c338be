"""The options of a policy: what is accepted, what is refused and in which words."""

import pickle

import pytest
from pydantic import BaseModel, ValidationError

from samplemask import ContractError, MaskPolicy, plan_rows


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"action": "excluded"}, r"^action: expected .*'exclude'.*, found 'excluded' \(str\)\. Correct"),
        ({"action": None}, r"^action: "),
        ({"min_valid": 0}, r"^min_valid: .*greater than or equal to 1, found 0 \(int\)"),
        ({"min_valid": "2"}, r"^min_valid: .*valid integer, found '2' \(str\)"),
        ({"min_valid": True}, r"^min_valid: "),
        ({"min_valid": 2.0}, r"^min_valid: "),
        ({"drop_group_above": -0.1}, r"^drop_group_above: .*greater than or equal to 0"),
        ({"drop_group_above": 1.1}, r"^drop_group_above: .*less than or equal to 1"),
        ({"drop_group_above": 50}, r"^drop_group_above: .*less than or equal to 1"),
        ({"drop_group_above": float("nan")}, r"^drop_group_above: .*finite"),
        ({"drop_group_above": "0.5"}, r"^drop_group_above: "),
        ({"max_masked_fraction": 1.5}, r"^max_masked_fraction: "),
        ({"max_masked_fraction": float("nan")}, r"^max_masked_fraction: .*finite"),
        ({"outage_min_rows": 0}, r"^outage_min_rows: "),
        ({"on_outage": "stop"}, r"^on_outage: "),
        ({"scored_kinds": "agent_timeout"}, r"^scored_kinds: "),
        ({"masked_kinds": [1]}, r"^masked_kinds\.0: "),
        ({"acton": "exclude"}, r"^unknown policy option 'acton'\. Did you mean 'action'\?$"),
        ({"zzz": 1}, r"^unknown policy option 'zzz'\. Known options: action, min_valid, .*on_outage\.$"),
        ({"self": 1}, r"^unknown policy option 'self'\."),
        ({"scored_kinds": ["a:b"], "masked_kinds": ["a:b"]}, r"\['a:b'\] cannot be in scored_kinds and in"),
        ({"scored_kinds": ["samplemask:reward_missing"]}, r"cannot be scored: such a row has no reward"),
        ({"scored_kinds": ["samplemask:reward_not_finite"]}, r"cannot be scored"),
        ({"min_valid": 0, "acton": 1}, r"^min_valid: .*; unknown policy option 'acton'"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(options, message):
    with pytest.raises(ContractError, match=message):
        MaskPolicy(**options)


@pytest.mark.parametrize("fraction", [0, 1, 0.0, 1.0, 0.5])
def test_fractions_run_from_zero_to_one(fraction):
    assert MaskPolicy(drop_group_above=fraction).drop_group_above == fraction
    assert MaskPolicy(max_masked_fraction=fraction).max_masked_fraction == fraction


@pytest.mark.parametrize("kinds", [["a:b"], ("a:b",), {"a:b"}, frozenset({"a:b"})])
def test_kinds_of_a_policy_come_in_any_collection(kinds):
    assert MaskPolicy(scored_kinds=kinds).scored_kinds == frozenset({"a:b"})


def test_a_policy_is_immutable_hashable_and_pickles():
    policy = MaskPolicy(scored_kinds={"a:b"}, min_valid=3)
    with pytest.raises(ValidationError):
        policy.min_valid = 1
    assert pickle.loads(pickle.dumps(policy)) == policy
    assert hash(policy) == hash(MaskPolicy(scored_kinds=["a:b"], min_valid=3))


def test_a_policy_can_be_a_field_of_a_pydantic_model():
    class Training(BaseModel):
        mask_sample: MaskPolicy = MaskPolicy()

    read = Training.model_validate({"mask_sample": {"min_valid": 3}})
    assert read.mask_sample == MaskPolicy(min_valid=3)
    assert Training.model_validate(read.model_dump()) == read
    with pytest.raises(ValidationError, match="min_valid"):
        Training.model_validate({"mask_sample": {"min_valid": 0}})


def test_a_policy_from_a_hosts_configuration_names_the_place_in_its_errors():
    assert MaskPolicy.from_config({"action": "drop_group"}, "algorithm.mask_sample").action == "drop_group"
    assert MaskPolicy.from_config(None, "x") == MaskPolicy.from_config({}, "x") == MaskPolicy()
    with pytest.raises(ContractError, match=r"^algorithm\.mask_sample: unknown policy option 'acton'"):
        MaskPolicy.from_config({"acton": "exclude"}, "algorithm.mask_sample")
    with pytest.raises(ContractError, match=r"^grpo\.mask: .*unknown policy option '1'"):
        MaskPolicy.from_config({1: "exclude"}, "grpo.mask")


@pytest.mark.parametrize("options", ["exclude", ["exclude"], 1, True])
def test_a_configuration_that_is_no_mapping_is_refused(options):
    with pytest.raises(
        ContractError, match=r"^a\.b: expected a mapping of policy options, .*a\.b\.action=exclude"
    ):
        MaskPolicy.from_config(options, "a.b")


def test_two_options_that_do_not_go_together_are_told_in_our_own_words():
    with pytest.raises(ContractError) as error:
        MaskPolicy(scored_kinds=["a:b"], masked_kinds=["a:b"])
    assert str(error.value) == "['a:b'] cannot be in scored_kinds and in masked_kinds at once"


def test_the_nearest_option_is_suggested():
    with pytest.raises(
        ContractError, match=r"^unknown policy option 'outage_min_row'\. Did you mean 'outage_min_rows'\?$"
    ):
        MaskPolicy(outage_min_row=3)


def test_a_configuration_that_is_no_mapping_is_shown():
    with pytest.raises(ContractError) as error:
        MaskPolicy.from_config("exclude", "a.b")
    assert str(error.value) == (
        "a.b: expected a mapping of policy options, found 'exclude' (str). Write a.b.action=exclude."
    )


@pytest.mark.parametrize(("policy", "found"), [(None, "None (NoneType)"), ("exclude", "'exclude' (str)")])
def test_what_is_no_policy_is_refused_with_what_to_pass(policy, found):
    with pytest.raises(ContractError) as error:
        plan_rows([True, False], None, policy)
    expected = f"policy: expected a MaskPolicy, found {found}. Pass MaskPolicy() for the defaults."
    assert str(error.value) == expected
