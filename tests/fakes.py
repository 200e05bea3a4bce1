"""Hand-written fakes of the ports, shared by the tests: small, deterministic, with their faults as arguments."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pynvml  # pyright: ignore[reportMissingTypeStubs]

from judges.verdict import Verdict
from tttdd.assignment import Assignment
from tttdd.desk import Desk
from tttdd.domain import batch as batches
from tttdd.domain.batch import TrainReport
from tttdd.domain.grid import Coordinate
from tttdd.domain.prompt import Prompt, TaskPrompt, starter_program
from tttdd.errors import NotFound, Refused
from tttdd.folder import RunFolder
from tttdd.gate import Gate
from tttdd.ports import Judge, ModelFiles, Observer, OnText, Probe, Release, Sampled, Store, Turn, WorkerFailed
from tttdd.protocol import CellState, PhaseName, Proof, TaskInfo
from tttdd.world import Plan, World


class Crash(RuntimeError):
    """The daemon dies here."""


def _number(*parts: object) -> float:
    """A reproducible number in (0, 1)."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:6], "big") / 2**48


class FakeWeights:
    """Log-probs that depend on the tokens and on the release's folder, shared by engine and trainer."""

    @staticmethod
    def logprobs(probe: Probe, folder: Path | None) -> list[float]:
        mark = json.loads((folder / "release.json").read_text())["mark"] if folder else 0.0
        return [-1.0 - 0.1 * mark * _number(token) for token in probe.completion_ids]


class FakeEngine:
    """Samples `0.1, 0.4]`-like lists.  `stuck`: keeps serving what it served first.  `crash_at`: coordinate seeds."""

    reproducible = True

    def __init__(self, *, stuck: bool = False, deaf: bool = False, crash_after: int | None = None) -> None:
        self.stuck, self.deaf, self.crash_after = stuck, deaf, crash_after
        self.served: dict[int, Path | None] = {}
        self.sampled: list[int] = []
        self.rested = 0

    async def publish(self, release: Release) -> str:
        first = next(iter(self.served.values()), release.path)
        last = list(self.served.values())[-1] if self.served else release.path
        self.served[release.number] = first if self.deaf else last if self.stuck else release.path
        return f"load-{release.number}-{len(self.served)}"

    async def keep(self, release: int) -> None:
        self.served = {number: path for number, path in self.served.items() if number in (0, release)}

    async def rest(self) -> None:
        self.rested += 1

    async def encode(self, prompt: Prompt) -> list[int]:
        return list(prompt.text.encode())

    async def encode_chat(self, messages: list[Turn], thinking: bool | None) -> list[int]:
        if not messages:
            raise WorkerFailed("the model's chat template refuses the conversation: it is empty")
        said = "".join(f"{turn.role}: {turn.content}\n" for turn in messages)
        return list(f"{said}assistant: {'<think>' if thinking else ''}".encode())

    async def encode_more(self, text: str) -> list[int]:
        return list(text.encode())

    async def sample(
        self,
        prompt_ids: list[int],
        *,
        release: int,
        seed: int,
        stop: tuple[str, ...],
        max_new_tokens: int,
        on_text: OnText | None = None,
    ) -> Sampled:
        if self.crash_after is not None and len(self.sampled) >= self.crash_after:
            raise Crash("in sampling")
        self.sampled.append(seed)
        text = ", ".join(f"{_number(seed, place):.3f}" for place in range(4)) + (stop[0] if stop else "")
        await _say(text, on_text)
        ids = list(text.encode())
        return Sampled(ids, [-1.0] * len(ids), [True] * len(ids), text, "stop", release)

    async def score(self, probe: Probe, *, release: int) -> list[list[float]]:
        return [FakeWeights.logprobs(probe, self.served[release])]


async def _say(text: str, on_text: OnText | None) -> None:
    """A character at a time, and others come in between."""
    if on_text is not None:
        for character in text:
            on_text(character)
            await anyio.lowlevel.checkpoint()


