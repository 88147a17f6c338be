"""mkdocs hook: a page that is not written yet leaves no broken link behind, and a new one is found."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s#]+\.md)(#[^)\s]*)?\)")

_PART = re.compile(r"<!-- with (\S+) -->\n.*?<!-- end with -->\n", re.DOTALL)


def on_config(config: Any) -> Any:
    """Leave missing pages that are still to come out of the navigation; put new ones under "More"."""
    config.nav = _without(config.nav, set(_missing(config)))
    pages = {page.relative_to(config.docs_dir).as_posix() for page in Path(config.docs_dir).rglob("*.md")}
    if unplaced := sorted(pages - set(named(config.nav))):
        config.nav.append({"More": unplaced})
    return config


def named(nav: Any) -> Iterator[str]:
    """Yield every page that a navigation names."""
    if isinstance(nav, str):
        yield nav
    for entry in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from named(entry)


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Leave out what only makes sense with a page that is still to come, and links to such pages."""
    missing = set(_missing(config))
    return unlinked(without_parts(markdown, missing), page.file.src_uri, missing)


def without_parts(markdown: str, missing: set[str]) -> str:
    """Return the page without its parts `<!-- with PAGE -->` ... `<!-- end with -->` of `missing` pages."""
    return _PART.sub(lambda part: "" if part[1] in missing else part[0], markdown)


def unlinked(markdown: str, page: str, missing: set[str]) -> str:
    """Return the page's text without the links to `missing` pages.

    Args:
        markdown: The text.
        page: The page's path in docs/, to which links are relative.
        missing: Paths in docs/.
    """

    def replace(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page), link[2]))
        return link[1] if target in missing else link[0]

    return _LINK.sub(replace, markdown)


def _missing(config: Any) -> list[str]:
    docs = Path(config.docs_dir)
    return [page for page in config.extra["pages_to_come"] if not (docs / page).is_file()]


def _without(nav: Any, missing: set[str]) -> Any:
    if isinstance(nav, list):
        kept = [_without(entry, missing) for entry in nav]
        return [entry for entry in kept if entry]
    if isinstance(nav, dict):
        entries = {title: _without(entry, missing) for title, entry in nav.items()}
        return {title: entry for title, entry in entries.items() if entry}
    return None if nav in missing else nav
