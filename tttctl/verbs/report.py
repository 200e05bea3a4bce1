"""report RUN: everything about it in one HTML file; with --verify the best program is judged again first."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable

from matplotlib.figure import Figure

from tttctl.client import Client, Failed, run_path
from tttctl.figures.page import Report, document
from tttctl.render import complain, say, show_json
from tttctl.verbs import figures
from tttdd.protocol import Health, NodeInfo, RunInfo, TaskInfo, Value, Verified, Verify


def report(client: Client, options: Namespace) -> int:
    path = figures.destination(options.output or f"{options.run}.html", "-o", "html")
    made = _gather(client, options.run, options.verify)
    figures.write(path, document(made))
    verified = made.verified
    if options.json:
        show_json({"run": made.history.run.run, "files": [str(path)], "verified": verified and verified.valid})
    else:
        say(
            f"{path}: {made.history.run.run}, {len(made.history.rows)} step{'' if len(made.history.rows) == 1 else 's'}"
        )
    if verified and not verified.valid:
        complain(f"node {verified.node} is rejected ({verified.reason}): {verified.detail}")
        return 1
    return 0


def _gather(client: Client, name: str, verify: bool) -> Report:
    history = figures.history(client, name)
    best = client.get(run_path(name, "/best"), NodeInfo)
    kind = history.run.kind
    tasks = client.get("/v1/tasks", list[TaskInfo])
    return Report(
        history=history,
        task=next((task for task in tasks if kind == "task" and task.name == history.run.task), None),
        line=figures.ancestry(client, name, best),
        identity=client.get(run_path(name, "/identity"), dict[str, Value]),
        drawing=_drawing(client, history.run, best),
        verified=client.post(run_path(name, "/verify"), Verify(node=best.node), Verified) if verify else None,
        version=client.get("/v1/health", Health).version,
    )


def _drawing(client: Client, run: RunInfo, best: NodeInfo) -> Callable[[], Figure] | None:
    """None where the task has no figure, or what the best returned is not kept or cannot be drawn."""
    if not run.figure or not best.artifact_sha256:
        return None
    try:
        return figures.drawing(run, best, figures.artifact(client, run.run, best))
    except Failed as error:
        if error.status >= 500:
            raise
        complain(f"{error}; the report goes without that figure")
        return None
