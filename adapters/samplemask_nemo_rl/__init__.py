"""samplemask for NeMo-RL: rows whose reward is not a measurement neither train nor vote.

Start any NeMo-RL script through `python -m samplemask_nemo_rl script.py arguments`, or call
`samplemask_nemo_rl.install()` before `ray.init` in your own.
"""

from samplemask_nemo_rl.plugin import doctor, install, is_active, uninstall

__all__ = ["doctor", "install", "is_active", "uninstall"]
