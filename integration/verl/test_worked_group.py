"""The guide's worked group of four is what the real verl computes."""

import runpy
from pathlib import Path

import pytest

pytest.importorskip("verl", reason="verl is not installed in this environment")

ROOT = Path(__file__).parents[2]


def test_the_guides_table_is_what_verl_computes():
    import samplemask_verl

    command = runpy.run_path(str(ROOT / "integration" / "verl" / "worked_group.py"))
    text = (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8")
    try:
        computed = command["TABLES"]["with_table"](text, command["NAME"], command["table"]())
    finally:
        samplemask_verl.uninstall()
    assert computed == text, "run: python integration/verl/worked_group.py docs/concepts.md"


def test_the_group_has_the_published_numbers():
    import samplemask_verl

    command = runpy.run_path(str(ROOT / "integration" / "verl" / "worked_group.py"))
    samplemask_verl.install()
    try:
        # NVIDIA-NeMo/RL#3467 gives these numbers for its own group mean.
        assert command["advantages"]("grpo", False, "ignore") == "0.5, 0.5, -0.5, -0.5"
        assert command["advantages"]("grpo", False, "exclude") == "0.667, 0, -0.333, -0.333"
        assert command["advantages"]("grpo", True, "exclude") == "1.15, 0, -0.577, -0.577"
    finally:
        samplemask_verl.uninstall()
