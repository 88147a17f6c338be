"""samplemask: a failed rollout is not a zero.

Reads an environment's verdict on its own reward and decides which rows train and which vote.
This package needs pydantic and numpy; it never imports torch or a trainer.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first asked for (PEP 562): reading a verdict needs no numpy."""
        for home, names in _HOMES.items():
            if name in names:
                value = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
                return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
