"""A run's logs, a part at a time: its workers' files, and the daemon's newest lines.

    source, file, offset -> text from that byte on, and where to go on

`file` is which file was read.  When a worker has set its log aside (NAME -> NAME.1) and begun a new one, the old one is
read to its end first, then the new one from its start; one that became shorter is read from its start.  Only names that
were found in the run's folder are ever opened.
"""

from __future__ import annotations

import codecs
import collections
import io
import logging
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from tttdd.errors import NotFound
from tttdd.log_protocol import LogPart, LogQuery
from tttdd.protocol import RunInfo

PART_BYTES = 1 << 18
"""Of a log, in one answer."""
KEPT_BYTES = 1 << 20
"""Of the daemon's own log; the journal has all of it."""
DAEMON = "daemon"
SET_ASIDE = ".1"
"""Ending of a log that grew too long (tttdd.adapters.worker)."""


class _Span(NamedTuple):
    """What can be read of a log."""

    file: str
    start: int
    end: int
    bytes: BinaryIO
    """From `start` on."""


class RecentLog(logging.Handler):
    """The newest lines of this process, tracebacks too.  A byte keeps its offset when earlier ones are forgotten."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        self._lines: collections.deque[bytes] = collections.deque()
        self._start = self._end = 0
        self._born = f"{os.getpid()}-{time.time_ns()}"

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record).encode(errors="replace") + b"\n"
        except (TypeError, ValueError):  # its arguments do not fit: as every handler does
            self.handleError(record)
            return
        self._lines.append(line)
        self._end += len(line)
        while self._end - self._start > KEPT_BYTES:
            self._start += len(self._lines.popleft())

    def span(self) -> _Span:
        self.acquire()
        try:
            text, start, end = b"".join(self._lines), self._start, self._end
        finally:
            self.release()
        return _Span(self._born, start, end, io.BytesIO(text))


def part(run: RunInfo, recent: RecentLog, query: LogQuery) -> LogPart:
    """Raises NotFound for a source that is not there."""
    files = _files(run)
    sources = [DAEMON, *sorted(files)]
    if query.source == DAEMON:
        return _part(recent.span(), query, sources)
    for name in (query.source + SET_ASIDE, query.source):
        with suppress(KeyError, FileNotFoundError), _opened(files[name]) as file:
            span = _span(file)
            if name == query.source:
                return _part(span, query, sources)
            if span.file == query.file and _unread(span, query, files):
                return _part(span, query, sources, ended=True)
    told = f"run {run.run!r} has no log {query.source!r}"
    raise NotFound(told, field="source", hint="it has: " + ", ".join(sources))


def _unread(aside: _Span, query: LogQuery, files: dict[str, Path]) -> bool:
    """Whether a log that was set aside is still the one to read; also until there is a new one."""
    return query.offset < aside.end or query.source not in files


def _files(run: RunInfo) -> dict[str, Path]:
    """The logs by name; a link is none of ours."""
    if not run.state_dir:
        return {}
    try:
        with os.scandir(Path(run.state_dir, "runs", run.run, "logs")) as entries:
            return {entry.name: Path(entry.path) for entry in entries if entry.is_file(follow_symlinks=False)}
    except FileNotFoundError:  # no worker has been started yet
        return {}


def _opened(path: Path) -> BinaryIO:
    return open(path, "rb", buffering=0, opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW))


def _span(file: BinaryIO) -> _Span:
    there = os.fstat(file.fileno())
    return _Span(f"{there.st_dev}-{there.st_ino}", 0, there.st_size, file)


def _part(span: _Span, query: LogQuery, sources: list[str], *, ended: bool = False) -> LogPart:
    """A character that is not whole yet is left for the next part, but for the last of a log that has ended."""
    begin = max(span.start, _begin(span, query))
    span.bytes.seek(begin - span.start)
    data = span.bytes.read(PART_BYTES)
    if query.offset < 0 and begin > span.start:
        broken = data.find(b"\n") + 1
        begin, data = begin + broken, data[broken:]
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data, final=ended and begin + len(data) >= span.end)
    end = begin + len(data) - len(decoder.getstate()[0])
    return LogPart(source=query.source, sources=sources, file=span.file, start=begin, offset=end, text=text)


def _begin(span: _Span, query: LogQuery) -> int:
    if query.offset < 0:
        return span.end + query.offset
    return query.offset if query.offset <= span.end and query.file in ("", span.file) else 0