class ScriptedEngine(FakeEngine):
    """One token a byte.  Says `script`; once tokens have been forced behind what it said, `then`."""

    def __init__(self, script: str, then: str = "") -> None:
        super().__init__()
        self._script, self._then = script.encode(), then.encode()
        self._said = b""
        self.asked: list[tuple[list[int], int, int]] = []

    async def sample(
        self,
        prompt_ids: list[int],
        *,
        release: int,
        seed: int,
        stop: tuple[str, ...],
        max_new_tokens: int,
        on_text: OnText | None = None,
    ) -> Sampled:
        self.asked.append((prompt_ids, seed, max_new_tokens))
        goes_on = bytes(prompt_ids).endswith(self._said)
        left = self._script[len(self._said) :] if goes_on else self._then
        said = left[:max_new_tokens]
        self._said += said
        await _say(said.decode(), on_text)
        reason = "stop" if len(said) == len(left) else "length"
        return Sampled(list(said), [-1.0] * len(said), [True] * len(said), said.decode(), reason, release)


class FakeTrainer:
    """Writes a release folder.  `crash`: "before" or "after" the folder is there.  `faults`: raised, one a call."""

    def __init__(self, *, crash: str = "", frozen: bool = False) -> None:
        self.crash, self.frozen = crash, frozen
        self.faults: list[Exception | None] = []
        self.trained: list[tuple[int, str]] = []

    async def train(self, release: Release, batch: Path, target: Release) -> TrainReport:
        if self.crash == "before":
            raise Crash("before training")
        if self.faults and (fault := self.faults.pop(0)):
            raise fault
        assert target.path is not None
        if not target.path.exists():
            self.trained.append((release.number, batches.read(batch).run))
            target.path.mkdir(parents=True)
            mark = 0.0 if self.frozen else float(target.number)
            (target.path / "release.json").write_text(json.dumps({"mark": mark}))
        if self.crash == "after":
            raise Crash("after training")
        return TrainReport(0.1, 1.0, 1e-7, 0.01, 0.5, 100, 1.0)

    async def score(self, probe: Probe, *, release: Release) -> list[float]:
        return FakeWeights.logprobs(probe, release.path)


class FixedTrainer(FakeTrainer):
    """Scores a probe by a table: log-probs by release folder."""

    def __init__(self, table: Mapping[Path | None, list[float]]) -> None:
        super().__init__()
        self._table = table

    async def score(self, probe: Probe, *, release: Release) -> list[float]:
        return self._table[release.path]


class FakeJudge:
    """Rewards the sum of the program's numbers; rejects a list that begins with a small one."""

    def __init__(self) -> None:
        self.graded: Counter[str] = Counter()

    async def grade(self, program: str) -> Verdict:
        self.graded[program] += 1
        numbers = [float(text) for text in program.split("[")[1].split("]")[0].split(",")]
        if numbers[0] < 0.3:
            return Verdict(valid=False, reason="constraint", detail=f"{numbers[0]} is too small")
        artifact = json.dumps(numbers)
        sha256 = hashlib.sha256(artifact.encode()).hexdigest()
        total = sum(numbers)
        return Verdict(valid=True, reward=total, objective=total, artifact=artifact, artifact_sha256=sha256)


class FakeObserver:
    """Keeps what it was told; `crash_at` dies when a phase begins."""

    def __init__(self, *, crash_at: PhaseName | None = None) -> None:
        self.crash_at = crash_at
        self.phases: list[tuple[int, int, PhaseName]] = []
        self.cells: dict[Coordinate, CellState] = {}
        self.proofs: list[Proof] = []

    def phase(self, step: int, release: int, phase: PhaseName) -> None:
        self.phases.append((step, release, phase))
        if phase == self.crash_at and step > 0:
            raise Crash(f"as {phase} begins")

    def cell(self, coordinate: Coordinate, state: CellState) -> None:
        self.cells[coordinate] = state

    def progress(self, share: float) -> None:
        assert 0 <= share <= 1

    def proved(self, proof: Proof) -> None:
        self.proofs.append(proof)

    def committed(self, step: int, metrics: dict[str, float]) -> None:
        msgspec.json.encode(metrics)


