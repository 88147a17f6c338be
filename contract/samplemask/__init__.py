"""samplemask: a failed rollout is not a zero.

Reads an environment's verdict on its own reward and decides which rows train and which vote.
This package needs pydantic and numpy; it never imports torch or a trainer.
"""

from typing import TYPE_CHECKING

from samplemask.lazy import lazy_names

if TYPE_CHECKING:
    from samplemask.accounting import Coverage, Disposition, step_metrics
    from samplemask.errors import ContractError, OutageError, SampleMaskError, SeamError
    from samplemask.policy import MaskPolicy, RowPlan, plan_rows
    from samplemask.verdict import Verdict, read_verdict
    from samplemask.verdict_columns import VerdictColumns, read_columns

__version__ = "0.1.0"

__all__ = [
    "ContractError",
    "Coverage",
    "Disposition",
    "MaskPolicy",
    "OutageError",
    "RowPlan",
    "SampleMaskError",
    "SeamError",
    "Verdict",
    "VerdictColumns",
    "plan_rows",
    "read_columns",
    "read_verdict",
    "step_metrics",
]

_HOMES = {
    "accounting": ("Coverage", "Disposition", "step_metrics"),
    "errors": ("ContractError", "OutageError", "SampleMaskError", "SeamError"),
    "policy": ("MaskPolicy", "RowPlan", "plan_rows"),
    "verdict": ("Verdict", "read_verdict"),
    "verdict_columns": ("VerdictColumns", "read_columns"),
}

if not TYPE_CHECKING:  # a type checker would take every name for a public one
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
