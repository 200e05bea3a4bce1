"""What the daemon tells systemd, by datagrams to $NOTIFY_SOCKET; silent where nobody listens.

    READY=1 -> (STATUS=... | WATCHDOG=1)* -> STOPPING=1

`watchdog` runs on the daemon's event loop and nowhere else, so a loop that hangs misses its beats and systemd
restarts the daemon.  See sd_notify(3) and sd_watchdog_enabled(3).
"""

from __future__ import annotations

import logging
import os
import socket

import anyio


def ready() -> None:
    """The socket answers: units ordered after the daemon may start."""
    _send("READY=1")


def status(text: str) -> None:
    """One line for `systemctl status`."""
    _send("STATUS=" + " ".join(text.split()))


def stopping() -> None:
    """The daemon has begun to end on its own account; `systemctl status` says so."""
    _send("STOPPING=1")


class StatusLog(logging.Handler):
    """The newest log message is the status line."""

    def emit(self, record: logging.LogRecord) -> None:
        status(record.getMessage())


async def watchdog() -> None:
    """Beat at half the interval that systemd asks for; returns at once if it asks for none."""
    interval = _watchdog_seconds()
    if interval is None:
        return
    while True:
        _send("WATCHDOG=1")
        await anyio.sleep(interval / 2)


def _watchdog_seconds() -> float | None:
    """$WATCHDOG_USEC in seconds; None when it is unset or meant for another process ($WATCHDOG_PID)."""
    interval, process = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID")
    if not interval.isdecimal() or int(interval) == 0:
        return None
    return int(interval) / 1e6 if process in (None, str(os.getpid())) else None


def _send(message: str) -> None:
    """One datagram to the service manager.  If it is gone or its queue full, the daemon's work goes on all the same."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):  # the abstract namespace
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as manager:
        try:
            manager.connect(address)
            manager.send(message.encode())
        except OSError:
            return
