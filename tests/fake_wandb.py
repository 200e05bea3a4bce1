"""A W&B server as far as one run needs it: GraphQL by the names of what is asked, and the stream of its rows."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PROJECT = {"id": "p", "name": "tttdd", "entity": {"id": "e", "name": "me"}}


class FakeWandb:
    """`rows` by their place in the stream; `keys` that came with requests; `exits` of runs that ended."""

    def __init__(self) -> None:
        self.address = ""
        self.rows: dict[int, dict[str, Any]] = {}
        self.runs: list[str] = []
        self.config: dict[str, Any] = {}
        self.keys: set[str] = set()
        self.exits: list[int] = []

    @property
    def steps(self) -> list[int]:
        assert [*self.rows] == [*range(len(self.rows))]
        return [row["_step"] for row in self.rows.values()]

    def asked(self, query: str, variables: dict[str, Any]) -> dict[str, Any] | None:
        if "RunResumeStatus" in query:
            return {"model": PROJECT | {"bucket": self._bucket() if self.runs else None}}
        if "upsertBucket" in query:
            self.runs.append(variables["name"])
            self.config |= json.loads(variables.get("config") or "{}")
            bucket = {"id": "b", "name": variables["name"], "displayName": "r", "config": "{}", "project": PROJECT}
            lines = {"historyLineCount": len(self.rows), "description": None, "sweepName": None}
            return {"upsertBucket": {"bucket": bucket | lines, "inserted": len(self.runs) == 1}}
        if "createRunFiles" in query:
            files = [{"name": name, "uploadUrl": f"{self.address}/{name}"} for name in variables["files"]]
            return {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": files}}
        return None

    def _bucket(self) -> dict[str, Any]:
        counts = {f"{kind}LineCount": 0 for kind in ("events", "log")} | {"historyLineCount": len(self.rows)}
        newest = [json.dumps(self.rows[max(self.rows)])] if self.rows else []
        texts = {"config": "{}", "summaryMetrics": "{}", "eventsTail": "[]", "historyTail": json.dumps(newest)}
        return (
            {"id": "b", "name": self.runs[0], "displayName": "r", "tags": [], "wandbConfig": '{"t": 1}'}
            | counts
            | texts
        )

    def streamed(self, part: dict[str, Any]) -> None:
        history = (part.get("files") or {}).get("wandb-history.jsonl")
        if history:
            for place, line in enumerate(history["content"], history["offset"]):
                self.rows[place] = json.loads(line)
        if part.get("complete"):
            self.exits.append(part["exitcode"])


@contextmanager
def serving() -> Iterator[FakeWandb]:
    fake = FakeWandb()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            fake.keys.add(self.headers["authorization"] or "")
            part = json.loads(self._body())
            if self.path == "/graphql":
                return self._tell({"data": fake.asked(part["query"], part.get("variables") or {})})
            fake.streamed(part)
            return self._tell({"limits": {}})

        def do_PUT(self) -> None:
            self._body()
            self._tell({})

        def _body(self) -> bytes:
            body = self.rfile.read(int(self.headers["content-length"]))
            return gzip.decompress(body) if self.headers["content-encoding"] == "gzip" else body

        def _tell(self, answer: dict[str, Any]) -> None:
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        fake.address = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield fake
        server.shutdown()
        thread.join()
