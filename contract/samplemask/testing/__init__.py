"""The test kit: synthetic GRPO batches, a conformance suite, reference estimators and public cases.

It needs numpy only. torch, verl and NeMo-RL are imported where a function asks for them.
"""

from samplemask.testing.batches import GrpoBatch, padding_rows
from samplemask.testing.cases import (
    AdvantageExample,
    OutOfReach,
    PublicCase,
    advantage_examples,
    out_of_reach,
    public_cases,
)
from samplemask.testing.conformance import (
    ConformanceError,
    Finding,
    Report,
    check_estimator,
    conformance_batches,
)
from samplemask.testing.losses import LOSS_PROPERTIES, LossInputs, check_loss, reference_loss
from samplemask.testing.properties import PROPERTIES, Estimator
from samplemask.testing.reference import reference_advantage, reference_estimator
from samplemask.testing.responses import check_response
from samplemask.testing.synthetic import Stream, grpo_batch

__all__ = [
    "LOSS_PROPERTIES",
    "PROPERTIES",
    "AdvantageExample",
    "ConformanceError",
    "Estimator",
    "Finding",
    "GrpoBatch",
    "LossInputs",
    "OutOfReach",
    "PublicCase",
    "Report",
    "Stream",
    "advantage_examples",
    "check_estimator",
    "check_loss",
    "check_response",
    "conformance_batches",
    "grpo_batch",
    "out_of_reach",
    "padding_rows",
    "public_cases",
    "reference_advantage",
    "reference_estimator",
    "reference_loss",
]
