"""verl's entry point: verl imports this module in every process, at `import verl`.

verl swallows what an entry point raises, so nothing that could fail is done here. The patches are made
when verl's trainers are imported; a seam that does not fit makes that import fail, where a person sees it.
"""

from __future__ import annotations

import sys
from types import ModuleType

from samplemask_verl.patching import HOOKS

try:
    import wrapt
except ImportError:
    print(
        "samplemask: installed, but NOT ACTIVE in verl: the package wrapt is missing. Run: pip install wrapt",
        file=sys.stderr,
    )
    raise


def _patch_on_import(name: str) -> None:
    """Patch a verl module as it is imported; a failure is raised by every attempt to import it."""

    def hook(module: ModuleType) -> None:
        try:
            HOOKS[name](module)
        except Exception:
            # Python is about to drop the module; wrapt forgets a hook that has run, and would run it at
            # once while the module is there.
            sys.modules.pop(name, None)
            wrapt.register_post_import_hook(hook, name)
            raise

    wrapt.register_post_import_hook(hook, name)


for _name in HOOKS:
    _patch_on_import(_name)
