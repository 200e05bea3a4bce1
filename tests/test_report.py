"""The report: one file that says what the daemon knows, shows hostile text as text, and loads nothing from anywhere."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from fake_daemon import Served, serving
from figure_data import RunsToDraw, frozen, lineage, measured, run_of

from tttctl.__main__ import run as tttctl
from tttctl.figures import curves, facts
from tttctl.figures.history import History
from tttctl.figures.markup import element, page, python, table

HOSTILE = "</code></pre><script>alert(1)</script><img src=http://evil.example/x onerror=alert(1)> &amp; \x1b[31m\u202e"

MEASURE = """
onload = () => {
  const wider = (it) => it.scrollWidth - it.clientWidth
  const measured = [...document.querySelectorAll('iframe')].map(({contentDocument: page}) =>
    [wider(page.documentElement), [...page.querySelectorAll('.scroll')].map(wider)])
  document.querySelector('p').textContent = JSON.stringify(measured)
}
"""
"""By how much each framed page is wider than its window, and each of its tables than its card."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """With `first`, which trained; its program and its reason are hostile."""
    runs = RunsToDraw()
    runs.program = f"def run(seed=42):\n    return '{HOSTILE}'\n"
    first = run_of("first", 15, state="failed", reason=HOSTILE, figure="overlap")
    runs.add(first, measured(), **{"trainer.lr": 3e-4, "prompt.style": HOSTILE})
    with serving(tmp_path_factory.mktemp("daemon") / "tttdd.sock", runner=runs) as served:
        yield served


@pytest.fixture(scope="module")
def file(runs: Served, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "first.html"
    assert tttctl(["--socket", str(runs.socket), "report", "first", "-o", str(path), "--verify"]) == 0
    return path


class Read(HTMLParser):
    """The document's elements, and its text outside of <style>."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text, self._inside = "", ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = tag
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += "" if self._inside == "style" else data


@pytest.fixture(scope="module")
def read(file: Path) -> Read:
    return Read(file.read_text())


@pytest.mark.parametrize(
    "said",
    [
        *("Erdős minimum overlap", "Best C5", "0.39100346", "the best is 0.109 better", "0.010203 short of it"),
        *("1.0308 in the first", "sampled in step 3 from release 2", "Valid programs: 51.2%"),
        *("exact agrees", "Judged again for this report", "byte for byte", "SHA-256 of what it returned"),
        *("0.06671", "trainer moved", "KL sampler", "constraint", "trainer.lr", "model.source"),
        "tttctl submit erdos_min_overlap --steps 15 --groups 8 --rollouts 64 --seed 0",
        *("tttctl verify first 5\n", "tttctl verify --task erdos_min_overlap first.py"),
    ],
)
def test_the_report_says(read: Read, said: str) -> None:
    assert said in read.text


def test_every_curve_is_an_image_inside_the_file(read: Read) -> None:
    images = [attributes for tag, attributes in read.elements if tag == "img"]
    assert len(images) == 8
    for image in images:
        assert image["alt"] and (image["src"] or "").startswith("data:image/svg+xml;base64,")


def test_hostile_text_is_text(read: Read) -> None:
    assert read.text.count("<script>alert(1)</script>") == 3  # the reason, the program, a setting
    assert not {"script", "link", "iframe", "object", "embed", "base", "form"} & {tag for tag, _ in read.elements}
    assert not [name for _, attributes in read.elements for name in attributes if name.startswith("on")]
    assert "\x1b" not in read.text and "\u202e" not in read.text and "\\u202e" in read.text


def test_nothing_is_loaded_from_anywhere(file: Path, read: Read) -> None:
    for _, attributes in read.elements:
        assert not [value for name, value in attributes.items() if name in ("href", "srcset", "background", "style")]
    (style,) = re.findall(r"<style>(.*?)</style>", file.read_text(), re.DOTALL)
    assert "url(" not in style and "@import" not in style
    policy = next(a["content"] for _, a in read.elements if a.get("http-equiv") == "Content-Security-Policy")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy and policy.startswith("default-src 'none'; img-src data:; ") and f"'sha256-{digest}'" in policy
    for svg in re.findall(r"base64,([^\"]+)", file.read_text()):
        assert not re.search(rb"(?:href|src)=\"(?!#)", base64.b64decode(svg))


def test_a_browser_without_a_network_draws_the_whole_report(file: Path, tmp_path: Path) -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium: apt-get install chromium")
    log = tmp_path / "net.json"
    switches = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    switches += ["--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={tmp_path / 'profile'}"]
    shown = [f"--screenshot={tmp_path / 'seen.png'}", "--window-size=400,1200", "--dump-dom", f"--log-net-log={log}"]
    done = subprocess.run(
        [chromium, *switches, *shown, file.as_uri()], capture_output=True, text=True, timeout=60, check=True
    )
    asked = set(re.findall(r'"url":"https?://([^/"]+)', log.read_text()))
    assert not [host for host in asked if host in file.read_text()]  # the others are the browser's own business
    assert "evil.example" in file.read_text()
    dom = Read(done.stdout)
    assert "How to reproduce" in dom.text and "script" not in {tag for tag, _ in dom.elements}
    assert (tmp_path / "seen.png").read_bytes().startswith(b"\x89PNG")


