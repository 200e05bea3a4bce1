"""monitor: the daemon's work on one screen, until `q`."""

from __future__ import annotations

import sys
from argparse import Namespace

from tttctl.client import Client, Failed
from tttdd.protocol import Error, Status

FIRST_ANSWER = 10.0
"""Seconds to wait for it; later the monitor itself waits for a daemon that is gone."""


def monitor(client: Client, options: Namespace) -> int:
    if options.json or not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        hint = "elsewhere use: tttctl status, tttctl watch RUN, both with --json for programs"
        raise Failed(400, Error(error="monitor is for a terminal", hint=hint))
    first = Client(client.path, timeout=FIRST_ANSWER).get("/v1/status", Status)
    from tttctl.monitor.app import Monitor
    from tttctl.monitor.feed import Feed
    from tttctl.monitor.palette import name_for

    app = Monitor(Feed(client.path), first, options.look or name_for())
    app.run()
    return app.return_code or 0
