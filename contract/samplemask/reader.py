"""Reads the files of runs into a ledger and keeps account of what could not be read."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from samplemask.ledger import FAILURES, MAIN, Ledger
from samplemask.rollouts import Line, RunFiles, read_lines
from samplemask.rows import UnreadableLineError, make_decode, row_of

MAX_LISTED: Final = 100_000
"""Most unreadable lines that are kept with their reasons, over all files; all are counted."""

Progress = Callable[[int], None]
"""Called after each line with its length in bytes."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One line that could not be read."""

    file: str
    line: int
    reason: str


@dataclass(slots=True)
class FileCount:
    """What one file held, in lines that are not blank.

    Attributes:
        path: The file.
        role: "main", "failures" or "inputs".
        rows: Lines that were read.
        unreadable: Lines that were not.
    """

    path: str
    role: str
    rows: int = 0
    unreadable: int = 0


class Reader:
    """Reads files into a ledger and keeps what it could not read."""

    def __init__(
        self, ledger: Ledger, *, failures_as_zero: Collection[str] = (), fast: bool | None = None
    ) -> None:
        self.files: list[FileCount] = []
        self.problems: list[Problem] = []
        self.conflicts = 0
        self._ledger = ledger
        self._decode = make_decode(fast)
        self._failures_as_zero = failures_as_zero

    @property
    def unreadable(self) -> int:
        """Lines that could not be read."""
        return sum(file.unreadable for file in self.files)

    def read(self, run: RunFiles, progress: Progress | None = None) -> None:
        """Read the files of one run."""
        for role, path in run:
            file = FileCount(str(path), role)
            self.files.append(file)
            for line in read_lines(path):
                if line.problem is not None:
                    self._report(file, line.number, line.problem)
                    continue
                try:
                    self._book(line, file, run.name)
                except UnreadableLineError as error:
                    self._report(file, line.number, str(error))
                if progress is not None:
                    progress(len(line.text))

    def _book(self, line: Line, file: FileCount, run: str) -> None:
        row = row_of(self._decode(line.text), failures_as_zero=self._failures_as_zero)
        if file.role not in (MAIN, FAILURES):
            self._ledger.expect(row, run=run)
        elif row.problem is None or (row.task is not None and row.rollout is not None):
            # A row whose verdict cannot be read still says that its rollout existed: it is unknown.
            self._ledger.add(row, run=run, role=file.role, line=line.number)
        if row.problem is not None and file.role in (MAIN, FAILURES):
            self._report(file, line.number, row.problem)
            return
        file.rows += 1
        self.conflicts += row.verdict is not None and row.verdict.conflict

    def _report(self, file: FileCount, number: int, reason: str) -> None:
        file.unreadable += 1
        if len(self.problems) < MAX_LISTED:
            self.problems.append(Problem(file.path, number, reason))
