"""Processes seen from outside, and waiting for what they do."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil


def words(process: psutil.Process | None) -> list[str]:
    """Its command line; empty when it has just ended."""
    try:
        return process.cmdline() if process else []
    except psutil.Error:
        return []


def alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.05)  # each look costs the daemon a request
