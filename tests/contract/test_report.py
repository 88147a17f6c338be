"""The audit for people: the table on a terminal and the page, with untrusted text in both."""

import io
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rollout_files import failure, row, write

from samplemask import ContractError
from samplemask.audit import Limit, Options, audit_files
from samplemask.progress import ProgressBar, progress_bar
from samplemask.report import Style, table, visible
from samplemask.report_html import page, write_page
from samplemask.rollouts import find_runs

HOSTILE = "<b onclick=x()>\x1b[2J\x07\u202e" + "y" * 300


@pytest.fixture
def audit(tmp_path):
    rows = [row(0, number, 1.0, agent="steady") for number in range(3)]
    rows += [
        row(1, number, 0.0, agent=HOSTILE, mask_sample=True, failure_kind=HOSTILE) for number in range(3)
    ]
    path = write(tmp_path, rows)
    write(tmp_path, [failure(2, 0, "agent_timeout")], "rollouts_failures.jsonl")
    with path.open("a") as stream:
        stream.write("<PLACEHOLDER ROW>\x1b[31m\n")
    return audit_files([path])


def test_the_table_says_what_the_audit_found(audit):
    text = table(audit)
    assert re.search(r"scored +3 +42\.9%", text)
    assert re.search(r"masked +3 +42\.9%", text)
    assert re.search(r"failed +1 +14\.3%", text)
    assert re.search(r"scored only +1\.0000", text)
    assert "agent_timeout: a policy can cause it, and it is always forgiven" in text
    assert ":7: not JSON" in text


def test_one_is_said_as_one_and_two_as_two(tmp_path):
    path = write(tmp_path, [row(0, 0, 1.0), row(0, 1, None, mask_sample=True)])
    with path.open("a") as stream:
        stream.write("torn\n")
    one = audit_files([path])
    assert re.search(r"all rows +1\.0000  1 lost rollout carries no reward and is not in it", table(one))
    assert "1  unreadable line\n" in table(one)
    assert "failures as they stand; 1 without reward" in page(one)
    assert one.to_json()["without_reward"] == 1
    with path.open("a") as stream:
        stream.write('torn\n{"reward": null, "_ng_failure_class": "judge_failed"}\n')
    two = audit_files([path])
    assert re.search(r"all rows +1\.0000  2 lost rollouts carry no reward and are not in it", table(two))
    assert "2  unreadable lines\n" in table(two)


def test_the_table_has_no_control_characters_without_colour(audit):
    assert all(char.isprintable() or char == "\n" for char in table(audit))


def test_colour_changes_nothing_but_colour(audit):
    coloured = table(audit, Style(colour=True))
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == table(audit)
    assert "\x1b[33m" in coloured


def test_an_empty_audit_is_a_table_without_numbers_that_were_not_measured(tmp_path):
    text = table(audit_files([write(tmp_path, [])]))
    assert "0 rollouts" in text
    assert re.search(r"scored only +-", text)


def test_too_many_losses_are_an_alarm_from_the_limit_on(tmp_path):
    def alarmed(total, lost):
        rows = [row(number, 0, 0.0, mask_sample=number < lost) for number in range(total)]
        return audit_files([write(tmp_path, rows)], options=Options(limit=Limit(0.5, 50))).alarm

    assert [alarmed(60, 60), alarmed(49, 49), alarmed(50, 25), alarmed(50, 26)] == [True, False, False, True]


@settings(deadline=None)
@given(st.text())
def test_visible_text_is_printable_and_bounded(text):
    shown = visible(text, 20)
    assert shown == "" or shown.isprintable()
    assert len(shown) <= 20 * len("\\U00000000")


def test_what_is_printable_and_short_stays_as_it_is():
    assert visible("Zimmer: 日本 é") == "Zimmer: 日本 é"


def test_the_page_escapes_everything_that_comes_from_a_rollout(audit):
    html = page(audit)
    assert "<b onclick" not in html
    assert "&lt;b onclick" in html
    assert "\x1b" not in html
    assert "y" * 100 not in html


def test_the_page_loads_nothing_and_runs_nothing(audit):
    html = page(audit)
    assert "http:" not in html
    assert "https:" not in html
    assert "<script" not in html
    assert "url(" not in html
    assert "default-src 'none'" in html


def test_every_tag_of_the_page_is_closed(audit):
    html = page(audit)
    for tag in ("section", "table", "svg", "div", "ul", "g", "tr", "main"):
        assert len(re.findall(rf"<{tag}[ >]", html)) == html.count(f"</{tag}>"), tag


def test_a_page_of_nothing_is_a_page(tmp_path):
    assert "nothing measured" in page(audit_files([write(tmp_path, [])]))


def test_huge_rewards_still_make_a_page(tmp_path):
    html = page(audit_files([write(tmp_path, [row(0, 0, 1.7e308), row(0, 1, -1.7e308)])]))
    assert "nan" not in html


def test_times_that_are_no_dates_still_make_a_page(tmp_path):
    rows = [row(0, 0, 1.0, response={"created_at": 1.79e12}), row(0, 1, 1.0, response={"created_at": 9e15})]
    assert "9,000,000,000,000,000" in page(audit_files([write(tmp_path, rows)]))


def test_a_page_that_cannot_be_finished_leaves_the_old_one(audit, tmp_path, monkeypatch):
    target = tmp_path / "page.html"
    target.write_text("old")

    def fail(audit):
        raise KeyboardInterrupt

    monkeypatch.setattr("samplemask.report_html.page", fail)
    with pytest.raises(KeyboardInterrupt):
        write_page(audit, target)
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.glob("*page.html*")] == ["page.html"]


def test_a_place_that_cannot_be_written_is_named(audit, tmp_path):
    with pytest.raises(ContractError, match="missing"):
        write_page(audit, tmp_path / "missing" / "page.html")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_progress_bar_shows_itself_after_a_second_and_goes_away(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    terminal = Terminal()
    bar = ProgressBar(2_000_000, terminal)
    bar(500_000)
    assert terminal.getvalue() == ""
    now[0] += 2
    bar(500_000)
    assert " 50%" in terminal.getvalue()
    bar.close()
    assert terminal.getvalue().endswith("\r\x1b[K")


def test_there_is_no_progress_bar_where_nobody_looks(tmp_path):
    runs = find_runs([write(tmp_path, [])])
    assert progress_bar(runs, io.StringIO()) is None
    assert progress_bar(runs, Terminal()) is not None
