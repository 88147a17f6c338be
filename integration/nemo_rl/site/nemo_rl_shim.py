"""Lets NeMo-RL, which asks for Python 3.13, run on 3.11: pydantic wants typing_extensions' TypedDict there.

Used as a pytest plugin (`-p nemo_rl_shim`), and by `sitecustomize.py` in Ray workers.
"""

import sys
import typing

if sys.version_info < (3, 12):
    import typing_extensions

    typing.TypedDict = typing_extensions.TypedDict
