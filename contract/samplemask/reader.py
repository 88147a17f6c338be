"""Reads the files of runs into a ledger and keeps account of what could not be read."""

from __future__ import annotations

import zlib
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from samplemask.accounting import Disposition
from samplemask.ledger import FAILURES, MAIN, Ledger, Seen
from samplemask.rollouts import STDIN, Line, Lines, RunFiles, Unusable, is_plain
from samplemask.rows import RolloutRow, UnreadableLineError, make_read_row

MAX_LISTED: Final = 100_000
"""Most unreadable lines that are kept with their reasons, over all files; all are counted."""

_PIECE: Final = 1 << 26
_AT_ONCE: Final = 512  # rows that are entered together, which is faster than each between two lines
WORTH_PROCESSES: Final = 1 << 28
"""Fewest bytes for which several processes read faster than one, which takes a third of a second for them."""

Progress = Callable[[int], None]
"""Called after each line, or piece of a file, with its length in bytes."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One line that could not be read."""

    file: str
    line: int
    reason: str


@dataclass(slots=True)
class FileCount:
    """What one file held.

    Attributes:
        path: The file.
        role: "main", "failures" or "inputs".
        lines: All lines.
        rows: Lines that were read.
        unreadable: Lines that were neither read nor blank.
    """

    path: str
    role: str
    lines: int = 0
    rows: int = 0
    unreadable: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """A file, or a piece of a large one.

    Attributes:
        run: Name of the run that it belongs to.
        role: "main", "failures" or "inputs".
        path: The file.
        start: The first byte.
        stop: The byte after the last one; None: the end of the file.
        digest: Note what each row's text is, to find its copies in other files.
    """

    run: str
    role: str
    path: Path | str
    start: int = 0
    stop: int | None = None
    digest: bool = False


class Reader:
    """Reads parts into a ledger."""

    def __init__(
        self, ledger: Ledger, *, failures_as_zero: Collection[str] = (), fast: bool | None = None
    ) -> None:
        self.ledger = ledger
        self.files: list[FileCount] = []
        self.problems: list[Problem] = []
        self.conflicts = 0
        self._settings = (failures_as_zero, fast)
        self._read_row = make_read_row(*self._settings)

    @property
    def unreadable(self) -> int:
        """Lines that could not be read."""
        return sum(file.unreadable for file in self.files)

    def read(self, part: Part, progress: Progress | None = None) -> None:
        """Read one part after the others."""
        file, read_row = self._file(part), self._read_row
        lines = Lines(part.path, part.start, part.stop, file.lines)
        seen: list[Seen] = []
        for line in lines:
            try:
                row = read_row(line)
                seen.append((row, lines.count, _digest(line) if part.digest else 0))
            except UnreadableLineError as error:
                self._book(seen, file, part)
                self._report(file, lines.count, str(error))
            if len(seen) == _AT_ONCE:
                self._book(seen, file, part)
            if progress is not None:
                progress(len(line))
        self._book(seen, file, part)
        file.lines = lines.count

    def read_all(self, parts: Sequence[Part], jobs: int, progress: Progress | None = None) -> None:
        """Read parts, many bytes in several processes; the result is that of reading one after the other."""
        if jobs == 1 or len(parts) < 2 or sum(map(_size, parts)) < WORTH_PROCESSES:
            for part in parts:
                self.read(part, progress)
            return
        with ProcessPoolExecutor(jobs) as pool:
            # Only this process has the standard input.
            futures = deque(
                None if part.path == STDIN else pool.submit(_read_alone, part, *self._settings)
                for part in parts
            )
            for part in parts:
                future = futures.popleft()
                if future is None:
                    self.read(part, progress)
                    continue
                found = future.result()
                self._take_in(part, found)
                if progress is not None:
                    progress(found.size)

    def _book(self, seen: list[Seen], file: FileCount, part: Part) -> None:
        """Record what was seen, and forget it."""
        problems = []
        if part.role in (MAIN, FAILURES):
            problems = [each for each in seen if each[0].problem is not None]
            for row, number, _ in problems:
                self._report(file, number, str(row.problem))
            self.conflicts += sum([row.conflict for row, _, _ in seen])
            if part.role == FAILURES:
                _call_failures(seen)
            readable = [each for each in seen if _says_something(each[0])] if problems else seen
            self.ledger.add(readable, run=part.run, role=part.role)
        else:
            self.ledger.expect([row for row, _, _ in seen], run=part.run)
        file.rows += len(seen) - len(problems)
        seen.clear()

    def _file(self, part: Part) -> FileCount:
        last = self.files[-1] if self.files else None
        if last is None or not part.start:
            last = FileCount(str(part.path), part.role)
            self.files.append(last)
        return last

    def _report(self, file: FileCount, number: int, reason: str) -> None:
        file.unreadable += 1
        if len(self.problems) < MAX_LISTED:
            self.problems.append(Problem(file.path, number, reason))

    def _take_in(self, part: Part, found: _Found) -> None:
        file = self._file(part)
        self.ledger.take_in(found.ledger, lines_before=file.lines)
        room = MAX_LISTED - len(self.problems)
        self.problems += [
            Problem(problem.file, problem.line + file.lines, problem.reason)
            for problem in found.problems[:room]
        ]
        self.conflicts += found.conflicts
        for name in ("lines", "rows", "unreadable"):
            setattr(file, name, getattr(file, name) + getattr(found.file, name))


