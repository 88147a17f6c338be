"""What one training run was configured to do with masked rows: NeMo-RL's configuration, read once."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from samplemask.errors import ContractError
from samplemask.policy import MaskPolicy

logger = logging.getLogger("samplemask")

ATTRIBUTE = "samplemask_session"
"""Where an advantage estimator carries its session; it travels with the estimator into Ray actors."""

SWITCH = "env.should_mask_flagged_samples"


@dataclass(frozen=True)
class Session:
    """The policy of one training run.

    Attributes:
        policy: The policy, with `min_valid` fitted to the estimator; `ignore` when NeMo-RL's own
            switch is off.
        where: The configuration path that the policy came from.
        switched_off: True when `env.should_mask_flagged_samples` is false.
    """

    policy: MaskPolicy
    where: str
    switched_off: bool = False


def session_of(master_config: Any, estimator: Any) -> Session:
    """Read the session of a run.

    Args:
        master_config: NeMo-RL's MasterConfig of GRPO or PPO.
        estimator: The advantage estimator that was made from it.

    Raises:
        ContractError: An option of the policy is unknown or not accepted.
    """
    algorithm = "ppo" if _get(master_config, "ppo") is not None else "grpo"
    where = f"{algorithm}.adv_estimator.mask_sample"
    options = _get(_get(_get(master_config, algorithm), "adv_estimator"), "mask_sample")
    policy = MaskPolicy.from_config(options, where)
    if _get(_get(master_config, "env"), "should_mask_flagged_samples") is False:
        if policy.masked_kinds or policy.max_masked_fraction is not None:
            raise ContractError.of(
                where, f"no masked_kinds and no max_masked_fraction while {SWITCH} is false",
                options, f"Remove them, or set {SWITCH}: true.",
            )  # fmt: skip
        return Session(MaskPolicy(action="ignore"), where, switched_off=True)
    minimum = policy.min_valid if is_group_relative(estimator) else 1
    return Session(policy.model_copy(update={"min_valid": minimum}), where)


def is_group_relative(estimator: Any) -> bool:
    """Tell whether an estimator compares a row with the other rows of its prompt.

    Checked on all six estimators at 7ea279a: GRPO and GDPO have a leave-one-out option, Reinforce++
    compares only with `minus_baseline`; raw reward, GAE and OPD never do.
    """
    return hasattr(estimator, "use_leave_one_out_baseline") or bool(
        getattr(estimator, "minus_baseline", False)
    )


def announce(session: Session) -> None:
    """Say at INFO what is active in this run."""
    if session.switched_off:
        logger.info("samplemask: %s is false, so no row is masked in this run", SWITCH)
    else:
        logger.info("samplemask active in NeMo-RL (%s): %s", session.where, session.policy)


def _get(section: Any, name: str) -> Any:
    """Look a name up in a mapping or a pydantic model; a mock's invented attributes do not count."""
    if section is None:
        return None
    if isinstance(section, Mapping):
        return section.get(name)
    extra = getattr(section, "__pydantic_extra__", None)
    fields = {**vars(section), **extra} if isinstance(extra, dict) else getattr(section, "__dict__", {})
    return fields.get(name)
