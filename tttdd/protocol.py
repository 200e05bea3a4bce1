"""What crosses the daemon's socket, as msgspec Structs; shared with tttctl and free of everything else."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

RunState = Literal["queued", "running", "waiting", "paused", "finished", "failed", "cancelled"]
"""waiting: running, and nothing is done until its harness says more."""
PhaseName = Literal["start", "sample", "train", "publish", "prove", "commit"]
CellState = Literal["waiting", "sampling", "judging", "rejected", "valid", "best"]
Mode = Literal["discover", "search", "best-of-n"]
"""discover: search, and train after every step; search: the model stays as it is; best-of-n: the model stays as it is
and every rollout starts from the starter program."""
Kind = Literal["task", "external"]
"""task: the daemon searches for programs that solve a task; external: a harness samples, and reports rewards."""
Figure = Literal["", "circles", "overlap", "autoconvolution"]
"""How what a task's programs return is drawn; empty for not at all.

circles: (centers, radii, sum); overlap: (heights h of a step function, bound, n), with correlate(h, 1 - h) 2 / n;
autoconvolution: heights of a step function, with its autoconvolution."""

Value = str | int | float | bool | None
"""Of a setting."""
Count = Annotated[int, Meta(ge=1, le=1_000_000)]
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$(?!\n)"
"""Of a run."""
Node = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""Id of an archive node."""


