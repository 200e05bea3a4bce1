"""What a harness's completions cost by POST /v1/chat/completions, against the engine called directly, in one run.

    python benchmarks/endpoint.py [--model DIRECTORY] [--streams 64 --new 64 --rounds 5] [--json FILE]

    direct     this process calls the engine's adapter: STREAMS completions at once
    whole      a real daemon, an external run, STREAMS connections: one JSON answer each, receipt stored before
    streamed   the same as server-sent events, a chunk a piece of text

The same model, prompts, seeds and token limits, in turns; that all three sampled the same texts is checked.  Without
--model: the tiny one of the tests, which costs next to nothing, so that what is measured is the way to it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import hardware
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.tiny_config import tiny_config
from tests.tiny_models import write_tiny_model
from tttctl.client import Client, NoDaemon
from tttdd.adapters.sampler import EmbeddedEngine
from tttdd.ports import Release, Turn
from tttdd.protocol import GridSize, RunInfo, Submit

HEAD = "POST /v1/chat/completions HTTP/1.1\r\nhost: tttdd\r\nx-tttdd-run: x\r\ncontent-length: {}\r\n\r\n"
CONTEXT = 4096


class Round:
    """Seconds, tokens, texts, the moments of the first text, and the daemon's processor seconds."""

    def __init__(self, seconds: float, tokens: int, texts: list[str], first: list[float], daemon: float) -> None:
        self.seconds, self.tokens, self.texts, self.first, self.daemon = seconds, tokens, texts, first, daemon


@contextmanager
def daemon(folder: Path) -> Iterator[tuple[Client, psutil.Process]]:
    """With an external run that is never full."""
    (folder / "tttdd.toml").write_text(tiny_config(folder, folder / "state", sampling={"max_new_tokens": 2048}))
    command = [sys.executable, "-m", "tttdd", "--config", str(folder / "tttdd.toml")]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stderr=log) as process:
        client = Client(str(folder / "s"))
        try:
            while not _answers(client):
                time.sleep(0.1)
            submit = Submit(task="digits", name="x", kind="external", mode="search", grid=GridSize(64, 64))
            client.post("/v1/runs", submit, RunInfo)
            yield client, psutil.Process(process.pid)
        finally:
            process.terminate()


def _answers(client: Client) -> bool:
    try:
        return client.get("/v1/health", dict)["status"] == "ok"
    except NoDaemon:
        return False


@asynccontextmanager
async def engine(folder: Path) -> AsyncGenerator[EmbeddedEngine]:
    log = folder / "direct.log"
    async with EmbeddedEngine(folder / "model", log, context_length=CONTEXT, thinking=False) as opened:
        await opened.publish(Release(0))
        yield opened


def question(number: int) -> str:
    """One of eight: as many groups."""
    return f"Question {number % 8}. " + "Write a list of numbers. " * 8


async def direct(opened: EmbeddedEngine, options: argparse.Namespace) -> Round:
    texts, tokens = [""] * options.streams, [0] * options.streams

    async def one(number: int) -> None:
        ids = await opened.encode_chat([Turn("user", question(number))], None)
        found = await opened.sample(ids, release=0, seed=number, stop=(), max_new_tokens=options.new)
        texts[number], tokens[number] = found.text, len(found.token_ids)

    started = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for number in range(options.streams):
            tasks.start_soon(one, number)
    return Round(time.perf_counter() - started, sum(tokens), texts, [], 0.0)


async def endpoint(path: Path, served: psutil.Process, options: argparse.Namespace, *, stream: bool) -> Round:
    texts, tokens, first = [""] * options.streams, [0] * options.streams, [0.0] * options.streams

    async def one(number: int) -> None:
        messages = [{"role": "user", "content": question(number)}]
        more = {"stream_options": {"include_usage": True}} if stream else {}
        body = {"messages": messages, "seed": number, "max_tokens": options.new, "stream": stream, **more}
        first[number], texts[number], tokens[number] = await _asked(path, json.dumps(body).encode(), stream)

    before = served.cpu_times()
    started = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for number in range(options.streams):
            tasks.start_soon(one, number)
    seconds = time.perf_counter() - started
    after = served.cpu_times()
    cost = after.user + after.system - before.user - before.system
    return Round(seconds, sum(tokens), texts, [each - started for each in first], cost)


