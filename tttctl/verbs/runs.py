"""Verbs about runs: submit, runs, status, pause, resume, cancel, tasks."""

from __future__ import annotations

from argparse import Namespace

from tttctl.client import Client, Failed, run_path
from tttctl.render import duration, moment, number, say, show_json, table
from tttdd import protocol
from tttdd.protocol import RunInfo, Status

REASON_CHARACTERS = 80
PAUSED = {True: "paused; go on with: tttctl resume", False: "working"}


def submit(client: Client, options: Namespace) -> int:
    grid = _grid(options)
    request = protocol.Submit(
        task=options.task,
        steps=options.steps,
        grid=grid,
        seed=options.seed,
        name=options.name,
        mode=options.mode,
        kind=options.kind,
        priority=options.priority,
        resume_from=options.resume_from,
    )
    run = client.post("/v1/runs", request, RunInfo)
    if options.wait or options.watch:
        from tttctl.verbs.watch import follow_to_end

        return follow_to_end(client, run.run, as_json=options.json, quiet=not options.watch)
    if options.json:
        show_json(run)
    else:
        say(f"{run.run}: {run.state}; follow it with: tttctl watch {run.run}, or tttctl monitor")
        if run.kind == "external":
            say(f"how its harness reaches it: tttctl client {run.run}")
    return 0


def runs(client: Client, options: Namespace) -> int:
    found = client.get("/v1/runs", list[RunInfo])
    if options.names:
        _names([run.run for run in found], options.json)
    elif options.json:
        show_json(found)
    elif found:
        _list(found)
    else:
        say("no runs yet; submit one with: tttctl submit TASK")
    return 0


def status(client: Client, options: Namespace) -> int:
    if options.run:
        run = client.get(run_path(options.run), RunInfo)
        show_json(run) if options.json else describe(run)
        return 0
    snapshot = client.get("/v1/status", Status)
    if options.json:
        show_json(snapshot)
    else:
        _describe_daemon(snapshot)
    return 0


def pause(client: Client, options: Namespace) -> int:
    return _change(client, options, "pause", protocol.Pause(release_gpus=options.release_gpus))


def resume(client: Client, options: Namespace) -> int:
    return _change(client, options, "resume", None)


def cancel(client: Client, options: Namespace) -> int:
    return _change(client, options, "cancel", None)


def tasks(client: Client, options: Namespace) -> int:
    found = client.get("/v1/tasks", list[protocol.TaskInfo])
    if options.names:
        _names([task.name for task in found], options.json)
    elif options.json:
        show_json(found)
    else:
        rows = [
            [t.name, f"{t.objective} {t.direction}", number(t.target, 10), f"{t.time_limit:g} s", t.title]
            for t in found
        ]
        table(["TASK", "OBJECTIVE", "TARGET", "LIMIT", "TITLE"], rows)
    return 0


def describe(run: RunInfo) -> None:
    grid = f"{run.grid.groups} x {run.grid.rollouts}"
    say(f"{run.run}: {run.state}{': ' + run.reason if run.reason else ''}")
    priority = f", priority {run.priority}" if run.priority else ""
    mode = "" if run.mode == "discover" else f", {run.mode}: nothing is trained"
    kind = " (external: a harness samples and judges)" if run.kind == "external" else ""
    say(f"  task      {run.task}{kind}, seed {run.seed}, grid {grid}{mode}{priority}, created {moment(run.created)}")
    say(f"  progress  {run.step} of {run.steps} steps committed, release {run.release}")
    if run.resumed_from:
        say(f"  goes on   from {run.resumed_from}, its first {run.first_step} steps")
    if run.waits_for_room:
        say("  waits for room on the disk; it goes on by itself")
    for name, best in [("starter", run.starter), ("best", run.best)]:
        if best:
            found = "" if best.objective is None else f"{run.objective_name} {number(best.objective, 12)}, "
            say(f"  {name:9} {found}reward {number(best.reward)}, node {best.node}")
    if run.target is not None:
        say(f"  target    {run.objective_name} {number(run.target, 12)} ({run.direction} is better)")
    if run.state_dir:
        say(f"  kept in   {run.state_dir}")
    for command in _next(run):
        say(f"  next      {command}")


