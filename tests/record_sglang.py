"""Record what a real SGLang answers to exactly what the adapter sends, for the fake to be held to.

    python tests/record_sglang.py MODEL ADAPTER OUT.json --dtype float32 --argument device='"cpu"' ...
    adapter --HTTP--> SGLang: a hook on the client keeps requests and answers, by name

ADAPTER is a peft folder.  Paths become <folder> and <model>, a list of every token's id <every id>, a prompt beyond the
context <too many>; long lists and texts are cut.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import anyio
import httpx

from tttdd.adapters.sglang import SglangEngine
from tttdd.adapters.sglang_server import Place, Settings
from tttdd.adapters.sglang_stream import Stream
from tttdd.ports import Probe, Release, WorkerFailed

LONGEST_LIST, LONGEST_TEXT = 6, 300
CONTEXT = 1024
PROMPT = [3, 4, 5]
PROBE = Probe(PROMPT, [6, 7, 200])
TOO_MANY = [1] * (CONTEXT + 100)


def replaced(node: Any, values: dict[str, Any]) -> Any:
    """JSON with each text of `values` put in the place of its name: in strings anywhere, else as a whole."""
    match node:
        case dict():
            return {replaced(key, values): replaced(value, values) for key, value in node.items()}
        case list():
            return [replaced(each, values) for each in node]
        case str() if node in values:
            return values[node]
        case str():
            for name, value in values.items():
                node = node.replace(name, value) if isinstance(value, str) else node
            return node
        case _:
            return node


def shortened(node: Any) -> Any:
    match node:
        case dict():
            return {key: shortened(value) for key, value in node.items()}
        case list():
            return [shortened(each) for each in node[:LONGEST_LIST]]
        case str():
            return node if len(node) <= LONGEST_TEXT else node[:LONGEST_TEXT] + "..."
        case _:
            return node


class Tape:
    """The exchanges of a client, each under the name that it was made for."""

    def __init__(self, client: httpx.AsyncClient, values: dict[str, str], every_id: list[int]) -> None:
        self.exchanges: list[dict[str, Any]] = []
        self._names = {value: name for name, value in values.items()}
        self._every_id = every_id
        self._name = ""
        client.event_hooks["response"].append(self._keep)

    @contextlib.contextmanager
    def named(self, name: str) -> Iterator[None]:
        self._name, before = name, len(self.exchanges)
        with contextlib.suppress(WorkerFailed, ExceptionGroup):  # the answer is what is wanted
            yield
        assert len(self.exchanges) > before, name

    async def _keep(self, response: httpx.Response) -> None:
        await response.aread()
        request = response.request
        self.exchanges.append(
            {
                "name": self._name,
                "path": request.url.raw_path.decode(),
                "request": self._clean(json.loads(request.content)),
                "status": response.status_code,
                "answer": self._clean(answer_of(response)),
            }
        )

    def _clean(self, body: Any) -> Any:
        params = body.get("sampling_params", {}) if isinstance(body, dict) else {}
        if params.get("stop_token_ids") == self._every_id:
            params["stop_token_ids"] = "<every id>"
        if isinstance(body, dict) and body.get("input_ids") == TOO_MANY:
            body["input_ids"] = "<too many>"
        return shortened(replaced(body, self._names))


def answer_of(response: httpx.Response) -> Any:
    """JSON, a text, or the first and the last two events of a streamed answer, each of which is one of both."""
    if response.headers.get("content-type", "").startswith("text/event-stream"):
        *events, end = response.content.split(b"\n\n")
        assert end == b""
        told = [_json_or_text(event.removeprefix(b"data: ").decode()) for event in events]
        return {"events": len(told), "first": told[0], "last": told[-2:]}
    return _json_or_text(response.text)


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


async def generate(engine: SglangEngine, tape: Tape, every_id: list[int]) -> None:
    (server,) = engine._servers
    sample: Any = {"release": 0, "seed": 0}
    with tape.named("the health gate"):
        await server._generates()
    with tape.named("a completion of the base, cut at its length"):
        await engine.sample(PROMPT, stop=(), max_new_tokens=3, **sample)
    with tape.named("a completion that ends with its stop text"):
        await engine.sample(PROMPT, stop=(".",), max_new_tokens=900, **sample)
    ends, server.end_ids = server.end_ids, every_id
    with tape.named("a completion that ends with a token"):
        await engine.sample(PROMPT, stop=(), max_new_tokens=3, **sample)
    server.end_ids = ends
    with tape.named("scoring under the base"):
        await engine.score(PROBE, release=0)
    with tape.named("a prompt that is too long"):
        await engine._generate(server, TOO_MANY, 0, {"max_new_tokens": 3})
    with tape.named("a prompt that is too long, streamed"):
        await engine._generate(
            server, TOO_MANY, 0, {"max_new_tokens": 3}, stream=Stream(server, (), list[str]().append)
        )


async def publish(engine: SglangEngine, tape: Tape, adapter: Path, folder: Path) -> None:
    (server,) = engine._servers
    with tape.named("a load"):
        load_id = await engine.publish(Release(1, adapter))
    with tape.named("a load under a name that is taken"):
        await server.ask("/load_lora_adapter", {"lora_name": load_id, "lora_path": str(folder / load_id)})
    with tape.named("a load from a folder that is not there"):
        await server.ask("/load_lora_adapter", {"lora_name": "release-0002-gone", "lora_path": str(folder / "gone")})
    with tape.named("a completion under a load"):
        await engine.sample(PROMPT, release=1, seed=0, stop=(), max_new_tokens=3)
    with tape.named("a streamed completion under a load, cut at its length"):
        await engine.sample(PROMPT, release=1, seed=0, stop=(), max_new_tokens=5, on_text=list[str]().append)
    with tape.named("a streamed completion under a load that ends with its stop text"):
        sampled = await engine.sample(
            PROMPT, release=1, seed=0, stop=(".", "= "), max_new_tokens=900, on_text=list[str]().append
        )
        assert sampled.finish_reason == "stop"
    with tape.named("scoring under a load"):
        await engine.score(PROBE, release=1)
    with tape.named("an unload and a flush"):
        await engine.keep(0)
    engine._loads = {1: load_id, 3: "release-0003-never"}
    with tape.named("a request that names an unloaded one, whose folder is gone"):
        await engine.score(PROBE, release=1)
    with tape.named("a request that names what was never loaded"):
        await engine.score(PROBE, release=3)
    with tape.named("an unload of what is not loaded"):
        await server.ask("/unload_lora_adapter", {"lora_name": load_id})
    engine._loads = {}


async def rest(engine: SglangEngine, tape: Tape) -> None:
    (server,) = engine._servers
    with tape.named("the cache is given back"):
        await server.post("/release_memory_occupation", {"tags": ["kv_cache"]})
    with tape.named("the cache is taken again"):
        await server.post("/resume_memory_occupation", {"tags": ["kv_cache"]})
    with tape.named("a completion after that"):
        await engine.sample(PROMPT, release=0, seed=0, stop=(), max_new_tokens=3)
    server._http.headers["Authorization"] = "Bearer wrong"
    with tape.named("a wrong key"):
        await engine.sample(PROMPT, release=0, seed=0, stop=(), max_new_tokens=3)


async def record(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    config = json.loads((options.adapter / "adapter_config.json").read_text())
    every_id = list(range(json.loads((options.model / "config.json").read_text())["vocab_size"]))
    settings = Settings(
        places=(Place(0, options.mem_fraction, 16),),
        context_length=CONTEXT,
        dtype=options.dtype,
        thinking=False,
        rank=config["r"],
        targets=tuple(config["target_modules"]),
        release_kv=options.memory_saver,
        seed=1,
        arguments={name: json.loads(value) for name, value in options.argument},
    )
    serving = folder / "serving"
    values = {"<folder>": str(serving.absolute()), "<model>": str(options.model)}
    async with SglangEngine(options.model, serving, folder / "logs", settings) as engine:
        tape = Tape(engine._servers[0]._http, values, every_id)
        await generate(engine, tape, every_id)
        await publish(engine, tape, options.adapter.absolute(), serving)
        await rest(engine, tape)
    return tape.exchanges


def device() -> str:
    import torch

    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else "cpu"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("adapter", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--mem-fraction", type=float, default=0.5)
    parser.add_argument("--memory-saver", action="store_true")
    parser.add_argument("--argument", action="append", default=[], type=lambda text: tuple(text.split("=", 1)))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.adapter.parent) as folder:  # hard links do not leave a file system
        exchanges = anyio.run(record, options, Path(folder))
    found = {"sglang": metadata.version("sglang"), "torch": metadata.version("torch"), "device": device()}
    found |= {"date": datetime.now(UTC).date().isoformat(), "exchanges": exchanges}
    options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
