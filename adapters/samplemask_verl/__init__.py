"""samplemask for verl: rows whose reward is not a measurement neither train nor vote.

Installed next to verl, it is loaded by verl itself in every process (entry point `verl.plugins`).
Importing this package loads neither verl nor torch.
"""

from samplemask_verl.diagnosis import doctor
from samplemask_verl.patching import install, is_active, uninstall
from samplemask_verl.rewards import masked, reward_dict, scored

__all__ = ["doctor", "install", "is_active", "masked", "reward_dict", "scored", "uninstall"]
