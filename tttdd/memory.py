"""The memory plan: what the engine and the trainer take of every device, before anything is started.

    engine   weights + LoRA slots + KV cache (SGLang's static share) + overhead
    trainer  weights / tp + LoRA x 16 B + context + tokens x (layers' inputs + one layer's work) + a chunk's logits

What is left beside the trainer is the KV cache.  Where that cannot hold the whole grid, and noticeably more would fit
while the trainer is idle, the cache is given back for training.  What cannot fit is refused with the numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from tttdd import gpus
from tttdd.config import Config
from tttdd.protocol import GpuInfo
from tttdd.shape import ModelShape, shape

GIB = 2**30
ENGINE_OVERHEAD = 6 * GIB
"""Beside SGLang's static share: CUDA context and graphs, activations, logits of a decode batch.  On an H200 with the
shape of Qwen3-8B 3.1 GiB were used while sampling, up to 4.5 while the probe was scored."""
LORA_SLOTS = 2
"""LoRA weights that the engine holds on the device, in the model's own width: one release, and the base's zeros."""
LORA_STATE = 16
"""Bytes a LoRA parameter takes in the trainer: weight, gradient and two Adam moments, float32 each."""
TRAINER_CONTEXT = 1 * GIB
"""CUDA context, cuBLAS workspaces and NCCL buffers of a rank."""
LOGIT_BYTES = 8
"""A logit of a chunk: in the model's width, in float32, and its softmax."""
PASSES = 2
"""A layer's tensors are there twice at the worst moment: recomputed, and their gradients."""
SMALLEST_BIN = 8192
"""Planned at least, where there is room: smaller bins keep the device waiting for launches."""
FULL_CONTEXTS = 4
"""The KV cache gets room for so many whole contexts before training alone gets larger bins."""
WORTHWHILE = 1.1
"""The KV cache must get this much larger for its release to be worth the while."""
SCORED = 2048
"""Tokens of the probe, which the trainer scores while the KV cache is there."""
SMALLEST_POOL = 1 * GIB  # of the KV cache, if there is room: SGLang counts more than weights against its static share
LIVE_SHARE = 8
"""A rollout holds this part of a context on average while it is sampled."""
CPU_BIN = 32768
FEWEST_RUNNING = 16


class CannotFit(ValueError):
    """The model, the context and the devices do not go together.  The message has the numbers and what to lower."""


class Device(msgspec.Struct, frozen=True):
    index: int
    total: int
    """Bytes."""
    free: int
    """Bytes that no foreign process holds."""


class EnginePlan(msgspec.Struct, frozen=True, kw_only=True):
    """One engine on one device.  All sizes in bytes."""

    device: int
    mem_fraction: float
    """`static` as a share of what is free when the server starts, which is how SGLang reads it."""
    weights: int
    lora: int
    kv: int
    kv_tokens: int
    max_running_requests: int
    release_kv: bool
    """Whether the KV cache must be given back while the trainer works."""

    @property
    def static(self) -> int:
        return self.weights + self.lora + self.kv


class MemoryPlan(msgspec.Struct, frozen=True, kw_only=True):
    devices: tuple[Device, ...]
    """Those in use."""
    engines: tuple[EnginePlan, ...]
    """In the order of engine.devices; empty for the embedded engine."""
    trainer_devices: tuple[int, ...]
    trainer_idle: int
    """Bytes of a trainer rank between its steps."""
    trainer_peak: int
    """Bytes of a trainer rank in a step."""
    max_tokens_per_gpu: int

    @property
    def release_kv(self) -> bool:
        return any(engine.release_kv for engine in self.engines)

    def engine(self, device: int) -> EnginePlan:
        return next(engine for engine in self.engines if engine.device == device)

    def lines(self) -> list[str]:
        """For people, a line a device."""
        return [self._line(device) for device in self.devices]

    def _line(self, device: Device) -> str:
        engine = next((engine for engine in self.engines if engine.device == device.index), None)
        parts: list[str] = []
        if engine:
            parts.append(
                f"engine {_gib(engine.static)} (weights {_gib(engine.weights)}, KV {_gib(engine.kv)} = "
                f"{engine.kv_tokens // 1000}k tokens, {engine.max_running_requests} rollouts at once) and "
                f"{_gib(ENGINE_OVERHEAD)} overhead"
            )
        if device.index in self.trainer_devices:
            parts.append(f"trainer {_gib(self.trainer_peak)} at bins of {self.max_tokens_per_gpu} tokens")
        if len(parts) > 1 and engine:
            parts.append("KV cache " + ("given back for training" if engine.release_kv else "stays during training"))
        return f"GPU {device.index} ({_gib(device.total)}, {_gib(device.free)} free): " + "; ".join(parts)


