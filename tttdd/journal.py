"""The daemon's log as the journal wants it: each line led by its priority, `<4>` for a warning (sd-daemon(3)).

Only where systemd says that the stream is the journal's ($JOURNAL_STREAM, systemd.exec(5)); else plain text with the
level's name.
"""

from __future__ import annotations

import logging
import os
from typing import TextIO

PRIORITIES = {logging.CRITICAL: 2, logging.ERROR: 3, logging.WARNING: 4, logging.INFO: 6}
DEBUG = 7


class Lines(logging.Formatter):
    """A record's lines, a traceback's too."""

    def format(self, record: logging.LogRecord) -> str:
        return marked(super().format(record), record.levelno)


def marked(text: str, level: int) -> str:
    return "\n".join(f"<{PRIORITIES.get(level, DEBUG)}>{line}" for line in text.splitlines())


def reads(stream: TextIO) -> bool:
    """Whether the journal reads `stream`."""
    status = os.fstat(stream.fileno())
    return os.environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


def handler(stream: TextIO) -> logging.Handler:
    made = logging.StreamHandler(stream)
    plain = logging.Formatter("%(levelname)s %(name)s: %(message)s")
    made.setFormatter(Lines("%(name)s: %(message)s") if reads(stream) else plain)
    return made