class FakeCatalog:
    """One task, `t`, whose starter, instruction and judge can be changed."""

    def __init__(self, judge: Judge) -> None:
        self.judge, self.instruction, self.starter = judge, "Make the sum large.", "h = [⟦0.4, 0.1⟧]\n"
        self.loads = 0
        self.broken: list[str] = []

    def names(self) -> list[str]:
        return [*self.broken, "t"]

    def load(self, name: str) -> Assignment:
        if name in self.broken:
            raise Refused(f"{name}/task.toml: cannot read it", field="task")
        if name != "t":
            raise NotFound(f"there is no task named {name!r}", field="task")
        self.loads += 1
        return Assignment(
            info=TaskInfo(
                name="t", title="T", objective="sum", direction="higher", target=9.5, time_limit=1.0, entry_point="h"
            ),
            prompt=TaskPrompt(
                instruction=self.instruction, short_instruction="", style="completion", starter=self.starter
            ),
            judge=self.judge,
            identity={"instruction": self.instruction},
            starter=starter_program(self.starter),
        )


class FakeWorkshop:
    """Fake workers over the real store.  The gates hold a run: before its model, its workers' start and their end."""

    def __init__(self, store: Store, state_dir: Path) -> None:
        self._store, self._state_dir = store, state_dir
        self.trainer = FakeTrainer()
        self.make_engine: Callable[[], FakeEngine] = FakeEngine
        self.model, self.start, self.end = Gate(), Gate(), Gate()
        self.opened: list[str] = []
        self.live: set[str] = set()

    async def prepare(self, progress: Callable[[str, float | None], None]) -> ModelFiles:
        progress("model", 0.5)
        await self.model.wait()
        return ModelFiles(Path("m"), "revision")

    @asynccontextmanager
    async def open(
        self, plan: Plan, files: ModelFiles, judge: Judge | None, desk: Desk, observer: Observer, gate: Gate
    ) -> AsyncGenerator[World]:
        self.opened.append(plan.name)
        self.live.add(plan.name)
        try:
            await self.start.wait()
            yield World(
                engine=self.make_engine(),
                trainer=self.trainer if plan.trains else None,
                judge=judge,
                desk=desk,
                store=self._store,
                observer=observer,
                gate=gate,
                folder=RunFolder(self._state_dir / "runs" / plan.name),
            )
        finally:
            with anyio.CancelScope(shield=True):
                await self.end.wait()
            self.live.remove(plan.name)


class FakeRoom:
    def __init__(self) -> None:
        self.free = True

    def needed(self, run: str) -> int:
        return 7 << 20

    def enough(self, run: str) -> bool:
        return self.free


class FakeNvml:
    """pynvml with `devices`: {total, used, load?, processes?: {pid: bytes}} each.  `broken`: functions that raise."""

    def __init__(self, *devices: dict[str, Any], broken: frozenset[str] | set[str] = frozenset()) -> None:
        self.devices, self.broken = list(devices), broken
        self.open = 0

    def _may(self, name: str) -> None:
        if name in self.broken:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)

    def nvmlInit(self) -> None:
        self._may("nvmlInit")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self._may("nvmlShutdown")
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        self._may("nvmlDeviceGetCount")
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, Any]:
        assert self.open
        self._may(f"nvmlDeviceGetHandleByIndex {index}")
        return self.devices[index]

    def nvmlDeviceGetName(self, handle: dict[str, Any]) -> str:
        return "NVIDIA H200"

    def nvmlDeviceGetMemoryInfo(self, handle: dict[str, Any]) -> SimpleNamespace:
        self._may("nvmlDeviceGetMemoryInfo")
        return SimpleNamespace(total=handle["total"], used=handle["used"])

    def nvmlDeviceGetUtilizationRates(self, handle: dict[str, Any]) -> SimpleNamespace:
        self._may("nvmlDeviceGetUtilizationRates")
        return SimpleNamespace(gpu=handle.get("load", 0))

    def nvmlDeviceGetComputeRunningProcesses(self, handle: dict[str, Any]) -> list[SimpleNamespace]:
        self._may("nvmlDeviceGetComputeRunningProcesses")
        return [SimpleNamespace(pid=pid, usedGpuMemory=held) for pid, held in handle.get("processes", {}).items()]
