"""A run's report: one HTML file with everything that the daemon knows of it, which opens anywhere and loads nothing.

Report -> sections: what was found, what training did, curves, best program, proofs, metrics, configuration, commands
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree.ElementTree import Element

import msgspec
from matplotlib.figure import Figure

from tttctl.figures import curves, facts, lineage, style
from tttctl.figures.history import FROZEN, History
from tttctl.figures.markup import element, image, page, python, python_styles, table
from tttctl.render import duration, number
from tttdd.protocol import NodeInfo, RunInfo, TaskInfo, Value, Verified

STYLE = Path(__file__).with_name("page.css")
MODES = {
    "discover": "search and training",
    "search": "search with the model as it is",
    "best-of-n": "every rollout starts from the starter, the model stays as it is",
}
PROOF = """\
After each release, engine and trainer are asked for the log-probabilities of the same tokens. The gap is their mean \
absolute difference in nats, which may not exceed the limit; the floor is the same under the base model. The share is \
how much of the trainer's last move the engine has made; - where that move is too small to tell."""
COLUMNS = {
    "reward mean": "tttd/reward_mean",
    "reward max": "tttd/reward_max",
    "valid": "tttd/valid_fraction",
    "cut": "tttd/truncated_fraction",
    "distinct": "tttd/distinct_programs",
    "best": "archive/best_objective",
    "KL base": "train/kl_base",
    "KL sampler": "train/sampler_trainer_gap",
    "seconds": "time/step",
}


class Report(msgspec.Struct, frozen=True):
    history: History
    task: TaskInfo | None
    """None for a task that is no longer there."""
    line: list[NodeInfo]
    """From the root to the best program, with its source."""
    identity: dict[str, Value]
    drawing: Callable[[], Figure] | None
    """Of what the best program returned."""
    verified: Verified | None
    """The best program judged again, if that was asked for."""
    version: str

    @property
    def best(self) -> NodeInfo:
        return self.line[-1]


def document(report: Report) -> bytes:
    run = report.history.run
    sections = [_summary, _training, _figures, _program, _certificate, _proofs, _metrics, _configuration, _commands]
    body = [_header(report), *(part for section in sections for part in section(report))]
    foot = element("footer", f"Written by tttctl {report.version} from the daemon's records. Steps count from 1.")
    return page(f"{run.run}: report", STYLE.read_text() + python_styles(), *body, foot)


def _header(report: Report) -> Element:
    run, task = report.history.run, report.task
    name = element("h1", run.run, element("span", run.state, class_=f"state {run.state}"))
    reason = [element("p", run.reason)] if run.reason else []
    made = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(run.created))
    return element(
        "header", name, element("p", task.title if task else run.task), *reason, element("p", f"Created {made}")
    )


def _summary(report: Report) -> Iterator[Element]:
    yield element("h2", "What was found")
    yield element("dl", *(_card(*card) for card in _cards(report)), class_="cards")


def _card(name: str, value: str, note: str) -> Element:
    return element("div", element("dt", name), element("dd", value, *([element("small", note)] if note else [])))


def _cards(report: Report) -> Iterator[tuple[str, str, str]]:
    run, best = report.history.run, report.best
    found = f"found in step {best.step + 1}" if best.parent is not None else "given at the start"
    if run.kind == "external":
        yield "Best reward", number(best.reward, 9), f"as its harness reported; node {best.node}, {found}"
    else:
        yield from _judged(run, best, found)
    yield "Mode", run.mode, MODES[run.mode]
    model = str(report.identity.get("model.source") or "-").rstrip("/").rsplit("/", 1)[-1]
    yield "Model", model, str(report.identity.get("model.dtype") or "")
    grid = f"{run.grid.groups} × {run.grid.rollouts} rollouts each"
    yield "Steps", f"{run.step} of {run.steps}", grid
    seconds = report.history.series("time/step").values
    yield "Seed", str(run.seed), f"release {run.release}, {duration(sum(seconds))} of steps"


def _judged(run: RunInfo, best: NodeInfo, found: str) -> Iterator[tuple[str, str, str]]:
    name, starter = run.objective_name or "objective", run.starter
    yield f"Best {name}", number(best.objective, 9), f"{run.direction} is better; node {best.node}, {found}"
    yield "Starter", number(starter.objective if starter else None, 9), facts.gain(run, best)
    yield "Target", number(run.target, 9), facts.to_target(run, best)
    yield "Best reward", number(best.reward, 7), "" if starter is None else f"starter {number(starter.reward, 7)}"


def _training(report: Report) -> Iterator[Element]:
    yield element("h2", "What training did")
    yield element("ul", *(element("li", line) for line in facts.training(report.history, report.best)))


def _figures(report: Report) -> Iterator[Element]:
    yield element("h2", "Curves")
    history = report.history
    shown = [name for name in curves.PANELS if history.trains or name not in ("divergence", "proof")]
    drawn = [_figure(lambda name=name: curves.single(name, history), f"{name} over the steps") for name in shown]
    yield element("div", *drawn, class_="figures")
    yield element("h3", "Where the best program comes from")
    yield _wide(lambda: lineage.single(history, report.line), "objective of the best program's ancestors")


