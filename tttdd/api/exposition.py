"""The daemon's state in Prometheus' text format, made anew for each scrape.

    board's snapshot + newest committed step of the run in hand -> families -> prometheus_client -> text

Series of a run are told while it is open, so that they do not pile up; those of grid, phases and newest step are of the
run in hand.  prometheus_client is imported by the first scrape: the daemon's start need not wait for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, get_args

from tttdd.protocol import CellState, Current, GpuInfo, PhaseName, RunInfo, RunState, Status, StepRow

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

Samples = Sequence[tuple[Sequence[str], float | None]]
"""Label values, and a value; None where there is none."""

OPEN: tuple[RunState, ...] = ("queued", "running", "waiting", "paused")
STEP = {
    "tttd/reward_mean": ("step_reward_mean", "Mean reward of the newest step's programs"),
    "tttd/reward_max": ("step_reward_max", "Highest reward of the newest step's programs"),
    "tttd/valid_fraction": ("step_valid_ratio", "Share of the newest step's programs that are valid"),
    "tttd/truncated_fraction": ("step_truncated_ratio", "Share of the newest step's answers cut at the token budget"),
    "tttd/distinct_programs": ("step_distinct_programs", "Different programs among the newest step's"),
    "archive/size": ("archive_nodes", "Nodes of the archive after the newest step"),
    "rollout/response_length_mean": ("step_response_tokens_mean", "Mean tokens of the newest step's answers"),
    "rollout/tokens_per_second": ("step_tokens_per_second", "Tokens sampled per second in the newest step"),
    "train/sampler_trainer_gap": ("sampler_trainer_gap_nats", "Engine's log-probs against the trainer's, per token"),
    "train/kl_base": ("kl_base_nats", "KL of the model from its base, per token"),
    "train/grad_norm": ("step_gradient_norm", "Norm of the newest step's gradient"),
    "train/mfu": ("step_model_flops_utilization_ratio", "Share of the devices' peak that training reached"),
}
"""Metric of a step -> its name here, and its help.  Those that a run does not have are left out."""


def prepare() -> None:
    """Import what `text` needs: a fifth of a second."""
    import prometheus_client.exposition  # noqa: F401  # pyright: ignore[reportUnusedImport]


def text(status: Status, newest: StepRow | None) -> tuple[bytes, str]:
    """The exposition, and its content type."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Once(status, newest))
    return generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4


class _Once:
    """A collector of one snapshot."""

    def __init__(self, status: Status, newest: StepRow | None) -> None:
        self._status, self._newest = status, newest

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        yield from _daemon(self._status)
        yield from _runs([run for run in self._status.runs if run.state in OPEN])
        if self._status.current is not None:
            yield from _current(self._status.current)
            yield from _step(self._status.current.run.run, self._newest)
        yield from _gpus(self._status.gpus)


def _daemon(status: Status) -> Iterator[Metric]:
    states, judges = Counter(run.state for run in status.runs), status.judges
    yield _gauge("up", "Whether the daemon works", [], [((), 1)])
    yield _gauge("info", "The daemon's version", ["version"], [((status.version,), 1)])
    yield _gauge("start_time_seconds", "Unix time of the daemon's start", [], [((), status.started)])
    yield _gauge("paused", "Whether the whole daemon is paused", [], [((), status.paused)])
    yield _gauge(
        "stalled", "Whether something that nobody asked for keeps it from working", [], [((), status.notice != "")]
    )
    every = [((state,), states[state]) for state in get_args(RunState)]
    yield _gauge("runs", "Runs by their state", ["state"], every)
    yield _gauge("judges_info", "Containment of the judged programs in force", ["level"], [((judges.level,), 1)])
    yield _gauge("judges_missing", "What that level does not contain on this machine", [], [((), len(judges.missing))])
    yield _gauge("judges_parallel", "Programs judged at once", [], [((), judges.parallel)])


