"""The memory plan: reference plans for one and two H200, what is refused, and what holds for any device."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from test_shape import write_model

from tttdd import gpus, memory
from tttdd.config import LORA_TARGETS, Config, Engine, Grid, Model, Trainer
from tttdd.memory import CannotFit, Device, MemoryPlan
from tttdd.protocol import GpuInfo, GpuProcess
from tttdd.shape import ModelShape

GIB = 2**30
QWEN3_8B = ModelShape(
    parameters=8_190_735_360,
    width=2,
    layers=36,
    hidden=4096,
    intermediate=12288,
    heads=32,
    kv_heads=8,
    head_dim=128,
    vocab=151936,
)
SMOLLM2_135M = ModelShape(
    parameters=134_515_008,
    width=2,
    layers=30,
    hidden=576,
    intermediate=1536,
    heads=9,
    kv_heads=3,
    head_dim=64,
    vocab=49152,
)


def settings(
    engine: tuple[int, ...] = (0,),
    trainer: tuple[int, ...] = (0,),
    *,
    grid: Grid | None = None,
    training: dict[str, Any] | None = None,
    **serving: Any,
) -> Config:
    return Config(
        model=Model(path="m"),
        engine=Engine(devices=engine, **serving),
        trainer=Trainer(devices=trainer, **(training or {})),
        grid=grid or Grid(),
    )


def h200(count: int = 1) -> list[Device]:
    return [Device(index, int(139.8 * GIB), int(139.2 * GIB)) for index in range(count)]


def card(free: int) -> list[Device]:
    return [Device(0, free, free)]


def planned(plan: MemoryPlan, device: int) -> list[int]:
    """Bytes on a device while it samples, and while it trains."""
    engine = next((engine for engine in plan.engines if engine.device == device), None)
    trains = device in plan.trainer_devices
    sampling, training = plan.trainer_idle * trains, plan.trainer_peak * trains
    if engine:
        held = engine.static + memory.ENGINE_OVERHEAD
        sampling, training = sampling + held, training + held - engine.kv * engine.release_kv
    return [sampling, training]


def test_lora_of_rank_32_on_all_projections_of_qwen3_8b_has_87_million_parameters() -> None:
    assert memory.lora_parameters(QWEN3_8B, 32, LORA_TARGETS) == 87_293_952


def test_a_token_of_qwen3_8b_takes_144_kib_of_cache() -> None:
    assert memory.kv_token(QWEN3_8B) == 144 * 1024


def test_the_reference_on_one_device_gives_its_cache_back_for_training() -> None:
    plan = memory.plan(settings(), QWEN3_8B, h200())
    (engine,) = plan.engines
    assert plan.release_kv
    assert plan.max_tokens_per_gpu == 32768
    assert 30 * GIB < plan.trainer_peak < 50 * GIB
    assert 600_000 < engine.kv_tokens < 800_000
    assert 0.75 < engine.mem_fraction < 0.9
    assert engine.max_running_requests % 8 == 0
    assert 128 <= engine.max_running_requests <= 256


def test_the_reference_on_two_devices_has_all_of_one_for_the_engine() -> None:
    plan = memory.plan(settings((0,), (1,)), QWEN3_8B, h200(2))
    assert not plan.release_kv
    assert 0.9 < plan.engine(0).mem_fraction < 0.97
    assert plan.engine(0).kv_tokens > memory.plan(settings(), QWEN3_8B, h200()).engine(0).kv_tokens


def test_two_engines_and_a_trainer_beside_the_second() -> None:
    plan = memory.plan(settings((0, 1), (1,)), QWEN3_8B, h200(2))
    assert [engine.release_kv for engine in plan.engines] == [False, True]
    assert plan.engine(0).kv_tokens == memory.plan(settings((0,), (1,)), QWEN3_8B, h200(2)).engine(0).kv_tokens
    assert plan.engine(1).kv_tokens == memory.plan(settings(), QWEN3_8B, h200()).engine(0).kv_tokens


def test_a_small_model_has_room_for_its_whole_grid_beside_the_trainer() -> None:
    plan = memory.plan(settings(context_length=4096), SMOLLM2_135M, h200())
    assert not plan.release_kv
    assert plan.engine(0).kv_tokens == 512 * 4096
    assert plan.engine(0).max_running_requests == 512
    assert plan.max_tokens_per_gpu == memory.SMALLEST_BIN


def test_a_tiny_grid_leaves_sglang_more_than_what_it_counts_beside_the_weights() -> None:
    """On an H200 it refused a tiny model's eight contexts: they were less than it missed after loading the weights."""
    plan = memory.plan(settings(context_length=1024), SMOLLM2_135M, h200(), 8)
    assert plan.engine(0).kv == memory.SMALLEST_POOL and not plan.release_kv


