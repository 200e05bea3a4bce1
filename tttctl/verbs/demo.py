"""demo [TASK]: the whole real loop on this machine, in a private daemon whose files are kept.

    shipped CPU configuration -> DIR/tttdd.toml -> python -m tttdd -> submit -> follow -> best program, verified again

However it ends, by Ctrl-C, a signal or an error, the daemon and all that it started end too.  The same command again,
with the same directory, goes on with the run that was cut short.
"""

from __future__ import annotations

import ctypes
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tttctl.client import Client, Failed, NoDaemon, run_path
from tttctl.render import clean, complain, number, say, show_json
from tttctl.verbs.watch import ENDED, follow
from tttdd import protocol
from tttdd.config import shipped
from tttdd.protocol import Best, NodeInfo, RunInfo, StepRow, Verified, Verify

START_SECONDS = 60.0
STOP_SECONDS = 30.0
SOCKET_PATH_LIMIT = 100
"""Bytes; the kernel's is 107."""
PR_SET_PDEATHSIG = 1


class DaemonEnded(Exception):
    """The private daemon did not start."""


def demo(client: Client, options: Namespace) -> int:
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGHUP, _interrupt)
    state_dir = _directory(options.state_dir)
    asked, place = options.task, None
    if "/" in asked:
        options.task, place = Path(asked).resolve().name, Path(asked).resolve().parent
    try:
        with private_daemon(state_dir, place) as private:
            return _run(private, options, state_dir)
    except (DaemonEnded, NoDaemon) as error:
        complain(f"{error}\nthe daemon's last words:\n{_last_words(state_dir)}")
        return 1
    except Failed:
        if not (options.state_dir or (state_dir / "runs").exists()):
            shutil.rmtree(state_dir)  # the submission was refused: nothing to keep
        raise
    except KeyboardInterrupt:
        again = ["tttctl", "demo", asked, "--seed", str(options.seed), "--state-dir", str(state_dir)]
        _note(f"go on with: {shlex.join(again)}")
        raise
    finally:
        if state_dir.exists():
            config, socket = (shlex.quote(str(state_dir / name)) for name in ("tttdd.toml", "tttdd.sock"))
            _note(f"kept in {state_dir}; to look at it: tttdd --config {config} --socket {socket} &")
            _note(f"export TTTDD_SOCKET={socket}      (a run that was cut short goes on; tttctl pause holds it)")


