"""Is a wrong publish caught?  Faults are put between the daemon's engine adapter and SGLang, on a run's own releases.

    python benchmarks/proof_faults.py --config tttdd.toml --state-dir state --run erdos_min_overlap-1

    stale     the folder of the release before is loaded under the new name
    swapped   two layers of the LoRA weights have changed places
    nameless  requests name no release: SGLang answers with the base

Each is tried on the run's newest release, from a state in which the release before it is served and proved.
Prints what the serving proof said, the numbers of a right publish, and one JSON object.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import anyio
import msgspec
from hardware import described

sys.path.append(sys.path.pop(0))  # benchmarks/judges.py must not hide the package

from tttdd import config, gpus, memory
from tttdd.adapters.catalog import JudgeCatalog
from tttdd.adapters.sglang import Generated, SglangEngine
from tttdd.adapters.sglang_server import Server
from tttdd.adapters.store import SqliteStore
from tttdd.adapters.workshop import LocalWorkshop
from tttdd.config import Config
from tttdd.desk import Desk
from tttdd.folder import RunFolder
from tttdd.gate import Gate
from tttdd.ports import ModelFiles, PublishFailed, Release
from tttdd.serving import Serving, make_probe


class FaultyEngine(SglangEngine):
    """`fault` is in force from when it is set."""

    fault = ""
    before: Path
    """Folder of the release before."""

    def _stage(self, source: Path, load_id: str) -> str:
        if self.fault == "stale":
            return super()._stage(self.before, load_id)
        staged = super()._stage(source, load_id)
        if self.fault == "swapped":
            swap_layers(Path(staged) / "adapter_model.safetensors")
        return staged

    async def _generate(self, server: Server, ids: list[int], release: int, *rest: Any, **more: Any) -> Generated:
        return await super()._generate(server, ids, 0 if self.fault == "nameless" else release, *rest, **more)


def swap_layers(file: Path) -> None:
    """The first layer's LoRA weights in the last layer's place, and the other way round."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(file)
    last = max(int(found[1]) for name in tensors if (found := re.search(r"layers\.(\d+)\.", name)))
    other = {0: last, last: 0}

    def moved(name: str) -> str:
        return re.sub(r"layers\.(\d+)\.", lambda found: f"layers.{other.get(int(found[1]), int(found[1]))}.", name)

    file.unlink()  # a hard link: the release itself stays as it is
    save_file({moved(name): tensor for name, tensor in tensors.items()}, file, metadata={"format": "pt"})


class Quiet:
    def phase(self, *_: Any) -> None: ...
    def progress(self, *_: Any) -> None: ...
    def cell(self, *_: Any) -> None: ...
    def proved(self, *_: Any) -> None: ...


class NoJudges:
    """No program is judged here."""

    def granted(self, task: Any) -> Any:
        return task

    def for_task(self, *_: Any) -> None: ...


class FaultyWorkshop(LocalWorkshop):
    def _engine(self, *arguments: Any) -> Any:
        engine = super()._engine(*arguments)
        engine.__class__ = FaultyEngine
        return engine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--state-dir", type=Path, required=True)
    parser.add_argument("--run", required=True)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result = anyio.run(measure, options, config.load(options.config))
    result = {
        "benchmark": "proof_faults",
        "command": " ".join(["python", *sys.argv]),
        "date": time.strftime("%Y-%m-%d"),
        "machine": described(),
        **result,
    }
    print(json.dumps(result))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    if missed := [fault for fault, said in result["faults"].items() if not said.startswith("caught")]:
        sys.exit(f"not caught: {', '.join(missed)}")


async def measure(options: argparse.Namespace, settings: Config) -> dict[str, Any]:
    assert settings.model.path is not None
    files = ModelFiles(Path(settings.model.path), "")
    store = SqliteStore(options.state_dir)
    run = store.run(options.run)
    folder = RunFolder(options.state_dir / "runs" / options.run)
    newest, before = (folder.release(run.release - back) for back in (0, 1))
    if run.release < 2:
        sys.exit(f"{options.run} has {run.release} releases; two are needed")
    task = JudgeCatalog(settings, NoJudges()).load(run.task).prompt  # pyright: ignore[reportArgumentType]
    found: dict[str, Any] = {"release": newest.number, "faults": {}}
    plan: Any = argparse.Namespace(
        name=options.run,
        trains=True,
        task=task,
        groups=1,
        rollouts=8,
        seed=0,
        context_length=settings.engine.context_length,
    )
    with tempfile.TemporaryDirectory() as scratch:
        workshop: Any = FaultyWorkshop(settings, store, Path(scratch))
        print("\n".join(memory.plan_for(settings, files.path, gpus.read(), 8).lines()))
        async with workshop.open(plan, files, None, Desk(store, lambda: None), Quiet(), Gate()) as world:
            probe = await make_probe(world.engine, task, store.archive(run.run).seeds[0], plan.context_length)
            found["probe_tokens"] = len(probe.completion_ids)
            for fault in ("stale", "swapped", "nameless"):
                serving = await Serving.start(world.engine, world.trainer, world.observer, probe)
                await serving.publish(0, before)
                world.engine.fault, world.engine.before = fault, before.path
                found["faults"][fault] = await attempt(serving, newest)
                world.engine.fault = ""
                print(f"{fault:9} {found['faults'][fault]}")
            serving = await Serving.start(world.engine, world.trainer, world.observer, probe)
            await serving.publish(0, before)
            served = await serving.publish(0, newest)
            found["right"] = msgspec.to_builtins(served.proof)
            print(f"right     {found['right']}")
    return found


async def attempt(serving: Serving, release: Release) -> str:
    try:
        served = await serving.publish(0, release)
    except PublishFailed as failed:
        return f"caught: {failed}"
    return f"NOT CAUGHT: {served.proof}"


if __name__ == "__main__":
    main()