def test_the_trainers_figure_covers_the_forward_pass_that_was_measured() -> None:
    """On an H200: 26 GB at 24k tokens, no gradients, so no layer's input was kept."""
    forward = memory.trainer_rank(settings(), QWEN3_8B)
    without_inputs = forward.peak(24_000) - 24_000 * QWEN3_8B.layers * QWEN3_8B.hidden * QWEN3_8B.width
    assert 26e9 < without_inputs < 32e9


def test_what_is_configured_is_taken() -> None:
    config = settings(mem_fraction=0.6, max_running_requests=100, training={"max_tokens_per_gpu": 40_000})
    plan = memory.plan(config, QWEN3_8B, h200())
    assert plan.engine(0).mem_fraction == pytest.approx(0.6)
    assert plan.engine(0).max_running_requests == 100
    assert plan.max_tokens_per_gpu == 40_000
    assert not plan.release_kv


def test_a_small_configured_bin_still_leaves_room_for_the_longest_sample() -> None:
    small = memory.plan(settings(training={"max_tokens_per_gpu": 1000}), QWEN3_8B, h200())
    assert small.max_tokens_per_gpu == 1000
    assert small.trainer_peak == memory.plan(settings(), QWEN3_8B, h200()).trainer_peak


def test_the_embedded_engine_on_the_cpu_needs_no_device() -> None:
    plan = memory.plan(settings((), (), backend="torch"), SMOLLM2_135M, [])
    assert (plan.engines, plan.max_tokens_per_gpu, plan.lines()) == ((), memory.CPU_BIN, [])


def test_splitting_the_model_over_devices_makes_a_rank_smaller() -> None:
    ranks = [memory.trainer_rank(settings(training={"tensor_parallel": split}), QWEN3_8B) for split in (1, 2, 4)]
    assert ranks[0].peak(32768) > ranks[1].peak(32768) > ranks[2].peak(32768)


def test_a_step_of_another_size_than_the_configured_can_be_planned() -> None:
    assert memory.plan(settings(context_length=4096), SMOLLM2_135M, h200(), 64).engine(0).kv_tokens == 64 * 4096


@pytest.mark.parametrize(
    ("config", "free", "said"),
    [
        (settings(), 20, r"GPU 0: of 20.0 GiB free, the engine's weights \(15.3 GiB\).* leave 0.0 GiB for the KV"),
        (settings(), 60, r"one bin of 32768 tokens takes 4\d.\d GiB, but 38.4 GiB of 60.0 GiB are there beside"),
        (settings((0,), ()), 25, r"leave 3.\d GiB for the KV cache; one whole context takes 4.5 GiB"),
        (settings(mem_fraction=0.97), 139, r"engine.mem_fraction = 0.97 cannot be; .* at most 0.8\d\d can be had"),
        (settings(training={"max_tokens_per_gpu": 200_000}), 139, r"one bin of 200000 tokens takes 1\d\d"),
    ],
)
def test_what_cannot_fit_is_refused_with_the_numbers(config: Config, free: int, said: str) -> None:
    with pytest.raises(CannotFit, match=said):
        memory.plan(config, QWEN3_8B, card(free * GIB))


def test_the_plan_reads_well() -> None:
    (line,) = memory.plan(settings(), QWEN3_8B, h200()).lines()
    size = r"\d+\.\d GiB"
    assert re.fullmatch(
        rf"GPU 0 \(139.8 GiB, 139.2 GiB free\): engine {size} \(weights 15.3 GiB, KV {size} = \d+k tokens, "
        rf"\d+ rollouts at once\) and {size} overhead; trainer {size} at bins of 32768 tokens; "
        "KV cache given back for training",
        line,
    )


