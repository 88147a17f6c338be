"""The policy from verl's own configuration: `algorithm.mask_sample`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import Field

from samplemask.errors import ContractError
from samplemask.policy import MaskPolicy

WHERE = "algorithm.mask_sample"

# grpo_passk compares the best response with the second best and raises for a group of one.
_HOST_MINIMUM = {"grpo_passk": 2}


class VerlPolicy(MaskPolicy):
    """The shared policy, and what only verl needs.

    Attributes:
        denominator: The seq-mean loss modes divide by a constant number of rows. `valid`: excluded
            rows are taken off it, as if they had never been sampled. `host`: verl's constant stays,
            so a batch with excluded rows takes a smaller step.
        max_refills: Prompt groups of one step that may be evicted and replaced because they would not
            train; one more is an outage. 0: no refill, such groups carry no loss. V1 trainers only.
        verify: Compute each step's advantages a second time with other content in the masked rows, and
            stop if a row that trains moves. For the first hours of a new setup.
    """

    denominator: Literal["valid", "host"] = "valid"
    max_refills: Annotated[int, Field(ge=0, strict=True)] = 0
    verify: Annotated[bool, Field(strict=True)] = False


_DEFAULTS = VerlPolicy()


def policy_of(algorithm: Any) -> VerlPolicy:
    """Read the policy from verl's `algorithm` section.

    Args:
        algorithm: The OmegaConf section, verl's AlgoConfig, a mapping, or None (the defaults).

    Raises:
        ContractError: An unknown option or value, or a combination that cannot work.
    """
    options = _get(algorithm, "mask_sample")
    policy = _DEFAULTS if options is None else VerlPolicy.from_config(_plain(options), WHERE)
    if _get(algorithm, "use_pf_ppo") and acts(policy):
        raise ContractError.of(
            "algorithm.use_pf_ppo", "False while samplemask acts", True,
            f"PF-PPO resamples rows at random, masked ones too. Turn it off, or set {WHERE}.action=ignore.",
        )  # fmt: skip
    return policy


def acts(policy: MaskPolicy) -> bool:
    """Tell whether the policy can change anything at all."""
    return policy.action != "ignore" or policy.max_masked_fraction is not None


def estimator_name(adv_estimator: Any) -> str:
    """Return an estimator's registered name, given as verl's enum or as a string."""
    return str(getattr(adv_estimator, "value", adv_estimator))


@lru_cache(maxsize=64)
def is_group_relative(estimator: Any) -> bool:
    """Tell whether an estimator function compares a row with its prompt group.

    verl hands the group ids as `index`; estimators that do not name it (gae, remax,
    reinforce_plus_plus) have no group statistics. Checked on the 14 estimators of verl 0.9.1.
    """
    return "index" in inspect.signature(estimator).parameters


def policy_for(policy: VerlPolicy, adv_estimator: Any, group_relative: bool) -> VerlPolicy:
    """Fit `min_valid` to one estimator: 1 without group statistics, else at least the host's minimum."""
    minimum = max(policy.min_valid, _HOST_MINIMUM.get(estimator_name(adv_estimator), 1))
    fitted = minimum if group_relative else 1
    return policy if fitted == policy.min_valid else policy.model_copy(update={"min_valid": fitted})


def _get(section: Any, name: str) -> Any:
    if section is None:
        return None
    return section.get(name) if hasattr(section, "get") else getattr(section, name, None)


def _plain(options: Any) -> Any:
    """Turn an OmegaConf node into plain Python, resolving interpolations."""
    if options is None or type(options) is dict:
        return options
    if isinstance(options, Mapping) and type(options).__module__.startswith("omegaconf"):
        from omegaconf import OmegaConf

        return OmegaConf.to_container(options, resolve=True)
    return options
