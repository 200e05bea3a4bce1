"""tttctl VERB ...: parse, import that verb's module, call it, turn its end into an exit status.

0 done   1 the run failed   2 bad usage or refused   3 no daemon at the socket   130 interrupted
"""

from __future__ import annotations

import importlib
import os
import sys

from tttctl.client import Client, Failed, NoDaemon, default_socket
from tttctl.parser import parser
from tttctl.render import complain

FULL_DISK = 507
START = "start one with: systemctl start tttdd | tttdd --config FILE [--socket PATH] | tttctl demo (a private one)"


def main() -> None:
    try:
        status = run(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has seen enough; keep the interpreter from complaining at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 0
    sys.exit(status)


def run(arguments: list[str]) -> int:
    """Carry out one command line; returns the exit status."""
    options = parser().parse_args(arguments)
    verb = getattr(importlib.import_module(options.module), options.verb)
    try:
        return verb(Client(options.socket or default_socket()), options)
    except NoDaemon as error:
        complain(f"{error}; {START}")
        return 3
    except Failed as error:
        complain(str(error))
        return 2 if error.status < 500 or error.status == FULL_DISK else 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    main()