GRIDS = st.builds(Grid, groups=st.integers(1, 16), rollouts=st.integers(3, 64))
CONFIGS = st.builds(
    lambda devices, grid, context, split, recompute: settings(
        *devices,
        grid=grid,
        context_length=context,
        training={"tensor_parallel": split if len(devices[1]) % split == 0 else 1, "recompute": recompute},
    ),
    st.sampled_from([((0,), (0,)), ((0,), (1,)), ((0, 1), (1,)), ((0, 1), (0, 1)), ((0,), ())]),
    GRIDS,
    st.sampled_from([2048, 4096, 32768, 131072]),
    st.sampled_from([1, 2]),
    st.booleans(),
)
MODELS = st.sampled_from([QWEN3_8B, SMOLLM2_135M])
FREE = st.integers(1 * GIB, 300 * GIB)


def on(free: int) -> list[Device]:
    return [Device(index, free + GIB, free) for index in range(2)]


@given(CONFIGS, MODELS, FREE)
def test_no_device_is_planned_fuller_than_it_is(config: Config, model: ModelShape, free: int) -> None:
    try:
        plan = memory.plan(config, model, on(free))
    except CannotFit:
        assume(False)
        return
    for device in plan.devices:
        assert max(planned(plan, device.index)) <= device.free
    for engine in plan.engines:
        assert 0 < engine.mem_fraction < 1
        assert engine.kv_tokens >= config.engine.context_length
    assert plan.max_tokens_per_gpu >= config.engine.context_length or not config.trainer.devices


@given(CONFIGS, MODELS, FREE, st.integers(0, 100 * GIB))
def test_more_memory_never_gives_fewer_tokens(config: Config, model: ModelShape, free: int, more: int) -> None:
    """But for what is no longer worth a release: at most a tenth."""
    try:
        small, large = memory.plan(config, model, on(free)), memory.plan(config, model, on(free + more))
    except CannotFit:
        assume(False)
        return
    assert large.max_tokens_per_gpu >= small.max_tokens_per_gpu
    for before, after in zip(small.engines, large.engines, strict=True):
        kept = after.release_kv == before.release_kv
        assert after.kv_tokens * (1 if kept else memory.WORTHWHILE) >= before.kv_tokens - 1


@given(CONFIGS, MODELS, FREE)
def test_it_is_refused_exactly_when_the_least_does_not_fit(config: Config, model: ModelShape, free: int) -> None:
    context = config.engine.context_length
    rank = memory.trainer_rank(config, model)
    lora = memory.lora_parameters(model, 32, LORA_TARGETS) * 2 * 2
    fits = True
    for device in {*config.engine.devices, *config.trainer.devices}:
        serves, trains = device in config.engine.devices, device in config.trainer.devices
        engine = (2 * model.parameters + lora + memory.ENGINE_OVERHEAD) * serves
        cache = context * 4 * model.layers * model.kv_heads * model.head_dim * serves
        fits &= engine + cache + rank.idle * trains <= free and engine + rank.peak(context) * trains <= free
    try:
        memory.plan(config, model, on(free))
    except CannotFit:
        assert not fits
    else:
        assert fits


def gpu(used: int, **held: int) -> GpuInfo:
    processes = [GpuProcess(pid=1, memory=size, owner=owner) for owner, size in held.items()]
    return GpuInfo(index=0, name="x", memory_total=140 * GIB, memory_used=used, load=0.0, processes=processes)


def test_a_run_to_come_may_count_on_what_the_workers_of_now_hold(tmp_path: Path) -> None:
    folder = write_model(tmp_path, {"a.safetensors": [8]})
    ours = gpus.without_workers([gpu(51 * GIB, engine=40 * GIB, trainer=10 * GIB)])
    foreign = gpus.without_workers([gpu(51 * GIB, python=50 * GIB)])
    plans = [memory.plan_for(settings(), folder, found) for found in (ours, foreign)]
    assert [plan.devices[0].free for plan in plans] == [139 * GIB, 89 * GIB]


def test_a_plan_for_a_device_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CannotFit, match=r"engine.devices: there is no GPU 1; this machine has 1 \(0\)"):
        memory.plan_for(settings((0, 1)), tmp_path, [gpu(0)])
