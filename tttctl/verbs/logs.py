"""logs RUN: the newest lines of a run's logs, and with -f all that comes, until the run has ended.

    GET .../logs?source&offset&file -> text -> whole lines, each with its log's name where several are shown

The position in each log is the daemon's word for it, so that a log that is set aside loses no line and a daemon that
restarts is waited for.
"""

from __future__ import annotations

import re
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator
from urllib.parse import urlencode

from tttctl.client import Client, Failed, NoDaemon, run_path
from tttctl.render import clean, coloured, complain, show_json
from tttdd.log_protocol import LogPart
from tttdd.protocol import Error, RunInfo

ENDED = ("finished", "failed", "cancelled")
POLL_SECONDS = 0.5
LINE_BYTES = 200
"""Guess at a line's length; wrong guesses cost calls, no lines."""
FARTHEST = 1 << 62
COLOURS = re.compile("\x1b\\[[0-9;]*m")
BREAK = re.compile("\r\n|\n|\r")
NAMES = ("36", "33", "35", "32", "34")
"""Colours of the logs' names."""


class Log:
    """One log and how far it has been read."""

    def __init__(self, client: Client, run: str, source: str) -> None:
        self.source = source
        self._client, self._path = client, run_path(run, "/logs")
        self._file, self._offset, self._rest = "", 0, ""

    def tail(self, count: int) -> list[str]:
        """Its newest `count` lines that are whole; what is read next comes after them."""
        reach, start = max(1, count) * LINE_BYTES, -1
        while True:
            self._rest = ""
            part = self._part(-min(reach, FARTHEST))
            known, start = start, part.start
            lines = [*self._lines(part.text), *self.more()]
            if start in (0, known) or len(lines) >= count:
                return lines[-count:] if count else []
            reach *= 4

    def more(self) -> Iterator[str]:
        """Whole lines that have come since."""
        while True:
            file, part = self._file, self._part(self._offset)
            if part.file != file:  # nothing will end that line any more
                yield from self.last()
            if not part.text:
                return
            yield from self._lines(part.text)

    def last(self) -> list[str]:
        """A last line that has no end."""
        rest, self._rest = self._rest, ""
        return [rest] if rest else []

    def _part(self, offset: int) -> LogPart:
        asked = {"source": self.source, "offset": offset, "file": self._file if offset >= 0 else ""}
        query = urlencode(asked, errors="surrogateescape")
        part = self._client.get(f"{self._path}?{query}", LogPart)
        self._file, self._offset = part.file, part.offset
        return part

    def _lines(self, text: str) -> list[str]:
        *lines, self._rest = BREAK.split(self._rest + text)
        return lines


def logs(client: Client, options: Namespace) -> int:
    if options.lines < 0:
        raise Failed(400, Error(error=f"-n {options.lines}: a count of lines is 0 or more"))
    here = _known(client, options, {})
    if options.follow:
        for log in here.values():
            _show(here, options, log.source, log.tail(options.lines))
        _follow(client, options, here)
        return 0
    newest = {log.source: (log.tail(options.lines) + log.last())[-options.lines or None :] for log in here.values()}
    if options.json:
        texts = [{"source": source, "text": "".join(line + "\n" for line in lines)} for source, lines in newest.items()]
        show_json({"run": options.run, "logs": texts})
        return 0
    for source, lines in newest.items():
        _show(here, options, source, lines)
    return 0


def _follow(client: Client, options: Namespace, here: dict[str, Log]) -> None:
    while True:
        try:
            ended = (
                client.get(run_path(options.run), RunInfo).state in ENDED
            )  # before reading: no last words are missed
            here = _known(client, options, here)
            for log in here.values():
                _show(here, options, log.source, log.more())
            if ended:
                for log in here.values():
                    _show(here, options, log.source, log.last())
                return
            time.sleep(POLL_SECONDS)
        except NoDaemon as error:
            complain(f"{error}; waiting for it")
            client.await_daemon()


def _known(client: Client, options: Namespace, here: dict[str, Log]) -> dict[str, Log]:
    """The logs to be shown; new ones come as their workers start."""
    there = client.get(run_path(options.run, "/logs"), LogPart).sources
    shown = options.source or [name for name in there if not name.endswith(".1")]
    return {name: here.get(name) or Log(client, options.run, name) for name in shown}


def _show(here: dict[str, Log], options: Namespace, source: str, lines: Iterable[str]) -> None:
    names = [clean(name) for name in here]
    place = list(here).index(source)
    several = len(names) > 1 or (options.follow and not options.source)
    prefix = f"{names[place]:<{max(map(len, names))}} | " if several else ""
    for line in lines:
        if options.json:
            show_json({"source": source, "line": line})
        else:
            told = clean(COLOURS.sub("", line))
            print(coloured(prefix, NAMES[place % len(NAMES)]) + told, flush=options.follow)
