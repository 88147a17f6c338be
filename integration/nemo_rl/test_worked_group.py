"""The guide's worked group of four is what the real NeMo-RL computes."""

import os
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_guides_table_is_what_nemo_rl_computes(adapter):
    command = runpy.run_path(str(ROOT / "integration" / "nemo_rl" / "worked_group.py"))
    page = ROOT / "docs" / "concepts.md"
    text = page.read_text(encoding="utf-8")
    computed = command["TABLES"]["with_table"](text, command["NAME"], command["table"]())
    if os.environ.get("SAMPLEMASK_WRITE_DOCS"):
        page.write_text(computed, encoding="utf-8")
    else:
        assert computed == text, "run this test with SAMPLEMASK_WRITE_DOCS=1"
