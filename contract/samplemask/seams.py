"""Patch points in a host, declared: check all, patch all, undo by identity. Standard library only.

A seam names a host function by module and attribute, with the exact parameters that the adapter
was written against. Nothing is patched until everything was checked.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samplemask.errors import SeamError

Function = Callable[..., Any]
MakeWrapper = Callable[[Function], Function]
_MARK = "__samplemask_seam__"


@dataclass(frozen=True)
class Seam:
    """One patch point.

    Attributes:
        module: The host's module, such as "verl.trainer.ppo.ray_trainer".
        attribute: A function, or "Class.method".
        parameters: Its exact parameter names, in order.
        source: The upstream file and version that it was checked against.
        why: What the wrapper changes, in one sentence.
        removable_when: The upstream change that makes it unnecessary.
        more_allowed: The host may have parameters after these; the wrapper passes them on unread.
    """

    module: str
    attribute: str
    parameters: tuple[str, ...]
    source: str
    why: str
    removable_when: str
    more_allowed: bool = False

    @property
    def name(self) -> str:
        """Full dotted name."""
        return f"{self.module}.{self.attribute}"


@dataclass(frozen=True)
class SeamStatus:
    """What `samplemask doctor` shows of one seam.

    Attributes:
        seam: The seam.
        active: True when samplemask's wrapper is in place in this process.
        problem: Why it cannot be patched, or None.
    """

    seam: Seam
    active: bool
    problem: str | None


def seam_status(seam: Seam) -> SeamStatus:
    """Look at one seam without changing anything; imports its module."""
    try:
        function = _function(seam)
    except SeamError as error:
        return SeamStatus(seam, False, str(error))
    if _seam_of(function) == seam:
        return SeamStatus(seam, True, None)
    return SeamStatus(seam, False, _problem(seam, function))


def check_seams(seams: Iterable[Seam]) -> None:
    """Check that every seam is what the adapter was written against.

    Raises:
        SeamError: One message that lists every seam that is not, with what to do.
    """
    problems = [status.problem for seam in seams if (status := seam_status(seam)).problem]
    if problems:
        raise SeamError("\n".join(str(problem) for problem in problems))


class Patches:
    """The wrappers of one adapter in this process. Thread-safe."""

    def __init__(self) -> None:
        self._installed: list[tuple[Seam, Function, Function]] = []
        # Reentrant: making a wrapper may import more of the host, whose plugin loader calls install() again.
        self._lock = threading.RLock()

    @property
    def seams(self) -> tuple[Seam, ...]:
        """The seams that are patched, in order."""
        return tuple(seam for seam, _, _ in self._installed)

    def install(self, wrappers: Iterable[tuple[Seam, MakeWrapper]]) -> None:
        """Check all seams, then patch all. Seams that are already patched are left alone.

        Args:
            wrappers: Pairs of a seam and a function that takes the original and returns the wrapper.

        Raises:
            SeamError: A seam does not fit; nothing was patched. Whatever `make_wrapper` raises
                leaves nothing patched either.
        """
        pairs = list(wrappers)
        # Before the lock: this imports the host, and a thread that imports it may wait here for the lock.
        check_seams(seam for seam, _ in pairs)
        with self._lock:
            already = len(self._installed)
            try:
                for seam, make_wrapper in pairs:
                    self._patch(seam, make_wrapper)
            except BaseException:
                self._undo(down_to=already)
                raise

    def uninstall(self) -> None:
        """Put every original back. Does nothing when nothing is patched.

        Raises:
            SeamError: Something else wrapped a seam later; nothing was undone.
        """
        with self._lock:
            for seam, _, wrapper in self._installed:
                current = _function(seam)
                if current is not wrapper:
                    raise SeamError(
                        f"{seam.name}: expected samplemask's own wrapper, found {_described(current)}. "
                        "Something wrapped it after samplemask; undo that first, then uninstall."
                    )
            self._undo(down_to=0)

    def _patch(self, seam: Seam, make_wrapper: MakeWrapper) -> None:
        original = _function(seam)
        if _seam_of(original) == seam:
            return
        wrapper = functools.wraps(original)(make_wrapper(original))
        setattr(wrapper, _MARK, seam)
        _set(seam, wrapper)
        self._installed.append((seam, original, wrapper))

    def _undo(self, down_to: int) -> None:
        while len(self._installed) > down_to:
            seam, original, _ = self._installed.pop()
            _set(seam, original)


def _problem(seam: Seam, function: Function) -> str | None:
    checked = f"(checked against {seam.source})"
    if _seam_of(function) is not None:
        return (
            f"{seam.name}: patched by another version of samplemask. "
            "Keep one samplemask installation in this environment and restart."
        )
    if _is_foreign(seam, function):
        return (
            f"{seam.name}: expected the host's own function {checked}, found {_described(function)}. "
            "Another plugin wrapped it; load samplemask before it, or remove one of the two."
        )
    found = tuple(inspect.signature(function).parameters)
    if (found[: len(seam.parameters)] if seam.more_allowed else found) != seam.parameters:
        return (
            f"{seam.name}: expected parameters ({', '.join(seam.parameters)}) {checked}, "
            f"found ({', '.join(found)}). The host has changed; install a version of it that "
            "docs/compatibility.md lists, or a newer samplemask."
        )
    return None


def _is_foreign(seam: Seam, function: Function) -> bool:
    """Tell whether the outermost function was made outside the host's own package.

    Ray itself wraps the methods of an actor class, so for those Ray's package counts as the host's.
    """
    code = getattr(function, "__code__", None)
    packages = [seam.module.partition(".")[0], *(["ray"] if "__ray_metadata__" in seam.attribute else [])]
    homes = [Path(home) for name in packages for home in getattr(sys.modules[name], "__path__", ())]
    if code is None or not homes:
        return code is None
    return not any(Path(code.co_filename).is_relative_to(home) for home in homes)


def _described(function: Function) -> str:
    code = getattr(function, "__code__", None)
    name = getattr(function, "__qualname__", repr(function))
    return (
        f"{name} from {code.co_filename}:{code.co_firstlineno}"
        if code
        else f"{name} ({type(function).__name__})"
    )


def _seam_of(function: Function) -> Seam | None:
    return getattr(function, _MARK, None)


def _owner(seam: Seam) -> tuple[Any, str]:
    try:
        owner: Any = importlib.import_module(seam.module)
        *path, name = seam.attribute.split(".")
        for part in path:
            owner = getattr(owner, part)
    except (ImportError, AttributeError) as error:
        raise SeamError(
            f"{seam.name}: expected it in the host (checked against {seam.source}), found: {error}. "
            "Install a version of the host that docs/compatibility.md lists, or a newer samplemask."
        ) from error
    return owner, name


def _function(seam: Seam) -> Function:
    owner, name = _owner(seam)
    function = vars(owner).get(name)
    if isinstance(function, classmethod):
        function = function.__func__
    if not callable(function):
        raise SeamError(
            f"{seam.name}: expected a function (checked against {seam.source}), found {function!r}. "
            "Install a version of the host that docs/compatibility.md lists, or a newer samplemask."
        )
    found: Function = function
    return found


def _set(seam: Seam, function: Function) -> None:
    owner, name = _owner(seam)
    is_classmethod = isinstance(vars(owner).get(name), classmethod)
    setattr(owner, name, classmethod(function) if is_classmethod else function)
