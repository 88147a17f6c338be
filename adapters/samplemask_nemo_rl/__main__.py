"""`python -m samplemask_nemo_rl script.py arguments`: install samplemask, then run the script as it is."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from samplemask_nemo_rl.plugin import install

_USAGE = "usage: python -m samplemask_nemo_rl SCRIPT [ARGUMENTS ...]   or   -m MODULE [ARGUMENTS ...]"


def main(arguments: list[str]) -> int:
    """Run a script or a module with samplemask installed; its arguments are not touched.

    Args:
        arguments: The script's path and its arguments, or "-m", a module's name and its arguments.

    Returns:
        2 when there is nothing to run; a script that returns gives 0.
    """
    is_module = arguments[:1] == ["-m"]
    target = arguments[1:] if is_module else arguments
    if not target or (not is_module and target[0] in ("-h", "--help")):
        print(_USAGE, file=sys.stderr)
        return 2
    if not is_module:
        sys.path[0] = str(Path(target[0]).resolve().parent)  # what `python script.py` does
    install()
    sys.argv = target
    if is_module:
        runpy.run_module(target[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(target[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
