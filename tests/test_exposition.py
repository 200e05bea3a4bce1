"""Prometheus' text of the daemon's state, read back with Prometheus' own parser: before, during and after a run."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import msgspec
from fake_daemon import serving
from prometheus_client.parser import text_string_to_metric_families

from tests.test_api import ask
from tttdd.api import exposition
from tttdd.protocol import (
    Best,
    Current,
    GpuInfo,
    GpuProcess,
    GridSize,
    JudgesInfo,
    PhaseInfo,
    RunInfo,
    Status,
    StepRow,
)

BEST = Best(node=4, reward=2.5, objective=0.4, step=1)
RUN = RunInfo(
    run="r",
    task="t",
    state="running",
    step=2,
    steps=8,
    release=2,
    grid=GridSize(2, 3),
    seed=0,
    created=1.0,
    best=BEST,
    target=0.38,
    objective_name="C5",
    direction="lower",
)
IDLE = Status(
    version="1.2",
    pid=7,
    started=1e9,
    config="c",
    state_dir="s",
    paused=False,
    judges=JudgesInfo(level="namespaces", missing=["cgroups"], parallel=4),
    runs=[],
)
ROW = StepRow(
    step=1,
    phase="committed",
    release=1,
    metrics={
        "tttd/reward_mean": 1.25,
        "tttd/valid_fraction": 0.5,
        "train/kl_base": 0.01,
        "train/sampler_trainer_gap": 1e-6,
        "time/sample": 3.0,
        "time/train": 2.0,
        "tttd/failures/no_code": 2.0,
    },
)


def told(status: Status, newest: StepRow | None = None) -> dict[tuple[str, ...], float]:
    """(name, label=value, ...) -> value, labels in the order of their names; each series once."""
    body, kind = exposition.text(status, newest)
    assert kind.startswith("text/plain; version=0.0.4")
    samples: dict[tuple[str, ...], float] = {}
    for family in text_string_to_metric_families(body.decode()):
        assert family.documentation and family.type == "gauge" and family.name.startswith("tttdd_")
        for sample in family.samples:
            series = (sample.name.removeprefix("tttdd_"), *(f"{k}={v}" for k, v in sorted(sample.labels.items())))
            assert series not in samples
            samples[series] = sample.value
    return samples


def in_hand(run: RunInfo = RUN, **more: Any) -> Status:
    current = Current(
        run=run,
        phase=PhaseInfo(name="train", since=1.0, seconds={"sample": 40.0}, eta_seconds=600.0),
        cells=[["valid", "valid", "rejected"], ["best", "judging", "valid"]],
    )
    return msgspec.structs.replace(IDLE, runs=[run], current=current, **more)


def test_a_daemon_without_a_run_tells_of_itself() -> None:
    said = told(IDLE)
    assert said.items() >= {("up",): 1, ("paused",): 0, ("stalled",): 0, ("start_time_seconds",): 1e9}.items()
    assert said["info", "version=1.2"] == said["judges_info", "level=namespaces"] == said["judges_missing",] == 1
    assert said["runs", "state=queued"] == said["runs", "state=finished"] == 0
    assert not any(series[0].startswith(("run_", "grid_", "step_", "gpu_")) for series in said)


def test_a_run_in_hand_is_told_with_its_grid_its_phase_and_its_newest_step() -> None:
    said = told(in_hand(), ROW)
    assert said["runs", "state=running"] == 1
    about = ("direction=lower", "mode=discover", "objective=C5", "run=r", "state=running", "task=t")
    assert said["run_info", *about] == 1
    for name, value in {
        **{"run_step": 2, "run_steps": 8, "run_release": 2, "run_eta_seconds": 600},
        **{"run_best_reward": 2.5, "run_best_objective": 0.4, "run_target_objective": 0.38},
        **{"step_reward_mean": 1.25, "step_valid_ratio": 0.5, "kl_base_nats": 0.01, "sampler_trainer_gap_nats": 1e-6},
    }.items():
        assert said[name, "run=r"] == value, name
    cells = {state: said["grid_cells", "run=r", f"state={state}"] for state in ("valid", "rejected", "best", "waiting")}
    assert cells == {"valid": 3, "rejected": 1, "best": 1, "waiting": 0}
    assert (said["run_phase", "phase=train", "run=r"], said["run_phase", "phase=prove", "run=r"]) == (1, 0)
    assert said["run_phase_seconds", "phase=sample", "run=r"] == 40
    assert (said["step_seconds", "part=train", "run=r"], said["step_rejected_programs", "reason=no_code", "run=r"]) == (
        2,
        2,
    )


def test_what_a_run_does_not_have_is_left_out() -> None:
    frozen = msgspec.structs.replace(RUN, mode="search", release=0, best=None, target=None)
    row = msgspec.structs.replace(ROW, metrics={"tttd/reward_mean": 1.25, "time/sample": 3.0})
    said = told(in_hand(frozen), row)
    assert said["run_release", "run=r"] == 0 and said["step_reward_mean", "run=r"] == 1.25
    names = {series[0] for series in said}
    assert not names & {"kl_base_nats", "sampler_trainer_gap_nats", "run_best_reward", "run_target_objective"}
    assert not any("part=train" in series for series in said)
    assert ("step_reward_mean", "run=r") not in told(in_hand())


def test_ended_runs_are_counted_and_have_no_series_of_their_own() -> None:
    ended = msgspec.structs.replace(RUN, state="failed", reason="x")
    said = told(msgspec.structs.replace(IDLE, runs=[ended] * 3, paused=True, notice="no room"))
    assert (said["runs", "state=failed"], said["paused",], said["stalled",]) == (3, 1, 1)
    assert not any("run=r" in series for series in said)


def test_devices_are_told_with_who_holds_their_memory() -> None:
    processes = [GpuProcess(pid=pid, memory=memory, owner="engine") for pid, memory in ((1, 5), (2, None), (3, 2))]
    device = GpuInfo(index=1, name='N "x"', memory_total=9, memory_used=8, load=0.5, processes=processes)
    said = told(in_hand(gpus=[device, GpuInfo(index=2, name="M", memory_total=9, memory_used=8, load=None)]))
    assert said["gpu_memory_used_bytes", "gpu=1", 'name=N "x"'] == 8
    assert said["gpu_load_ratio", "gpu=1", 'name=N "x"'] == 0.5 and ("gpu_load_ratio", "gpu=2", "name=M") not in said
    assert said["gpu_process_memory_bytes", "gpu=1", "owner=engine"] == 7


def test_any_text_is_a_labels_value_and_nothing_else() -> None:
    hostile = 'a"} 1\ntttdd_up 0\n\\"{\x1b[31m\u202e'
    said = told(in_hand(msgspec.structs.replace(RUN, task=hostile)), ROW)
    assert said["up",] == 1
    assert [series for series in said if f"task={hostile}" in series]


def test_a_scrape_of_the_reference_grid_takes_a_few_milliseconds() -> None:
    row = msgspec.structs.replace(ROW, metrics={**dict.fromkeys(exposition.STEP, 1.0), **ROW.metrics})
    status = in_hand()
    assert status.current is not None
    current = msgspec.structs.replace(status.current, cells=[["valid"] * 64 for _ in range(8)])
    status = msgspec.structs.replace(status, current=current)
    taken: list[float] = []
    for _ in range(20):
        began = time.perf_counter()
        body, _ = exposition.text(status, row)
        taken.append(time.perf_counter() - began)
    print(f"a scrape: {min(taken) * 1000:.2f} ms, {len(body)} bytes")
    assert min(taken) < 0.02


def test_the_daemon_starts_without_it() -> None:
    program = (
        "import sys, tttdd.daemon; print([name for name in sys.modules if 'prometheus' in name or 'wandb' == name])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_it_is_served_and_described(tmp_path: Path) -> None:
    with serving(tmp_path / "s") as served:
        ask(served, "POST", "/v1/runs", {"task": "erdos_min_overlap", "name": "first"})
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(served.socket)), base_url="http://tttdd") as client:
            answers = [client.get("/v1/metrics") for _ in range(2)]
            described = client.get("/v1/openapi.json").json()["paths"]["/v1/metrics"]["get"]
    for answer in answers:
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert 'tttdd_runs{state="running"} 1.0' in answer.text
    content = described["responses"]["200"]["content"]
    assert content == {"text/plain": {"schema": {"type": "string"}}}
