"""The contract loads neither torch nor a trainer, and nothing slow."""

import subprocess
import sys

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


def test_a_public_name_is_the_same_object_wherever_it_is_imported_from():
    code = (
        "import samplemask; from importlib import import_module\n"
        "for home, names in samplemask._HOMES.items():\n"
        "    module = import_module(f'samplemask.{home}')\n"
        "    assert all(getattr(samplemask, name) is getattr(module, name) for name in names)\n"
        "print(sorted(sum(samplemask._HOMES.values(), ())) == sorted(samplemask.__all__),\n"
        "      set(samplemask.__all__) <= set(dir(samplemask)), hasattr(samplemask, 'plan_row'))"
    )
    assert run(code) == "True True False"


def test_samplemask_works_where_torch_and_trainers_cannot_be_imported():
    block = "import sys\n" + "".join(f"sys.modules[{name!r}] = None\n" for name in HEAVY)
    use = (
        "from samplemask import MaskPolicy, plan_rows, read_verdict\n"
        "masked = [read_verdict({'reward': 0, 'mask_sample': flag}).mask_sample for flag in (1, 0, 0)]\n"
        "print(plan_rows(masked, ['p', 'p', 'p'], MaskPolicy()).votes_B.tolist())\n"
    )
    assert run(block + use) == "[False, True, True]"


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
