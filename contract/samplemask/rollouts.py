"""Streams NeMo Gym's rollout files: which files belong to a run, and their lines, whatever state they are in.

Source of the names: NeMo Gym 0.7.0, `nemo_gym/path_utils.py` and `nemo_gym/rollout_collection.py`.
"""

from __future__ import annotations

import gzip
import importlib
import io
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from samplemask.errors import ContractError

STDIN: Final = "-"
Text = bytes | memoryview
MAX_LINE_BYTES: Final = 64 * 1024 * 1024
"""Longest line that is read, in bytes with its newline: memory is bounded in a file without newlines."""

_FAILURES: Final = "_failures"
_INPUTS: Final = "_materialized_inputs"
_COMPRESSED: Final = (".gz", ".zst")
_PIECE: Final = 1 << 19  # of a file, read at once: it stays in the processor's cache
_ZSTD_PIECE: Final = 1 << 12  # one piece is decompressed whole, and may grow a thousandfold
_BOM: Final = b"\xef\xbb\xbf"
_OBJECT: Final = ord("{")
_GZIP_MAGIC: Final = b"\x1f\x8b"
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"


class Unusable(str):
    """Why a line cannot be used at all, in place of its bytes."""


Line = Text | Unusable


@dataclass(slots=True)
class RunFiles:
    """The files of one run.

    Attributes:
        name: Path of the main file without its suffixes; "-" for standard input.
        main: The rollouts.
        failures: The failure sidecar, one row per failed attempt.
        inputs: The materialized inputs, one row per rollout that was expected.
    """

    name: str
    main: Path | str | None = None
    failures: Path | None = None
    inputs: Path | None = None

    def __iter__(self) -> Iterator[tuple[str, Path | str]]:
        """Yield the role and the path of each file that there is; the inputs come first."""
        for role in ("inputs", "main", "failures"):
            path = getattr(self, role)
            if path is not None:
                yield role, path


def find_runs(paths: Sequence[str | Path], *, siblings: bool = True) -> list[RunFiles]:
    """Sort files into runs by Gym's naming and find the files that belong to them.

    Args:
        paths: Main files, sidecars and materialized inputs in any order; "-" for standard input.
        siblings: Also use the sidecar and the inputs that lie beside a file.

    Raises:
        ContractError: A path does not exist or is not a file.
    """
    runs: dict[str, RunFiles] = {}
    taken: set[tuple[int, int]] = set()
    for path in paths:
        if str(path) == STDIN:
            runs.setdefault(STDIN, RunFiles(STDIN)).main = STDIN
            continue
        _add(runs, taken, Path(path))
    if siblings:
        for run in runs.values():
            _add_siblings(run, taken)
    return list(runs.values())


class Lines:
    """Streams the lines of a file, plain, gzip or zstd, told apart by content; blank lines are left out.

    Each line comes as its bytes, without a byte order mark, or as the reason why it is `Unusable`. Its
    bytes are a view of the one buffer that is filled again and again: use them before the next line.
    A damaged compressed file ends with an unusable line that says so.

    Args:
        path: The file; "-" for standard input.
        start: For a plain file: begin with the first line that starts at this byte or later.
        stop: End before the first line that starts at this byte or later; None: at the end.
        count: Lines before `start`.

    Attributes:
        count: Lines passed so far, blank ones too: the number of the last one, counted from 1.
    """

    def __init__(self, path: Path | str, start: int = 0, stop: int | None = None, count: int = 0) -> None:
        self._path = path
        self._start = start
        self._stop = stop
        self.count = count

    def __iter__(self) -> Iterator[Line]:
        """Yield each line.

        Raises:
            ContractError: The file cannot be opened, or it is a zstd file and no reader is installed.
        """
        with ExitStack() as closing:
            try:
                yield from self._lines(_opened(self._path, closing))
            except ContractError:
                raise
            except Exception as error:  # noqa: BLE001 - each decompressor has errors of its own
                self.count += 1
                yield Unusable(f"the file is damaged from here on: {error}")

    def _lines(self, stream: io.BufferedIOBase) -> Iterator[Line]:
        place = max(self._start - 1, 0)  # a newline there means that a line starts at `start`
        if place:
            stream.seek(place)
        lines = _whole_lines(stream, math.inf if self._stop is None else self._stop - place)
        if self._start:
            next(lines, None)
        first = 0 if self._start else self.count + 1
        for text in lines:
            self.count += 1
            if text and text[0] == _OBJECT:
                yield text
            elif text is None:
                yield Unusable(f"longer than {MAX_LINE_BYTES:,} bytes")
            else:
                if self.count == first and bytes(text[: len(_BOM)]) == _BOM:
                    text = text[len(_BOM) :]
                if text and not bytes(text).isspace():
                    yield text


def is_plain(path: Path | str) -> bool:
    """Tell whether a path is a regular file, not compressed: it has a size and can be read in pieces."""
    if path == STDIN or not Path(path).is_file():
        return False
    with Path(path).open("rb") as stream:
        start = stream.read(4)
    return not start.startswith(_GZIP_MAGIC) and start != _ZSTD_MAGIC