@contextmanager
def private_daemon(state_dir: Path, tasks: Path | None = None) -> Generator[Client]:
    """A daemon of our own for the length of the block; it stops with us even if we are killed.  `tasks` is a directory
    in which it finds more of them."""
    config, socket = write_config(state_dir, tasks)
    with (state_dir / "daemon.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tttdd", "--config", str(config)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
    try:
        client = Client(str(socket))
        _await_ready(client, process, state_dir)
        yield client
    finally:
        _stop(process)
        if socket.parent != state_dir:
            shutil.rmtree(socket.parent)


def write_config(state_dir: Path, tasks: Path | None = None) -> tuple[Path, Path]:
    """The shipped CPU configuration with this directory's socket and state; returns the file and the socket."""
    config = state_dir / "tttdd.toml"
    socket = state_dir / "tttdd.sock"
    if len(os.fsencode(socket)) > SOCKET_PATH_LIMIT:
        socket = Path(tempfile.mkdtemp(prefix="tttdd-")) / "tttdd.sock"
    text = shipped("tttdd.cpu.toml").read_text()
    ours = f"[daemon]\nsocket = {json.dumps(str(socket))}\nstate_dir = {json.dumps(str(state_dir))}\n"
    theirs = f"\n[tasks]\npath = [{json.dumps(str(tasks))}]\n" if tasks else ""
    config.write_text(text.replace("[daemon]\n", ours, 1) + theirs)
    return config, socket


def _run(client: Client, options: Namespace, state_dir: Path) -> int:
    submitted = run_to_follow(client, options)
    grid = submitted.grid
    _note(f"everything is kept in {state_dir}; watch it with: tttctl --socket {shlex.quote(client.path)} monitor")
    _note(f"{submitted.run}: {submitted.steps} steps of {grid.groups} groups x {grid.rollouts} rollouts")
    run = follow(client, submitted.run, patience=1.0)
    if run.best is None:
        complain(f"{run.run} {run.state}: {run.reason or 'no program was found'}")
        return 1
    verdict = client.post(run_path(run.run, "/verify"), Verify(node=run.best.node), Verified)
    if options.json:
        show_json(summary(run, client.get(run_path(run.run, "/steps"), list[StepRow]), verdict, state_dir))
    else:
        _tell(run, client.get(run_path(run.run, "/best"), NodeInfo), verdict)
    if run.state != "finished":
        complain(f"{run.run} {run.state}: {run.reason}")
    return 0 if run.state == "finished" and verdict.valid else 1


def run_to_follow(client: Client, options: Namespace) -> RunInfo:
    """The run that an earlier demo here did not end, if it is what is asked for now; else a new one."""
    for run in client.get("/v1/runs", list[RunInfo]):
        same = (run.task, run.seed) == (options.task, options.seed) and options.steps in (None, run.steps)
        if same and run.state not in ENDED:
            _note(f"{run.run} was cut short after {run.step} of {run.steps} steps; going on")
            return run
    return client.post("/v1/runs", protocol.Submit(task=options.task, steps=options.steps, seed=options.seed), RunInfo)


def summary(run: RunInfo, rows: list[StepRow], verdict: Verified, state_dir: Path) -> dict[str, Any]:
    """The demo's last line with --json: lists have one entry per committed step."""
    committed = [row for row in rows if row.phase == "committed"]
    assert run.best is not None
    best = {**_values(run.best), "node": run.best.node, "step": run.best.step}

    def column(name: str) -> list[float | None]:
        return [row.metrics.get(name) for row in committed]

    return {
        "run": run.run,
        "task": run.task,
        "state": run.state,
        "reason": run.reason,
        "steps_committed": len(committed),
        "releases": run.release,
        "starter": _values(run.starter) if run.starter else None,
        "best": {**best, "verified": verdict.valid and verdict.reward == run.best.reward},
        "valid_fraction": column("tttd/valid_fraction"),
        "mean_reward": column("tttd/reward_mean"),
        "sampler_trainer_gap": column("train/sampler_trainer_gap"),
        "kl_base": column("train/kl_base"),
        "proof": [row.proof for row in committed],
        "seconds": column("time/step"),
        "state_dir": str(state_dir),
    }


def _values(best: Best) -> dict[str, Any]:
    return {"reward": best.reward, "objective": best.objective}


def _tell(run: RunInfo, node: NodeInfo, verdict: Verified) -> None:
    say(f"\nBest program (node {node.node}, found in step {node.step + 1}):\n\n{node.program.rstrip()}\n")
    if run.starter:
        first = run.starter
        say(f"starter  {run.objective_name} {number(first.objective, 12)}, reward {number(first.reward, 8)}")
    say(f"best     {run.objective_name} {number(node.objective, 12)}, reward {number(node.reward, 8)}")
    if verdict.valid:
        say(f"judged again in a fresh sandbox: valid, {run.objective_name} {number(verdict.objective, 12)}")
    else:
        say(f"judged again in a fresh sandbox: rejected ({verdict.reason}): {verdict.detail}")


def _note(text: str) -> None:
    print(clean(text), file=sys.stderr, flush=True)


def _directory(asked: str | None) -> Path:
    if asked is None:
        return Path(tempfile.mkdtemp(prefix="tttdd-demo-"))
    path = Path(asked).absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Failed(400, protocol.Error(error=f"cannot use {path}: {error.strerror}")) from None
    return path


def _await_ready(client: Client, process: subprocess.Popen[bytes], state_dir: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            client.get("/v1/health", protocol.Health)
            return
        except NoDaemon:
            if process.poll() is not None or time.monotonic() > deadline:
                raise DaemonEnded("the daemon did not start") from None
            time.sleep(0.02)


def _last_words(state_dir: Path) -> str:
    return (state_dir / "daemon.log").read_text(errors="replace")[-2000:].strip()


def _stop(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, then kill its session; a second Ctrl-C does not get in between."""
    endings = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in endings}
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt
