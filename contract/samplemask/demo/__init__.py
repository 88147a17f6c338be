"""`samplemask demo`: a recorded run of NeMo Gym that lost sessions, and what GRPO makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from samplemask.audit import audit_files
from samplemask.demo.estimates import estimate
from samplemask.demo.picture import draw
from samplemask.demo.rollouts import read_batch, recording
from samplemask.demo.story import tell
from samplemask.report import table

DEFAULT_OUT: Final = "samplemask-demo"


def run_demo(out_dir: str | Path | None = None) -> int:
    """Print what the failures of the recorded run do to training; write the text and a picture.

    Args:
        out_dir: Directory for `demo.txt` and `demo.png`; "samplemask-demo" by default.

    Returns:
        0.

    Raises:
        ContractError: The recording is not in this installation.
    """
    out = Path(out_dir or DEFAULT_OUT)
    out.mkdir(parents=True, exist_ok=True)
    path = recording()
    batch = read_batch(path)
    estimates = estimate(batch)
    text = tell(batch, estimates, table(audit_files([path])))
    text += f"\n\n{draw(batch, estimates, out / 'demo.png')}"
    print(text)
    (out / "demo.txt").write_text(text + "\n", encoding="utf-8")
    return 0


__all__ = ["run_demo"]
