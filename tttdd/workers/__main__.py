"""python -m tttdd.workers MODULE FD PARENT OPTIONS: run one worker until its line ends."""

import contextlib
import gc
import importlib
import json
import os
import sys

from tttdd import wire


def main() -> None:
    module, fd, parent, options = sys.argv[1:]
    wire.die_with_parent(int(parent))
    line = wire.Line(int(fd))
    gc.disable()  # to look for garbage among thousands of new modules costs a tenth of a worker's start
    worker = importlib.import_module(module)
    gc.enable()
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        worker.main(line, json.loads(options))
    sys.stdout.flush()
    os._exit(0)  # to take torch and its thousands of modules apart would keep a core busy for a second, for nothing


main()