def test_a_table_of_steps_fits_a_wide_page_and_scrolls_within_its_card_on_a_narrow_one(
    file: Path, tmp_path: Path
) -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium: apt-get install chromium")
    shown = re.sub(r"<meta[^>]*Content-Security-Policy[^>]*>", "", file.read_text())  # which forbids to measure
    frames = [f'<iframe width={width} height=600 srcdoc="{escape(shown)}"></iframe>' for width in (400, 1200, 1400)]
    (tmp_path / "measure.html").write_text(f"<!doctype html>{''.join(frames)}<p></p><script>{MEASURE}</script>")
    switches = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", f"--user-data-dir={tmp_path / 'p'}"]
    page = (tmp_path / "measure.html").as_uri()
    done = subprocess.run(
        [chromium, *switches, "--dump-dom", page], capture_output=True, text=True, timeout=60, check=True
    )
    narrow, *wide = json.loads(done.stdout.rpartition("<p>")[2].partition("</p>")[0])
    for page_overflows, tables in (narrow, *wide):
        assert page_overflows == 0 and len(tables) >= 4
    assert max(narrow[1]) > 100, "it scrolls"
    assert [max(tables) for _, tables in wide] == [0, 0]


def test_a_best_that_is_rejected_when_judged_again_is_told_in_the_report_and_by_the_exit_status(
    runs: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs.runner, "verified_valid", False)
    monkeypatch.setattr(curves, "PANELS", {})  # drawn once in this file is enough
    monkeypatch.setattr(runs.runner, "kept", None)  # and what it returned is not kept: the report does without
    path = tmp_path / "a.html"
    assert tttctl(["--socket", str(runs.socket), "report", "first", "-o", str(path), "--verify", "--json"]) == 1
    said = capsys.readouterr()
    assert json.loads(said.out) == {"run": "first", "files": [str(path)], "verified": False}
    assert "node 5 is rejected (constraint)" in said.err and "the report goes without that figure" in said.err
    text = Read(path.read_text()).text
    assert "Rejected: constraint." in text and "byte for byte" not in text


def test_a_report_has_its_name_and_its_refusals(
    runs: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert tttctl(["--socket", str(runs.socket), "report", "first", "-o", "a.pdf"]) == 2
    assert "-o: 'a.pdf' does not end in .html" in capsys.readouterr().err
    assert tttctl(["--socket", str(runs.socket), "report", "nobody"]) == 2
    assert not list(tmp_path.iterdir())


def test_the_facts_of_a_run_without_training_are_those_of_the_base_model() -> None:
    rows = frozen(measured(arm=1))
    run = run_of("base", 15, mode="search")
    said = " ".join(facts.training(History(run, rows), lineage()[-1]))
    assert "Nothing: this run's mode is search" in said and "from the base model (release 0)" in said
    assert "nats a token" not in said


def test_the_facts_of_one_step_are_said_once() -> None:
    rows = measured()[:1]
    said = list(facts.training(History(run_of("new", 1), rows), lineage()[-1]))
    assert said[0] == f"Mean reward of the one step's rollouts: {rows[0].metrics['tttd/reward_mean']:.5g}."
    assert said[1] == f"Valid programs: {rows[0].metrics['tttd/valid_fraction']:.1%} of the one step's rollouts."
    assert not [line for line in said[:3] if "first" in line or "last" in line]


def test_the_distance_to_the_target_follows_the_tasks_direction() -> None:
    best = lineage()[-1]
    assert facts.to_target(run_of("a", 1, target=0.39), best) == "0.0010035 short of it"
    assert facts.to_target(run_of("a", 1, target=0.3, direction="higher"), best) == "reached"
    assert facts.to_target(run_of("a", 1, target=None), best) == "the task has none"
    worse = msgspec.structs.replace(best, objective=0.6)
    assert facts.gain(run_of("a", 1), worse) == "nothing better was found"


def test_markup_is_built_and_never_pasted() -> None:
    built = page("<t>", "p{}", element("p", "1 < 2 ", element("b", "&"), " tail"), table(["<a>"], [["<b>"]])).decode()
    assert "<p>1 &lt; 2 <b>&amp;</b> tail</p>" in built and "<title>&lt;t&gt;</title>" in built
    assert "&lt;a&gt;" in built and "&lt;b&gt;" in built
    source = "@@ not <python> 'é' @@\n\n\x00"
    assert "".join(python(source).itertext()) == source.replace("\x00", "\\x00")
