"""The test kit: synthetic GRPO batches, a conformance suite, reference estimators and public cases.

It needs numpy only. torch, verl and NeMo-RL are imported where a function asks for them.
"""

from samplemask.testing.batches import GrpoBatch, padding_rows
from samplemask.testing.conformance import (
    ConformanceError,
    Finding,
    Report,
    check_estimator,
    conformance_batches,
)
from samplemask.testing.properties import PROPERTIES, Estimator
from samplemask.testing.reference import reference_advantage, reference_estimator
from samplemask.testing.responses import check_response
from samplemask.testing.synthetic import Stream, grpo_batch

__all__ = [
    "PROPERTIES",
    "ConformanceError",
    "Estimator",
    "Finding",
    "GrpoBatch",
    "Report",
    "Stream",
    "check_estimator",
    "check_response",
    "conformance_batches",
    "grpo_batch",
    "padding_rows",
    "reference_advantage",
    "reference_estimator",
]
