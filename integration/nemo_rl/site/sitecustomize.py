"""Python runs this as it starts, also in Ray workers, when this folder is on the PYTHONPATH."""

import nemo_rl_shim  # noqa: F401
