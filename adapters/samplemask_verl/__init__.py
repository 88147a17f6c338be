"""samplemask for verl: rows whose reward is not a measurement neither train nor vote.

Installed next to verl, it is loaded by verl itself in every process (entry point `verl.plugins`).
Importing this package loads neither verl nor torch.
"""

from typing import TYPE_CHECKING

from samplemask.lazy import lazy_names

if TYPE_CHECKING:
    from samplemask_verl.diagnosis import doctor
    from samplemask_verl.patching import install, is_active, uninstall
    from samplemask_verl.rewards import masked, reward_dict, scored

__all__ = ["doctor", "install", "is_active", "masked", "reward_dict", "scored", "uninstall"]

_HOMES = {
    "diagnosis": ("doctor",),
    "patching": ("install", "is_active", "uninstall"),
    "rewards": ("masked", "reward_dict", "scored"),
}

if not TYPE_CHECKING:  # a type checker would take every name for a public one
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
