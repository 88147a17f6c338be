"""pytest plugin (`-p samplemask_installed`): runs another project's tests with the adapter installed."""

import nemo_rl_shim  # noqa: F401

import samplemask_nemo_rl

samplemask_nemo_rl.install()