def _next(run: RunInfo) -> list[str]:
    """What one would do with the run now."""
    name = run.run
    match run.state:
        case "queued" | "running":
            reached = [f"tttctl client {name} tells its harness how it is reached"] if run.kind == "external" else []
            return [f"tttctl watch {name}, or tttctl monitor", *reached]
        case "waiting":
            return [f"tttctl client {name} tells its harness what is missing"]
        case "paused":
            return [] if run.waits_for_room else [f"tttctl resume {name}"]
        case "failed":
            return [f"tttctl logs {name}"]
        case "finished" | "cancelled":
            return [f"tttctl best {name}, tttctl report {name}, tttctl export {name} DIR"] if run.best else []


def _names(names: list[str], as_json: bool) -> None:
    if as_json:
        show_json(names)
        return
    for name in names:
        say(name)


def _grid(options: Namespace) -> protocol.GridSize | None:
    """Both sizes or none: half a grid has no default that a client could know."""
    if options.groups is None and options.rollouts is None:
        return None
    if options.groups is None or options.rollouts is None:
        raise Failed(400, protocol.Error(error="--groups and --rollouts go together"))
    return protocol.GridSize(options.groups, options.rollouts)


def _change(client: Client, options: Namespace, verb: str, body: protocol.Pause | None) -> int:
    if options.run:
        run = client.post(run_path(options.run, f"/{verb}"), body, RunInfo)
        again = f"; go on with: tttctl resume {run.run}" if verb == "pause" else ""
        show_json(run) if options.json else say(f"{run.run}: {run.state}{again}")
    else:
        snapshot = client.post(f"/v1/{verb}", body, Status)
        show_json(snapshot) if options.json else say("the daemon is " + PAUSED[snapshot.paused])
    return 0


def _list(found: list[RunInfo]) -> None:
    rows = [
        [
            run.run,
            run.state + (f", priority {run.priority}" if run.priority and run.state == "queued" else ""),
            f"{run.step}/{run.steps}",
            number(best_found(run), 10),
            _short(run.reason),
        ]
        for run in found
    ]
    table(["RUN", "STATE", "STEP", "BEST", "REASON"], rows)


def best_found(run: RunInfo) -> float | None:
    """The best objective; where there is none, as of an external run, the best reward."""
    if run.best is None or run.best.objective is None:
        return run.best and run.best.reward
    return run.best.objective


def _short(reason: str) -> str:
    """The end of it, where a traceback has its error; `status RUN` shows all."""
    last = reason.strip().splitlines()[-1] if reason.strip() else ""
    return last if len(last) <= REASON_CHARACTERS else last[: REASON_CHARACTERS - 3] + "..."


def _describe_daemon(status: Status) -> None:
    paused = ", paused" if status.paused else ""
    say(f"tttdd {status.version}, pid {status.pid}, since {moment(status.started)}{paused}")
    if status.notice:
        say(f"nothing is done until the state can be kept: {status.notice}")
    judges, lacks = status.judges, "; ".join(status.judges.missing)
    if judges.level == "none":
        say(f"judges: cannot start: {lacks}")
    else:
        say(f"judges: {judges.level}, {judges.parallel} at once" + (f" (not contained: {lacks})" if lacks else ""))
    say(f"config: {status.config}   state: {status.state_dir}")
    for gpu in status.gpus:
        say(_gpu(gpu))
    if status.current:
        say(_current(status.current))
    if status.runs:
        say()
        _list(status.runs)


def _gpu(gpu: protocol.GpuInfo) -> str:
    load = "-" if gpu.load is None else f"{gpu.load:.0%}"
    owners = sorted({process.owner for process in gpu.processes})
    memory = f"{gpu.memory_used / 2**30:.1f} of {gpu.memory_total / 2**30:.1f} GiB"
    return f"GPU {gpu.index}: {gpu.name}, {memory}, load {load}, {', '.join(owners) or 'no process'}"


def _current(current: protocol.Current) -> str:
    run = current.run
    cells = [cell for row in current.cells for cell in row]
    done = sum(cell in ("rejected", "valid", "best") for cell in cells)
    doing = (
        current.preparing and f"preparing {current.preparing}"
    ) or f"step {min(run.step + 1, run.steps)}/{run.steps}, {current.phase.name}, grid {done}/{len(cells)}"
    eta = None if run.state == "waiting" else current.phase.eta_seconds
    waits = ", waits for its harness" if run.state == "waiting" else ""
    return f"now: {run.run}: {doing}{waits}, ETA {duration(eta)}"