def _whole_lines(stream: io.BufferedIOBase, length: float) -> Iterator[memoryview | None]:
    """Yield each line that starts in the first `length` bytes; None instead of one too long to keep."""
    buffer = bytearray(min(_PIECE, MAX_LINE_BYTES))
    view, begun, lost = memoryview(buffer), 0, 0  # of a line whose end is to come: bytes kept, bytes not kept
    while length > 0 and (read := stream.readinto1(view[begun : begun + _PIECE])):
        start, end, stop = 0, begun, begun + read
        if lost and (end := buffer.find(b"\n", 0, stop) + 1):
            yield None
            start, length, lost = end, length - lost, 0
        while start < length and (end := buffer.find(b"\n", end, stop) + 1):
            yield view[start:end]
            start = end
        begun, length = stop - start, length - start
        if start:
            view[:begun] = view[start:stop]
        elif begun == MAX_LINE_BYTES:
            begun, lost = 0, lost + begun
        elif begun == len(buffer):
            buffer = bytearray(min(2 * begun, MAX_LINE_BYTES))
            buffer[:begun], view = view, memoryview(buffer)
    if length > 0 and (begun or lost):
        yield None if lost else view[:begun]


def _opened(path: Path | str, closing: ExitStack) -> io.BufferedIOBase:
    if path == STDIN:
        raw = cast(io.BufferedReader, sys.stdin.buffer)
    else:
        try:
            file = Path(path).open("rb")  # noqa: SIM115 - the stack closes it
        except OSError as error:
            raise ContractError(f"{path}: expected a file that can be read, found: {error}.") from error
        raw = closing.enter_context(file)
    start = raw.peek(4)[:4]
    if start.startswith(_GZIP_MAGIC):
        return closing.enter_context(gzip.open(raw, "rb"))
    if start == _ZSTD_MAGIC:
        return io.BufferedReader(_ZstdStream(raw, path), buffer_size=_PIECE)
    return raw


class _ZstdStream(io.RawIOBase):
    """Reads the frames of a zstd file; a file that was cut is an error, not an end."""

    def __init__(self, source: io.BufferedIOBase, path: Path | str) -> None:
        try:
            self._zstandard = importlib.import_module("zstandard")
        except ImportError as error:
            raise ContractError(
                f"{path}: expected a reader for zstd files, found none. "
                "Run `pip install zstandard`, or decompress the file."
            ) from error
        self._source = source
        self._frame: Any = None
        self._input = b""
        self._output = memoryview(b"")

    def readable(self) -> bool:
        """Tell the buffer that it can read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer with what comes next; 0 at the end."""
        while not self._output:
            if not self._input:
                self._input = self._source.read(_ZSTD_PIECE)
            if not self._input:
                if self._frame is not None:
                    raise EOFError("compressed file ended before the end of its last frame")
                return 0
            self._decompress()
        size = min(len(buffer), len(self._output))
        buffer[:size], self._output = self._output[:size], self._output[size:]
        return size

    def _decompress(self) -> None:
        if self._frame is None:
            self._frame = self._zstandard.ZstdDecompressor().decompressobj()
        self._output, self._input = memoryview(self._frame.decompress(self._input)), b""
        if self._frame.eof:
            self._input, self._frame = self._frame.unused_data, None


def _name_and_role(file: Path) -> tuple[str, str]:
    name = file.with_suffix("") if file.suffix in _COMPRESSED else file
    stem = name.stem
    for ending, role in ((_FAILURES, "failures"), (_INPUTS, "inputs")):
        if stem.endswith(ending) and stem != ending:
            return str(file.parent / stem[: -len(ending)]), role
    return str(file.parent / stem), "main"


def _add(runs: dict[str, RunFiles], taken: set[tuple[int, int]], file: Path) -> None:
    if file.is_dir():
        raise ContractError(
            f"{file}: expected a rollout file, found a directory. Name files: {file}/*.jsonl."
        )
    if not file.exists():
        raise ContractError(f"{file}: expected a rollout file, found nothing. Check the path.")
    if _is_taken(taken, file):
        return
    name, role = _name_and_role(file)
    key = str(Path(name).resolve())
    if key in runs and getattr(runs[key], role) is not None:  # NAME.jsonl and NAME.jsonl.gz are two runs
        name = key = str(file)
    setattr(runs.setdefault(key, RunFiles(name)), role, file)


def _is_taken(taken: set[tuple[int, int]], file: Path) -> bool:
    """Note a file; True when it was noted before, under whatever name."""
    status = file.stat()
    identity = (status.st_dev, status.st_ino)
    known = identity in taken
    taken.add(identity)
    return known


def _add_siblings(run: RunFiles, taken: set[tuple[int, int]]) -> None:
    if run.name == STDIN:
        return
    for role, ending in (("main", ""), ("failures", _FAILURES), ("inputs", _INPUTS)):
        if getattr(run, role) is None:
            candidates = (Path(f"{run.name}{ending}.jsonl{suffix}") for suffix in ("", *_COMPRESSED))
            found = next((file for file in candidates if file.is_file()), None)
            if found is not None and not _is_taken(taken, found):
                setattr(run, role, found)