def _says_something(row: RolloutRow) -> bool:
    """Tell whether a row counts: one whose verdict cannot be read still says that its rollout existed."""
    return row.problem is None or (row.task is not None and row.rollout is not None)


def _call_failures(seen: list[Seen]) -> None:
    """Whatever a masked row says: it lies among the failures."""
    for row, _, _ in seen:
        if row.disposition is Disposition.MASKED:
            row.disposition = Disposition.FAILED


def _digest(line: Line) -> int:
    return 0 if isinstance(line, Unusable) else zlib.crc32(bytes(line).strip()) or 1


@dataclass(frozen=True, slots=True)
class _Found:
    ledger: Ledger
    file: FileCount
    problems: list[Problem]
    conflicts: int
    size: int


def _read_alone(part: Part, failures_as_zero: Collection[str], fast: bool | None) -> _Found:
    reader = Reader(Ledger(), failures_as_zero=failures_as_zero, fast=fast)
    size = 0

    def count(line: int) -> None:
        nonlocal size
        size += line

    reader.read(part, count)
    return _Found(reader.ledger, reader.files[0], reader.problems, reader.conflicts, size)


def parts_of(runs: Sequence[RunFiles], jobs: int = 1, *, one_run: bool = False) -> list[Part]:
    """Return the parts to read, in order.

    Args:
        runs: The runs.
        jobs: Processes; with more than one, large plain files are cut into pieces.
        one_run: The files are shards of one run: equal indices are the same rollout.
    """
    folders = Counter(str(Path(run.name).parent) for run in runs if run.main is not None)
    parts = []
    for run in runs:
        digest = not one_run and folders[str(Path(run.name).parent)] > 1
        for role, path in run:
            for start, stop in _pieces(path, jobs):
                parts.append(
                    Part("" if one_run else run.name, role, path, start, stop, digest and role == MAIN)
                )
    return parts


def _size(part: Part) -> int:
    """Return how many bytes a part has on the disk."""
    if part.stop is not None:
        return part.stop - part.start
    return 0 if part.path == STDIN else Path(part.path).stat().st_size - part.start


def _pieces(path: Path | str, jobs: int) -> Iterator[tuple[int, int | None]]:
    if jobs == 1 or not is_plain(path):
        yield 0, None
        return
    size = Path(path).stat().st_size
    for start in range(0, max(size, 1), _PIECE):
        yield start, start + _PIECE if start + _PIECE < size else None