def _runs(runs: Sequence[RunInfo]) -> Iterator[Metric]:
    about = ["run", "task", "mode", "state", "objective", "direction"]
    told = [((run.run, run.task, run.mode, run.state, run.objective_name, run.direction), 1) for run in runs]
    yield _gauge("run_info", "An open run", about, told)
    best = [((run.run,), run.best) for run in runs if run.best]
    for name, help, samples in (
        ("run_step", "Steps that are committed", [((run.run,), run.step) for run in runs]),
        ("run_steps", "Steps that are wanted", [((run.run,), run.steps) for run in runs]),
        ("run_release", "Newest release of the weights; 0 is the base", [((run.run,), run.release) for run in runs]),
        ("run_best_reward", "Reward of the best program", [(run, each.reward) for run, each in best]),
        (
            "run_best_objective",
            "Objective of the best program",
            [(run, each.objective) for run, each in best],
        ),
        ("run_target_objective", "Objective that the task quotes", [((run.run,), run.target) for run in runs]),
    ):
        yield _gauge(name, help, ["run"], samples)


def _current(current: Current) -> Iterator[Metric]:
    run, phase = current.run.run, current.phase
    cells = Counter(cell for row in current.cells for cell in row)
    states = [((run, state), cells[state]) for state in get_args(CellState)]
    yield _gauge("grid_cells", "Rollouts of the step in hand by their state", ["run", "state"], states)
    phases = [((run, name), name == phase.name) for name in get_args(PhaseName)]
    yield _gauge("run_phase", "Phase of the step in hand", ["run", "phase"], phases)
    eta = None if current.run.state == "waiting" else phase.eta_seconds
    spent = [((run, name), seconds) for name, seconds in phase.seconds.items()]
    yield _gauge("run_phase_seconds", "Time spent in the step's earlier phases", ["run", "phase"], spent)
    yield _gauge("run_eta_seconds", "To the end of the run", ["run"], [((run,), eta)])


def _step(run: str, newest: StepRow | None) -> Iterator[Metric]:
    metrics = newest.metrics if newest else {}
    for metric, (name, help) in STEP.items():
        yield _gauge(name, help, ["run"], [((run,), metrics.get(metric))])
    times, reasons = _below("time/", run, metrics), _below("tttd/failures/", run, metrics)
    yield _gauge("step_seconds", "Time of the newest step by its parts; `step` is the whole", ["run", "part"], times)
    yield _gauge("step_rejected_programs", "Rejected programs of the newest step", ["run", "reason"], reasons)


def _below(prefix: str, run: str, metrics: dict[str, float]) -> Samples:
    return [((run, name.removeprefix(prefix)), value) for name, value in metrics.items() if name.startswith(prefix)]


def _gpus(devices: Sequence[GpuInfo]) -> Iterator[Metric]:
    named = [((str(gpu.index), gpu.name), gpu) for gpu in devices]
    for name, help, samples in (
        ("gpu_memory_used_bytes", "Memory in use on a device", [(which, gpu.memory_used) for which, gpu in named]),
        ("gpu_memory_total_bytes", "Memory of a device", [(which, gpu.memory_total) for which, gpu in named]),
        (
            "gpu_load_ratio",
            "Share of the last moment in which it computed",
            [(which, gpu.load) for which, gpu in named],
        ),
    ):
        yield _gauge(name, help, ["gpu", "name"], samples)
    owned = Counter[tuple[str, str]]()
    for device in devices:
        for process in device.processes:
            owned[str(device.index), process.owner] += process.memory or 0
    yield _gauge("gpu_process_memory_bytes", "Memory on a device by who holds it", ["gpu", "owner"], [*owned.items()])


def _gauge(name: str, help: str, labels: Sequence[str], samples: Samples) -> Metric:
    from prometheus_client.metrics_core import GaugeMetricFamily

    family = GaugeMetricFamily(f"tttdd_{name}", help, labels=labels)
    for values, value in samples:
        if value is not None:
            family.add_metric(values, float(value))
    return family
