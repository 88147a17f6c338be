"""The contract loads neither torch nor a trainer, and nothing slow."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "verl", "nemo_rl", "trl", "ray", "transformers", "pandas", "samplemask_verl", "wrapt")


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_samplemask_loads_no_trainer():
    code = f"from samplemask import *; import sys; print([name for name in {HEAVY} if name in sys.modules])"
    assert run(code) == "[]"


def test_reading_a_verdict_does_not_load_numpy_and_importing_samplemask_not_even_pydantic():
    loaded = "import sys; print([name for name in ('numpy', 'pydantic') if name in sys.modules])"
    assert run(f"import samplemask; {loaded}") == "[]"
    code = f"from samplemask import read_verdict; print(read_verdict({{'reward': 1}}).reward); {loaded}"
    assert run(code) == "1.0\n['pydantic']"


@pytest.mark.parametrize("package", ["samplemask", "samplemask_verl"])
def test_a_public_name_is_the_same_object_wherever_it_is_imported_from(package):
    code = (
        f"import {package} as package; from importlib import import_module\n"
        "for home, names in package._HOMES.items():\n"
        "    module = import_module(f'{package.__name__}.{home}')\n"
        "    assert all(getattr(package, name) is getattr(module, name) for name in names)\n"
        "print(sorted(sum(package._HOMES.values(), ())) == sorted(package.__all__),\n"
        "      set(package.__all__) <= set(dir(package)), hasattr(package, 'instal'))"
    )
    assert run(code) == "True True False"


@pytest.mark.parametrize("name", ["samplemask.policy", "samplemask.failure_kinds", "samplemask_verl.config"])
def test_a_submodule_is_there_without_being_imported_by_name(name):
    package = name.partition(".")[0]
    assert run(f"import {package}; print({name}.__name__)") == name


def test_loading_verls_plugin_loads_neither_numpy_nor_pydantic():
    pytest.importorskip("wrapt")
    code = (
        "import samplemask_verl.plugin, sys; print({'numpy', 'pydantic'} & sys.modules.keys() or 'neither')"
    )
    assert run(code) == "neither"


def test_every_public_name_is_there():
    names = [
        "Verdict",
        "read_verdict",
        "MaskPolicy",
        "RowPlan",
        "plan_rows",
        "Disposition",
        "Coverage",
        "SampleMaskError",
        "ContractError",
        "SeamError",
        "OutageError",
    ]
    code = f"import samplemask; print([n for n in {names} if n not in samplemask.__all__])"
    assert run(code) == "[]"
