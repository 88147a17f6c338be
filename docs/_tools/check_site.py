"""Checks the built site: it loads nothing from elsewhere, and links only to hosts that we mean.

python docs/_tools/check_site.py SITE
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

LINKED_HOSTS = {"github.com", "arxiv.org", "squidfunk.github.io"}
"""Hosts that a page may link to; the last one stands in the theme's footer."""

_LOADED = re.compile(r"<(?:script|img|iframe|source)[^>]*\ssrc=[\"']?([^\"'\s>]+)")
_STYLES = re.compile(
    r"<link(?=[^>]*rel=[\"']?(?:stylesheet|preconnect|preload|icon))[^>]*href=[\"']?([^\"'\s>]+)"
)
_LINKS = re.compile(r"<a[^>]*href=[\"']?([^\"'\s>]+)")


def problems(page: str) -> Iterator[str]:
    """Yield what is wrong with one page's HTML."""
    for address in [*_LOADED.findall(page), *_STYLES.findall(page)]:
        if urlsplit(address).netloc:
            yield f"loads {address}: nothing may come from elsewhere"
    for address in _LINKS.findall(page):
        parts = urlsplit(address)
        if parts.netloc and (parts.scheme != "https" or parts.netloc not in LINKED_HOSTS):
            yield f"links to {address}: expected https and one of {', '.join(sorted(LINKED_HOSTS))}"


def main(site: Path) -> int:
    """Print every problem; 1 when there is one, or when there is no site."""
    pages = sorted(site.rglob("*.html"))
    found = [
        f"{page.relative_to(site)}: {line}" for page in pages for line in problems(page.read_text("utf-8"))
    ]
    print(*found, sep="\n", end="\n" if found else "")
    print(f"{len(pages)} pages, {len(found)} problems")
    return 1 if found or not pages else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
