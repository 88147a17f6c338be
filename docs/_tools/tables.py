"""Tables of the guide that are made from the code, between markers in the pages.

python docs/_tools/tables.py            writes them
python docs/_tools/tables.py --check    says which page is not current; 1 when there is one
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1]
END = "<!-- end of table -->"
_REGION = re.compile(r"<!-- table: (?P<name>[^>]+?) -->\n.*?" + re.escape(END), re.DOTALL)


def as_table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table."""
    columns = list(head)
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    return "\n".join(
        lines + ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    )


def seams_table(adapter: str) -> str:
    """Return the table of an adapter's seams, in the order of its module `host_seams`."""
    from samplemask.seams import Seam

    declared = vars(import_module(f"{adapter}.host_seams")).values()
    groups = [value if isinstance(value, tuple) else (value,) for value in declared]
    seams = [seam for group in groups for seam in group if isinstance(seam, Seam)]
    rows = ((f"`{seam.module}`<br>`{seam.attribute}`", seam.why, seam.removable_when) for seam in seams)
    return as_table(["Patched function", "What the wrapper does", "Not needed any more when"], rows)


def options_table(policy: str) -> str:
    """Return the table of a policy's own options, from its docstring and its defaults."""
    module, _, name = policy.rpartition(".")
    model = getattr(import_module(module), name)
    inherited = {field for base in model.__mro__[1:] for field in getattr(base, "model_fields", {})}
    own = {field: info for field, info in model.model_fields.items() if field not in inherited}
    said = attributes(model)
    rows = ((f"`{field}`", f"`{_default(info.default)}`", said[field]) for field, info in own.items())
    return as_table(["Option", "Default", "Meaning"], rows)


def kinds_table(_: str) -> str:
    """Return the shared vocabulary of failure kinds, as one line."""
    from samplemask.failure_kinds import FAILURE_KINDS

    return ", ".join(f"`{kind}`" for kind in sorted(FAILURE_KINDS))


def attributes(model: type) -> dict[str, str]:
    """Return the `Attributes:` of a Google docstring, one line each."""
    section = inspect.getdoc(model).partition("Attributes:\n")[2].partition("\n\n")[0]  # type: ignore[union-attr]
    parts = re.split(r"^ {4}(\w+): ", section, flags=re.MULTILINE)[1:]
    return {name: " ".join(text.split()) for name, text in zip(parts[::2], parts[1::2], strict=True)}


def code_block(path: str) -> str:
    """Return a file of the repository, without its imports of the future, as a block of code."""
    code = (DOCS.parent / path).read_text(encoding="utf-8")
    return "```python\n" + code.replace("from __future__ import annotations\n\n", "") + "```"


TABLES: Mapping[str, Callable[[str], str]] = {
    "seams": seams_table,
    "options": options_table,
    "failure kinds": kinds_table,
    "code": code_block,
}


def current(text: str) -> str:
    """Return a page's text with its tables made anew; tables of other commands stay as they are."""

    def replace(region: re.Match[str]) -> str:
        name, _, argument = region["name"].partition(" of ")
        if name not in TABLES:
            return region[0]
        return f"<!-- table: {region['name']} -->\n\n{TABLES[name](argument)}\n\n{END}"

    return _REGION.sub(replace, text)


def with_table(text: str, name: str, table: str) -> str:
    """Return a page's text with the table called `name` replaced; for commands that run a host."""
    pattern = re.compile(rf"(<!-- table: {re.escape(name)} -->\n).*?{re.escape(END)}", re.DOTALL)
    replaced, count = pattern.subn(lambda region: f"{region[1]}\n{table}\n\n{END}", text)
    if count != 1:
        raise ValueError(f"expected one '<!-- table: {name} -->' ... '{END}' in the page, found {count}")
    return replaced


def stale_pages(docs: Path = DOCS) -> list[Path]:
    """Return the pages whose tables are not what the code says."""
    return [page for page in sorted(docs.rglob("*.md")) if current(_read(page)) != _read(page)]


def _read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def _default(value: Any) -> str:
    """Return a default as a person writes it in YAML."""
    words: dict[Any, str] = {None: "null", True: "true", False: "false", frozenset(): "[]"}
    return words[value] if value is None or isinstance(value, (bool, frozenset)) else str(value)


def main(arguments: list[str]) -> int:
    """Write the tables, or check them."""
    stale = stale_pages()
    for page in stale:
        if "--check" not in arguments:
            page.write_text(current(_read(page)), encoding="utf-8")
        print(f"{page.relative_to(DOCS)}: {'not current' if '--check' in arguments else 'written'}")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
