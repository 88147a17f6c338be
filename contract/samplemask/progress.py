"""A progress bar for long files, on a terminal only."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TextIO

from samplemask.rollouts import RunFiles, is_plain

_EVERY: Final = 0.2
_AFTER: Final = 1.0


class ProgressBar:
    """Shows how much was read; nothing during the first second.

    Args:
        total: Bytes to read, or None where nobody knows (standard input, compressed files).
        stream: Where to draw.
    """

    def __init__(self, total: int | None, stream: TextIO) -> None:
        self._total = total
        self._stream = stream
        self._read = 0
        self._started = self._last = time.monotonic()
        self._drawn = False

    def __call__(self, size: int) -> None:
        """Count `size` more bytes and draw from time to time."""
        self._read += size
        now = time.monotonic()
        if now - self._last >= _EVERY and now - self._started >= _AFTER:
            self._last, self._drawn = now, True
            self._stream.write(f"\r\x1b[K{self._text(now)}")
            self._stream.flush()

    def close(self) -> None:
        """Remove the bar."""
        if self._drawn:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def _text(self, now: float) -> str:
        speed = self._read / max(now - self._started, 1e-9)
        rate = f"{self._read / 1e6:,.0f} MB, {speed / 1e6:,.0f} MB/s"
        if not self._total:
            return f"reading: {rate}"
        share = min(self._read / self._total, 1.0)
        filled = round(share * 30)
        left = (self._total - self._read) / max(speed, 1.0)
        return (
            f"reading [{'█' * filled}{'·' * (30 - filled)}] {share:4.0%}  {rate}, {max(left, 0):,.0f} s left"
        )


def progress_bar(runs: Sequence[RunFiles], stream: TextIO | None = None) -> ProgressBar | None:
    """Return a bar for these files, or None where the stream (standard error) is no terminal."""
    stream = stream or sys.stderr
    if not stream.isatty():
        return None
    paths = [path for run in runs for _, path in run]
    known = all(is_plain(path) for path in paths)
    return ProgressBar(sum(Path(path).stat().st_size for path in paths) if known else None, stream)
