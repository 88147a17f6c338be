"""The audit's HTML page in a real Chromium: wide and narrow, light and dark, with hostile text in it."""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest

from samplemask.audit import audit_files
from samplemask.report_html import write_page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")

HOSTILE = "<script>document.title='owned'</script><img src=x onerror=alert(1)>\x1b[31m\u202e" + "x" * 500
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--allow-file-access-from-files",
    "--virtual-time-budget=5000",
]

# A page that shows the report in a frame and writes down what it measures there.
PROBE = """<!doctype html><body><pre id="found"></pre>
<iframe id="f" src="page.html" width="WIDTH" height="3000">
</iframe><script>
onload = () => {
  const page = document.getElementById("f").contentDocument, root = page.documentElement;
  const boxes = [...page.querySelectorAll("section, .tile, header, svg")].map(e => e.getBoundingClientRect());
  document.getElementById("found").textContent = JSON.stringify({
    title: page.title, scrollWidth: root.scrollWidth, clientWidth: root.clientWidth,
    sticksOut: boxes.filter(box => box.right > root.clientWidth + 1 || box.left < -1).length,
    scripts: page.querySelectorAll("script, img, iframe, link").length,
    charts: page.querySelectorAll("svg").length,
    emptyCharts: [...page.querySelectorAll("svg")].filter(e => e.getBoundingClientRect().height < 40).length,
    sections: [...page.querySelectorAll("h2")].map(e => e.textContent),
    background: getComputedStyle(page.body).backgroundColor, ink: getComputedStyle(page.body).color,
    text: page.body.innerText,
  });
};
</script></body>"""


def rows():
    for number in range(200):
        masked = number % 9 == 0
        yield {
            "_ng_task_index": number // 8,
            "_ng_rollout_index": number % 8,
            "agent_ref": {"name": HOSTILE if number % 2 else "steady_agent"},
            "reward": 0.0 if masked else number % 3 / 2,
            "mask_sample": masked,
            "failure_kind": HOSTILE if masked else None,
            "response": {"created_at": 1.79e9 + 60 * number, "usage": {"output_tokens": 100 + number * 7}},
        }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    path = folder / "rollouts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows()) + "<PLACEHOLDER ROW>\n")
    write_page(audit_files([path]), folder / "page.html")
    return folder


def measured(folder: Path, width: int, *more: str) -> dict:
    probe = folder / f"probe{width}.html"
    probe.write_text(PROBE.replace("WIDTH", str(width)))
    profile = folder / f"profile{width}{len(more)}"
    command = [CHROMIUM, *FLAGS, *more, f"--user-data-dir={profile}", "--dump-dom", probe.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr[-2000:]
    assert found.group(1), f"the probe wrote nothing: {done.stderr[-2000:]}"
    return json.loads(unescape(found.group(1)))


@pytest.mark.parametrize("width", [340, 600, 1200])
def test_the_page_fits_any_width(folder, width):
    page = measured(folder, width)
    assert page["scrollWidth"] <= page["clientWidth"]
    assert page["sticksOut"] == 0
    assert page["charts"] >= 4
    assert page["emptyCharts"] == 0
    assert {"Over time", "Mean reward over time", "Is masking safe here?"} <= set(page["sections"])


def test_text_from_rollouts_is_shown_and_never_run(folder):
    page = measured(folder, 1200)
    assert page["title"] == "Rollout audit"
    assert page["scripts"] == 0
    assert "<script>document.title='owned'</script>" in page["text"]
    assert "\x1b" not in page["text"]
    assert "\u202e" not in page["text"]
    assert "x" * 200 not in page["text"]


def test_the_page_follows_the_readers_colour_scheme(folder):
    light = measured(folder, 1200)
    dark = measured(folder, 1200, "--blink-settings=preferredColorScheme=0")
    assert (light["background"], dark["background"]) == ("rgb(246, 247, 249)", "rgb(20, 23, 27)")
    assert light["ink"] != dark["ink"]