async def _asked(path: Path, body: bytes, stream: bool) -> tuple[float, str, int]:
    """When the first text came, the text, its tokens."""
    async with await anyio.connect_unix(path) as connection:
        await connection.send(HEAD.format(len(body)).encode() + body)
        heard, first = b"", 0.0
        while not (_chunked_end(heard) if stream else _whole(heard)):
            heard += await connection.receive()
            first = first or time.perf_counter()
    assert heard.startswith(b"HTTP/1.1 200 "), heard[:500]
    if not stream:
        told = json.loads(heard.partition(b"\r\n\r\n")[2])
        return first, told["choices"][0]["message"]["content"], told["usage"]["completion_tokens"]
    chunks = [json.loads(line[6:]) for line in heard.split(b"\n") if line.startswith(b"data: {")]
    assert any("receipt" in chunk for chunk in chunks)
    said = [chunk["choices"][0]["delta"].get("content", "") for chunk in chunks if chunk["choices"]]
    return first, "".join(said), chunks[-1]["usage"]["completion_tokens"]


def _chunked_end(heard: bytes) -> bool:
    return heard.endswith(b"\r\n0\r\n\r\n")


def _whole(heard: bytes) -> bool:
    head, end, body = heard.partition(b"\r\n\r\n")
    length = next((line.split(b":")[1] for line in head.split(b"\r\n") if line.startswith(b"content-length")), b"0")
    return bool(end) and len(body) >= int(length)


async def measure(options: argparse.Namespace, folder: Path) -> dict[str, list[Round]]:
    found: dict[str, list[Round]] = {"direct": [], "whole": [], "streamed": []}
    with daemon(folder) as (_, served):
        path = folder / "s"
        async with engine(folder) as opened:
            await endpoint(path, served, options, stream=True)  # until its workers are there
            await direct(opened, options)
            for _ in range(options.rounds):
                found["direct"].append(await direct(opened, options))
                found["whole"].append(await endpoint(path, served, options, stream=False))
                found["streamed"].append(await endpoint(path, served, options, stream=True))
    texts = [each.texts for rounds in found.values() for each in rounds]
    assert all(each == texts[0] for each in texts), "the three ways sampled different texts"
    return found


def summary(found: dict[str, list[Round]]) -> dict[str, Any]:
    speed = {name: [each.tokens / each.seconds for each in rounds] for name, rounds in found.items()}
    told: dict[str, Any] = {}
    for name, rounds in found.items():
        told[name] = {
            "tokens_per_second": round(statistics.median(speed[name]), 1),
            "tokens_per_second_range": [round(min(speed[name]), 1), round(max(speed[name]), 1)],
            "seconds": round(statistics.median(each.seconds for each in rounds), 3),
            "tokens": rounds[0].tokens,
        }
    for name in ("whole", "streamed"):
        ratios = [way.seconds / base.seconds for way, base in zip(found[name], found["direct"], strict=True)]
        told[name]["seconds_over_direct"] = round(statistics.median(ratios), 3)
        told[name]["daemon_cpu_ms_per_completion"] = round(
            1000 * statistics.median(each.daemon for each in found[name]) / len(found[name][0].texts), 2
        )
        told[name]["first_text_seconds"] = round(
            statistics.median(moment for each in found[name] for moment in each.first), 3
        )
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--new", type=int, default=64, help="tokens of each completion, at most")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.model:
            (folder / "model").symlink_to(options.model.absolute())
        else:
            write_tiny_model(folder / "model")
        told = summary(anyio.run(measure, options, folder))
    model = " --model MODEL" if options.model else ""
    told |= {
        "command": f"python benchmarks/endpoint.py{model} --streams {options.streams} --new {options.new}"
        f" --rounds {options.rounds}",
        "model": options.model.name if options.model else "tiny",
        "streams": options.streams,
        "rounds": options.rounds,
        "machine": hardware.described(),
        "date": datetime.now(UTC).date().isoformat(),
    }
    print(json.dumps(told, indent=1))
    if options.json:
        options.json.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