class GridSize(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    groups: Count
    rollouts: Count
    """At least 3: the entropic advantage is not defined on fewer."""


class Submit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/runs.  What is left out comes from the daemon's configuration."""

    task: str
    """For a run of kind external any name: the daemon does not judge it."""
    steps: Count | None = None
    grid: GridSize | None = None
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    name: Annotated[str, Meta(pattern=NAME)] | None = None
    """Name of the run; default: the task's name and a number."""
    mode: Mode = "discover"
    kind: Kind = "task"
    priority: Annotated[int, Meta(ge=-1000, le=1000)] = 0
    """Of the queued runs the highest is taken first; of equal ones the oldest."""
    resume_from: str | None = None
    """A run of the same task: the new one goes on from its newest committed release and its archive.  `steps` are then
    those that are added."""


class Pause(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    release_gpus: bool = False
    """Also end the worker processes, so that the devices' memory is free."""


class Verify(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    node: Node | None = None
    """Node whose program is judged again; default: the run's best."""


class Listing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Query of GET /v1/runs/{run}/archive."""

    limit: Annotated[int, Meta(ge=1, le=10_000)] = 20


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body or query of a call that takes none."""


class Best(msgspec.Struct, frozen=True, kw_only=True):
    node: int
    reward: float
    objective: float | None
    step: int
    """Step that found it; -1 for a starter."""


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    run: str
    task: str
    state: RunState
    reason: str = ""
    """Why the run is paused, failed or cancelled."""
    step: int
    """Step in hand: all steps below it are committed."""
    steps: int
    release: int
    grid: GridSize
    seed: int
    created: float
    """Unix time, seconds."""
    starter: Best | None = None
    best: Best | None = None
    target: float | None = None
    """The task's quoted objective."""
    objective_name: str = ""
    direction: Literal["lower", "higher"] = "higher"
    figure: Figure = ""
    mode: Mode = "discover"
    kind: Kind = "task"
    state_dir: str = ""
    priority: int = 0
    waits_for_room: bool = False
    """Paused by a full disk: it goes on by itself when there is room."""
    resumed_from: str = ""
    """Run whose release and archive it went on from."""
    first_step: int = 0
    """The steps below it are those of `resumed_from`."""


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence that the engine serves a release: mean absolute log-prob gaps on the probe, in nats."""

    release: int
    load_id: str
    gap: float
    """Engine against trainer under this release."""
    floor: float
    """Engine against trainer under the base, measured when the workers started."""
    limit: float
    """The gap must not exceed this."""
    trainer_shift: float
    """Trainer under this release against the trainer's base."""
    engine_shift: float
    """Engine under this release against the engine's base."""
    share: float | None = None
    """How much of the trainer's move since the release before the engine has made: 1 when it serves this release, 0
    when it still serves the one before; None when the move is too small to tell."""
    attempts: int


class StepRow(msgspec.Struct, frozen=True, kw_only=True):
    step: int
    phase: Literal["pending", "committed"]
    release: int
    """Release that sampled the step."""
    metrics: dict[str, float]
    proof: Proof | None = None
    """Proof of the release that the step ended with."""


class NodeInfo(msgspec.Struct, frozen=True, kw_only=True):
    node: int
    reward: float
    objective: float | None
    parent: int | None
    seed: bool
    visits: int
    step: int
    pruned: bool
    program: str
    """Empty in listings."""
    output: str = ""
    lineage: list[int] = []
    """Ids from the node's parent up to its root."""
    certificate: dict[str, str | float | bool] = {}
    artifact_sha256: str = ""
    """Of what the program returned, as JSON; empty where that is not kept."""


class Artifact(msgspec.Struct, frozen=True):
    """What a node's program returned when it was judged."""

    artifact: msgspec.Raw
    sha256: str


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """A stored program judged again, in a fresh sandbox: judges.verdict.Verdict and the node."""

    node: int
    valid: bool
    reward: float
    objective: float | None
    reason: str
    detail: str
    reported: float | None = None
    output: str = ""
    seconds: float = 0.0
    peak_bytes: int = 0
    artifact_sha256: str = ""
    certificate: dict[str, str | float | bool] = {}


class TaskInfo(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    title: str
    objective: str
    direction: Literal["lower", "higher"]
    target: float | None
    time_limit: float
    """Seconds told to the model, given as budget_s and enforced."""
    entry_point: str
    figure: Figure = ""


class PhaseInfo(msgspec.Struct, frozen=True, kw_only=True):
    name: PhaseName
    since: float
    """Unix time."""
    seconds: dict[str, float] = {}
    """Seconds spent in this step's earlier phases."""
    eta_seconds: float | None = None
    """To the end of the run, from the steps done so far."""


class Current(msgspec.Struct, frozen=True, kw_only=True):
    """The run in hand."""

    run: RunInfo
    phase: PhaseInfo
    cells: list[list[CellState]]
    """groups x rollouts."""
    preparing: str = ""
    """What is being made ready before the first step, for instance a download."""
    progress: float | None = None
    """Of `preparing`, else of the phase in hand, 0 to 1; None where that is not known."""
    sampler_trainer_gap: float | None = None
    kl_base: float | None = None
    proof: Proof | None = None


class JudgesInfo(msgspec.Struct, frozen=True, kw_only=True):
    level: str
    """Containment in force: namespaces, docker or process; `starting` until ready, `none` if it cannot start."""
    missing: list[str] = []
    """What that level does not contain on this machine, or why it cannot start."""
    parallel: int


class GpuProcess(msgspec.Struct, frozen=True, kw_only=True):
    pid: int
    memory: int | None
    """Bytes on the device; None where the driver does not tell."""
    owner: str
    """`engine`, `trainer`, or the name of a command that is none of ours; `unknown` for a process that is gone."""


class GpuInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One device, as NVML tells it."""

    index: int
    """In the order of the PCI bus, as nvidia-smi counts."""
    name: str
    memory_total: int
    """Bytes."""
    memory_used: int
    """Bytes."""
    load: float | None
    """Share of the last moment in which the device computed, 0 to 1."""
    processes: list[GpuProcess] = []


class Status(msgspec.Struct, frozen=True, kw_only=True):
    version: str
    pid: int
    started: float
    config: str
    state_dir: str
    paused: bool
    judges: JudgesInfo
    runs: list[RunInfo]
    current: Current | None = None
    gpus: list[GpuInfo] = []
    log: list[str] = []
    """Last messages, oldest first."""
    notice: str = ""
    """What keeps the daemon from working, and that nobody asked for: no room on the disk, for instance."""


class Health(msgspec.Struct, frozen=True):
    status: Literal["ok"]
    version: str


class Error(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    error: str
    field: str | None = None
    hint: str | None = None
