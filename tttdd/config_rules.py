"""Rules of a configuration that no type holds: settings that cannot work together, told with the numbers.

Config -> (field, the rule that it breaks and what to do), ...
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from tttdd.config import Config

MAX_ROLLOUTS = 65536
"""In one grid: 128 times the reference; the status shows every one of them."""
ANSWER_TOKENS = 512
"""That thinking must leave of an answer's budget: for the text that closes it, and a program."""
SECRET = re.compile("key|token|secret|password", re.IGNORECASE)
NO_SECRETS = (
    "secrets are no part of this file: set WANDB_API_KEY in the daemon's environment, or the systemd credential "
    "wandb_api_key (LoadCredential=)"
)
LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


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


def command_faults(config: Config) -> Iterator[tuple[str, str]]:
    """Asked when the file is loaded, and not of every submit: a command that is gone by then is told in the log."""
    program = config.notify.command[0] if config.notify.command else None
    if program is None:
        return
    if not Path(program).is_absolute():
        yield "notify.command", f"{program!r} is no absolute path, for instance /usr/local/bin/tell-me"
    elif not _is_file(program):
        yield "notify.command", f"there is no file {program}, or none that may be seen"
    elif not os.access(program, os.X_OK):
        yield "notify.command", f"{program} may not be executed; chmod +x {program}"


def _is_file(path: str) -> bool:
    try:
        return Path(path).is_file()
    except OSError:  # a folder on the way may not be entered
        return False


def null_faults(settings: object, field: str = "") -> Iterator[tuple[str, str]]:
    """Texts that no path, name or argument can be; `settings` are tables, as plain Python."""
    match settings:
        case dict():
            tables = cast("dict[str, object]", settings)
            for name, value in tables.items():
                yield from null_faults(value, f"{field}.{name}".strip("."))
        case list() | tuple():
            for value in cast("list[object]", settings):
                yield from null_faults(value, field)
        case str() if "\0" in settings:
            yield field, "it holds a null character; take it out"
        case _:
            pass


def device_fields(config: Config) -> dict[str, tuple[int, ...]]:
    """Field -> GPU indices, of the fields that take devices into use.  (The embedded engine uses none.)"""
    engine = config.engine.devices if config.engine.backend == "sglang" else ()
    return {"engine.devices": engine, "trainer.devices": config.trainer.devices}
