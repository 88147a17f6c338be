"""The guide: its tables are what the code says, its Python runs, its site loads nothing from elsewhere."""

import re
import runpy
from pathlib import Path

import pytest

from samplemask.cli import main

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
if not (ROOT / "mkdocs.yml").is_file():
    pytest.skip("the guide is not part of this source distribution", allow_module_level=True)
tables, hook, check_site = (
    runpy.run_path(str(DOCS / "_tools" / f"{name}.py")) for name in ("tables", "hook", "check_site")
)
PAGES = sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))
HOST_PAGES = {"nemo-rl.md", "add-a-host.md"}
HOSTS = {"torch", "verl", "nemo_rl", "nemo_gym", "trl", "ray"}
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES)
def test_tables_are_what_the_code_says(page):
    text = (DOCS / page).read_text(encoding="utf-8")
    if "seams of samplemask_nemo_rl" in text:
        pytest.importorskip("wrapt")
    assert tables["current"](text) == text, "run: python docs/_tools/tables.py"


@pytest.mark.parametrize("page", [page for page in PAGES if page not in HOST_PAGES])
def test_the_python_of_a_page_runs_from_top_to_bottom(page):
    namespace = {}
    for block in _BLOCK.findall((DOCS / page).read_text(encoding="utf-8")):
        try:
            exec(compile(block, page, "exec"), namespace)
        except ModuleNotFoundError as error:
            if error.name not in HOSTS:
                raise
            pytest.skip(f"{page} shows {error.name}, which is not installed here")


def test_the_audit_on_the_call_page_is_what_the_command_prints(capsys):
    page = (DOCS / "start" / "on-call.md").read_text(encoding="utf-8")
    excerpt = re.search(r"<!-- printed by: samplemask audit (\S+) -->\n\n```text\n(.*?)```", page, re.DOTALL)
    assert main(["audit", str(ROOT / excerpt[1])]) == 0
    assert excerpt[2] in capsys.readouterr().out


def test_pages_that_code_and_messages_name_are_there_or_announced():
    announced = set(
        re.findall(r"^    - (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    )
    for folder in ("contract", "adapters", "integration", "benchmarks"):
        for source in (ROOT / folder).rglob("*.py"):
            for page in re.findall(r"\bdocs/([\w-]+\.md)", source.read_text(encoding="utf-8")):
                assert page in announced or (DOCS / page).is_file(), f"{source} names docs/{page}"


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_to_files_of_the_repository_lead_somewhere(name):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / name).read_text(encoding="utf-8")):
        assert (ROOT / target).exists(), f"{name} links to {target}"


def test_a_table_that_nobody_knows_is_left_to_its_own_command():
    text = "<!-- table: worked group -->\n\n| a |\n\n<!-- end of table -->"
    assert tables["current"](text) == text
    assert tables["with_table"](text, "worked group", "| b |") == text.replace("| a |", "| b |")


def test_an_edited_table_is_found_and_mended():
    text = "<!-- table: failure kinds -->\n\nold\n\n<!-- end of table -->"
    mended = tables["current"](text)
    assert "`session_lost`" in mended
    assert tables["current"](mended) == mended


def test_the_options_of_a_subclass_are_only_its_own():
    table = tables["options_table"]("samplemask_verl.config.VerlPolicy")
    assert [line.split("`")[1] for line in table.splitlines()[2:]] == ["denominator", "max_refills", "verify"]


def test_links_to_pages_to_come_become_text_and_others_stay():
    text = "[a](../audit.md#schema), [b](verl.md)"
    assert hook["unlinked"](text, "start/verl.md", {"audit.md"}) == "a, [b](verl.md)"


def test_every_page_that_a_navigation_names_is_found_however_deep():
    nav = ["index.md", {"Start": [{"verl": "start/verl.md"}, "a.md"]}, {"b": "b.md"}]
    assert list(hook["named"](nav)) == ["index.md", "start/verl.md", "a.md", "b.md"]


def test_a_part_about_a_page_to_come_is_left_out_until_it_is_there():
    text = "a\n<!-- with x.md -->\nb\n<!-- end with -->\nc\n"
    assert hook["without_parts"](text, {"x.md"}) == "a\nc\n"
    assert hook["without_parts"](text, set()) == text


@pytest.mark.parametrize(
    ("html", "found"),
    [
        ('<script src="https://elsewhere.example/a.js"></script>', 1),
        ('<link rel="stylesheet" href="//elsewhere.example/a.css">', 1),
        ('<a href="http://github.com/x">', 1),
        ('<a href="https://elsewhere.example/x">', 1),
        ('<script src="assets/a.js"></script><a href="https://github.com/x"><a href="verl.html#y">', 0),
    ],
)
def test_a_site_that_loads_or_links_elsewhere_is_refused(html, found):
    assert len(list(check_site["problems"](html))) == found