class _Rank(msgspec.Struct, frozen=True):
    """What a trainer rank takes, by the tokens of its bin."""

    idle: int
    chunk: int
    token: int

    def peak(self, tokens: int) -> int:
        return self.idle + self.chunk + tokens * self.token

    def tokens(self, room: int) -> int:
        """Of the largest bin that fits into `room` bytes; below 1 when none does."""
        return (room - self.idle - self.chunk) // self.token


class _Room(msgspec.Struct, frozen=True):
    """What an engine can have for its KV cache on one device, in bytes."""

    kept: int
    """Beside the trainer at its peak."""
    released: int
    """Beside the idle trainer."""
    shared: bool


def plan_for(config: Config, folder: Path, found: Sequence[GpuInfo], rollouts: int | None = None) -> MemoryPlan:
    """The plan of a run with the model in `folder` on the devices `found`; `rollouts`: a step's, default the config's.

    Raises CannotFit, ValueError for files that are no model, OSError for none.
    """
    for field, rule in gpus.missing(config, list(found)):
        raise CannotFit(f"{field}: {rule}")
    return plan(config, shape(folder, config.model.dtype), [_device(gpu) for gpu in found], rollouts)


def plan(config: Config, model: ModelShape, devices: Sequence[Device], rollouts: int | None = None) -> MemoryPlan:
    """Raises CannotFit."""
    there = {device.index: device for device in devices}
    engines = config.engine.devices if config.engine.backend == "sglang" else ()
    rank = trainer_rank(config, model)
    for index in engines:
        _check_engine(config, model, there[index], 0)
    tokens = _bin(config, model, there, engines, rank)
    peak = rank.peak(max(tokens, config.engine.context_length))  # a longer sample gets a bin of its own
    share = -(-(rollouts or config.grid.groups * config.grid.rollouts) // max(1, len(engines)))
    used = [there[index] for index in sorted({*engines, *config.trainer.devices})]
    return MemoryPlan(
        devices=tuple(used),
        engines=tuple(_engine(config, model, there[index], rank.peak(SCORED), peak, share) for index in engines),
        trainer_devices=config.trainer.devices,
        trainer_idle=rank.idle,
        trainer_peak=peak,
        max_tokens_per_gpu=tokens,
    )


def kv_token(model: ModelShape) -> int:
    """Bytes of one token's keys and values in all layers."""
    return 2 * model.layers * model.kv_heads * model.head_dim * model.width


def lora_parameters(model: ModelShape, rank: int, targets: Sequence[str]) -> int:
    return model.layers * rank * sum(sum(model.projections[target]) for target in targets)


def engine_fixed(config: Config, model: ModelShape) -> int:
    """Bytes of SGLang's static share before its KV cache."""
    return model.weights_bytes + _slots(config, model)


def trainer_rank(config: Config, model: ModelShape) -> _Rank:
    """Activations: the inputs of all layers, kept, and one layer recomputed; or all layers kept."""
    trainer = config.trainer
    split = trainer.tensor_parallel
    lora = lora_parameters(model, trainer.rank, trainer.targets)
    fused = 6 * model.hidden + (6 * model.intermediate + model.qkv) // split
    inputs = model.layers * model.hidden
    kept = inputs + PASSES * fused if trainer.recompute else (model.layers + PASSES) * fused
    return _Rank(
        idle=model.weights_bytes // split + lora * LORA_STATE + TRAINER_CONTEXT,
        chunk=trainer.logprob_chunk * model.vocab // split * LOGIT_BYTES,
        token=kept * model.width,
    )


def _slots(config: Config, model: ModelShape) -> int:
    return LORA_SLOTS * lora_parameters(model, config.trainer.rank, config.trainer.targets) * model.width


def _bin(config: Config, model: ModelShape, there: Mapping[int, Device], engines: tuple[int, ...], rank: _Rank) -> int:
    """Tokens of a bin: as configured, else a whole context, and in small contexts as much as fits of SMALLEST_BIN."""
    context, asked = config.engine.context_length, config.trainer.max_tokens_per_gpu
    if not config.trainer.devices:
        return asked or CPU_BIN
    beside = engine_fixed(config, model) + ENGINE_OVERHEAD
    rooms = {index: there[index].free - beside * (index in engines) for index in config.trainer.devices}
    tightest = min(rooms, key=lambda index: rooms[index])
    least, fit = max(asked or 0, context), rank.tokens(rooms[tightest])
    if fit < least:
        raise CannotFit(_no_bin(there[tightest], rank, least, max(0, rooms[tightest]), tightest in engines))
    return asked or min(max(context, SMALLEST_BIN), fit)


def _engine(config: Config, model: ModelShape, device: Device, idle: int, peak: int, share: int) -> EnginePlan:
    """`share`: rollouts of a step that this engine gets."""
    context, fixed = config.engine.context_length, engine_fixed(config, model)
    left, shared = device.free - fixed - ENGINE_OVERHEAD, device.index in config.trainer.devices
    room = _Room(left - peak * shared, left - idle * shared, shared)
    one = _check_engine(config, model, device, idle * shared)
    asked = config.engine.mem_fraction
    kv, release = _pool(room, one, share) if asked is None else _given(device, fixed, room, one, asked)
    tokens = kv // kv_token(model)
    return EnginePlan(
        device=device.index,
        mem_fraction=(fixed + kv) / device.free,
        weights=model.weights_bytes,
        lora=fixed - model.weights_bytes,
        kv=kv,
        kv_tokens=tokens,
        max_running_requests=config.engine.max_running_requests or _running(tokens, context, share),
        release_kv=release,
    )


def _check_engine(config: Config, model: ModelShape, device: Device, idle: int) -> int:
    """Bytes of one context's KV cache.  Raises CannotFit when not even that fits beside a trainer of `idle` bytes."""
    fixed, one = engine_fixed(config, model), config.engine.context_length * kv_token(model)
    left = device.free - fixed - ENGINE_OVERHEAD - idle
    if left >= one:
        return one
    trainer = f" and the idle trainer ({_gib(idle)})" if idle else ""
    raise CannotFit(
        f"GPU {device.index}: of {_gib(device.free)} free, the engine's weights ({_gib(model.weights_bytes)}), LoRA "
        f"({_gib(fixed - model.weights_bytes)}) and overhead ({_gib(ENGINE_OVERHEAD)}){trainer} leave "
        f"{_gib(max(0, left))} for the KV cache; one whole context takes {_gib(one)}; lower engine.context_length, "
        "take a smaller model, or give engine and trainer devices of their own"
    )


def _pool(room: _Room, one: int, share: int) -> tuple[int, bool]:
    """Bytes of the KV cache, at most for the whole grid, and whether it is given back; `one`: of a whole context."""
    everything = max(share * one, SMALLEST_POOL)
    tight = room.kept < min(FULL_CONTEXTS, share) * one
    release = room.shared and room.kept < everything and (tight or room.released >= WORTHWHILE * room.kept)
    return min(everything, room.released if release else room.kept), release


def _given(device: Device, fixed: int, room: _Room, one: int, fraction: float) -> tuple[int, bool]:
    """The KV cache of a configured engine.mem_fraction."""
    kv = int(fraction * device.free) - fixed
    least, most = (fixed + one) / device.free, (fixed + room.released) / device.free
    if not one <= kv <= room.released:
        raise CannotFit(
            f"GPU {device.index}: engine.mem_fraction = {fraction:g} cannot be; of the {_gib(device.free)} free, one "
            f"whole context needs {least:.3f} and at most {most:.3f} can be had; leave it out to have it planned"
        )
    return kv, kv > room.kept


def _running(tokens: int, context: int, share: int) -> int:
    """Rollouts at once: most answers are far shorter than the longest, and SGLang puts back what does not fit."""
    fit = tokens // max(1, context // LIVE_SHARE) // 8 * 8
    return max(FEWEST_RUNNING, min(fit, -(-share // 8) * 8))


def _device(gpu: GpuInfo) -> Device:
    return Device(gpu.index, gpu.memory_total, gpu.memory_total - gpu.memory_used)


def _no_bin(device: Device, rank: _Rank, tokens: int, room: int, shared: bool) -> str:
    beside = " beside the engine's weights and overhead" if shared else ""
    return (
        f"GPU {device.index}: training on one bin of {tokens} tokens takes {_gib(rank.peak(tokens))}, but "
        f"{_gib(room)} of {_gib(device.total)} are there{beside}; lower engine.context_length or "
        "trainer.max_tokens_per_gpu, raise trainer.tensor_parallel, or give the trainer a device of its own"
    )


def _gib(count: int) -> str:
    return f"{count / GIB:.1f} GiB"