def _figure(draw: Callable[[], Figure], words: str) -> Element:
    return image(style.render(draw, "svg"), words)


def _wide(draw: Callable[[], Figure], words: str) -> Element:
    made = _figure(draw, words)
    made.set("class", "wide")
    made.set("tabindex", "0")  # it scrolls where the page is narrow
    return made


def _program(report: Report) -> Iterator[Element]:
    best = report.best
    yield element("h2", "Best program")
    if report.drawing:
        yield _wide(report.drawing, "what the best program returned")
    yield element("h3", f"Node {best.node}")
    yield python(best.program) if report.history.run.kind == "task" else element("pre", best.program, tabindex="0")
    if best.output:
        yield element("h3", "It printed")
        yield element("pre", best.output, tabindex="0")


def _certificate(report: Report) -> Iterator[Element]:
    best = report.best
    yield element("h2", "Certificate")
    rows = [["objective", _shown(best.objective)], ["reward", _shown(best.reward)]]
    rows += [[name.replace("_", " "), _shown(value)] for name, value in best.certificate.items()]
    rows += [["SHA-256 of what it returned", best.artifact_sha256 or "not kept"]]
    yield table(["the judge's verdict", "value"], rows, words=2)
    if report.verified:
        yield from _again(report.verified, best)
    elif report.history.run.kind == "task":
        yield element("p", "It was not judged again for this report; the last section has the command.", class_="soft")


def _again(verified: Verified, best: NodeInfo) -> Iterator[Element]:
    yield element("h3", "Judged again for this report, in a fresh sandbox")
    if not verified.valid:
        yield element("p", f"Rejected: {verified.reason}. {verified.detail}", class_="bad")
        return
    told = f"Valid: objective {_shown(verified.objective)}, reward {_shown(verified.reward)}."
    yield element("p", told, class_="good")
    if best.artifact_sha256 and verified.artifact_sha256:
        same = verified.artifact_sha256 == best.artifact_sha256
        other = f"It returned something else: SHA-256 {verified.artifact_sha256}. Its result depends on time or chance."
        yield element("p", "It returned the same, byte for byte." if same else other)


def _proofs(report: Report) -> Iterator[Element]:
    yield element("h2", "Does the engine serve what was trained?")
    rows = [
        [
            str(row.step + 1),
            str(proof.release),
            number(proof.gap, 4),
            number(proof.limit, 4),
            number(proof.floor, 4),
            number(proof.share, 3),
            number(proof.trainer_shift, 4),
            number(proof.engine_shift, 4),
            str(proof.attempts),
        ]
        for row in report.history.rows
        if (proof := row.proof)
    ]
    if not rows:
        yield element("p", f"Nothing to prove: {FROZEN}." if not report.history.trains else "No step has a proof.")
        return
    yield element("p", PROOF)
    head = ["step", "release", "gap", "limit", "floor", "share", "trainer moved", "engine moved", "attempts"]
    yield table(head, rows, words=0)


def _metrics(report: Report) -> Iterator[Element]:
    yield element("h2", "Steps")
    names = {told: name for told, name in COLUMNS.items() if report.history.series(name)}
    rows = [
        [str(row.step + 1), str(row.release), *(number(row.metrics.get(name), 5) for name in names.values())]
        for row in report.history.rows
    ]
    yield table(["step", "sampled by release", *names], rows, words=0)
    if failures := facts.failures(report.history):
        yield element("h3", "Why programs were rejected")
        yield table(["reason", "rollouts", "share of all"], failures)


def _configuration(report: Report) -> Iterator[Element]:
    yield element("h2", "Configuration")
    yield element("p", "All that makes this run the experiment that it is; of texts the SHA-256.", class_="soft")
    yield table(["field", "value"], [[name, _shown(value)] for name, value in report.identity.items()], words=2)


def _commands(report: Report) -> Iterator[Element]:
    run = report.history.run
    task, name = shlex.quote(run.task), shlex.quote(run.run)
    sizes = f"--steps {run.steps - run.first_step} --groups {run.grid.groups} --rollouts {run.grid.rollouts}"
    mode = {"discover": "", "search": " --no-train"}.get(run.mode, f" --mode {run.mode}")
    origin = f" --resume-from {shlex.quote(run.resumed_from)}" if run.resumed_from else ""
    yield element("h2", "How to reproduce")
    yield element("p", f"With tttdd {report.version} and the configuration above:")
    kind = " --external" if run.kind == "external" else ""
    yield element("pre", f"tttctl submit {task}{kind} {sizes} --seed {run.seed}{mode}{origin}", tabindex="0")
    if run.kind == "external":
        yield element("p", "And its harness, which has asked and judged: the daemon keeps what it was told.")
        return
    yield element("p", "The best program again, where it is kept, and anywhere without a daemon:")
    file = shlex.quote(f"{run.run}.py")
    again = [f"tttctl verify {name} {report.best.node}", f"tttctl best {name} -o {file}"]
    yield element("pre", "\n".join([*again, f"tttctl verify --task {task} {file}"]), tabindex="0")


def _shown(value: Value) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else "-" if value is None else str(value)
