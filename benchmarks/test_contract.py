"""The contract by itself: planning rows, reading verdicts, importing."""

import os
import resource
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

from samplemask import MaskPolicy, plan_rows, read_columns, read_verdict

GROUP = 16


def groups(rows, ids):
    prompts = np.arange(rows // GROUP)
    if "integers" in ids:
        return np.repeat(prompts if ids == "integers" else prompts * 10**9, GROUP)
    text = np.array([f"{prompt:08x}-0000-4000-8000-{prompt:012x}" for prompt in prompts])
    if ids == "uuids, repeated as verl does":  # the rows of a group have the same object
        return np.repeat(text.astype(object), GROUP)
    fixed_B = np.repeat(text, GROUP)
    if ids.endswith("shuffled"):
        np.random.default_rng(0).shuffle(fixed_B)
    return fixed_B if "fixed width" in ids else fixed_B.astype(object)


ROWS = (100_000, 1_000_000, 10_000_000)
IDS = (
    "integers",
    "integers, far apart",
    "uuids, repeated as verl does",
    "uuids, objects",
    "uuids, objects, shuffled",
    "uuids, fixed width",
    "uuids, fixed width, shuffled",
)
LITTLE_MEMORY = ("integers", "uuids, repeated as verl does")


def skip_what_takes_long(rows, ids, turn):
    if rows > 1_000_000 and ids not in LITTLE_MEMORY and (turn or ids != "uuids, objects"):
        pytest.skip(
            "10,000,000 fixed-width uuids take 1.4 GB; objects are measured once, as they lie together"
        )


@pytest.mark.parametrize("ids", IDS)
@pytest.mark.parametrize("rows", ROWS)
def test_plan_rows(measure, turn, rows, ids):
    skip_what_takes_long(rows, ids, turn)
    group_B = groups(rows, ids)
    masked_B = np.random.default_rng(0).random(rows) < 0.1
    said = {"table": "plan_rows", "rows": rows, "case": ids}
    if turn == 0 and rows <= 1_000_000:
        tracemalloc.start()
        plan_rows(masked_B, group_B, MaskPolicy())
        said["bytes_per_row"] = tracemalloc.get_traced_memory()[1] / rows
        tracemalloc.stop()
    measure(
        lambda group_B: plan_rows(masked_B, group_B, MaskPolicy()),
        lambda: group_B,
        rounds=1 if rows > 1_000_000 and ids not in LITTLE_MEMORY else 3,
        **said,
    )


@pytest.mark.parametrize("rows", ROWS)
def test_numpy_for_scale(measure, rows):
    ids, masked_B = groups(rows, "integers"), np.random.default_rng(0).random(rows) < 0.1
    measure(
        lambda _: (ids[1:] != ids[:-1], masked_B.copy(), ~masked_B, ~masked_B),
        lambda: None,
        table="plan_rows",
        rows=rows,
        case="for scale: numpy compares integers with their neighbours, and copies the flags three times",
    )


@pytest.mark.parametrize("ids", ["uuids, objects", "uuids, objects, shuffled"])
@pytest.mark.parametrize("rows", ROWS)
def test_a_dictionary_for_scale(measure, turn, rows, ids):
    skip_what_takes_long(rows, ids, turn)
    group_B = groups(rows, ids).tolist()
    rounds = 1 if rows > 1_000_000 else 3
    case = f"for scale: dict.fromkeys, {ids}"
    measure(
        dict.fromkeys,
        lambda: group_B,
        rounds,
        table="plan_rows",
        rows=rows,
        case=case,
    )


@pytest.mark.parametrize(
    "case", ["read_verdict on each row", "read_columns on lists", "read_columns on arrays"]
)
def test_reading(measure, case):
    flags = np.random.default_rng(0).random(100_000) < 0.1
    rows = [
        {
            "reward": float(row % 3),
            "mask_sample": bool(flag),
            "failure_kind": "session_lost" if flag else None,
        }
        for row, flag in enumerate(flags)
    ]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    if "arrays" in case:
        columns = {
            "reward": np.array(columns["reward"]),
            "mask_sample": flags,
            "failure_kind": np.array(columns["failure_kind"], dtype=object),
        }
    each = case.endswith("row")
    call = (lambda rows: [read_verdict(row) for row in rows]) if each else read_columns
    measure(call, lambda: rows if each else columns, table="reading", rows=len(rows), case=case)


def of_children():
    """Processor seconds of the processes that this one waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


IMPORTS = {
    "import pydantic": ("import pydantic; pydantic.BaseModel", "none"),
    "import pydantic, numpy": ("import pydantic, numpy; pydantic.BaseModel", "none"),
    "import samplemask": ("import samplemask", "none"),
    "from samplemask import read_verdict": ("from samplemask import read_verdict", "none"),
    "from samplemask import plan_rows": ("from samplemask import plan_rows", "none"),
    "the same, and a policy": ("from samplemask import MaskPolicy, plan_rows; MaskPolicy()", "none"),
    "import verl": ("import verl", "none"),
    "import verl, with the plugin": ("import verl", "samplemask"),
}


@pytest.mark.benchmark(timer=of_children)
@pytest.mark.parametrize("case", IMPORTS)
def test_import(measure, case):
    if "verl" in case:
        pytest.importorskip("verl")
    code, plugin = IMPORTS[case]
    modules = "samplemask_verl.plugin" if plugin == "samplemask" else ""
    environment = {**os.environ, "VERL_USE_EXTERNAL_MODULES": modules, "VERL_USE_EXTERNAL_PLUGINS": plugin}

    def call(code):
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code], env=environment, check=True, capture_output=True
        )

    measure(call, lambda: code, rounds=2, table="import", rows=1, case=case)
