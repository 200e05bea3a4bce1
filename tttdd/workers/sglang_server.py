"""python -m tttdd.workers.sglang_server PARENT: SGLang's HTTP server, its arguments as JSON on standard input.

Its API key is among them, so they never stand on a command line that every user of the machine can read.
"""

import json
import sys

from tttdd import wire


def main() -> None:
    wire.die_with_parent(int(sys.argv[1]))
    arguments = json.load(sys.stdin)
    from sglang.srt.entrypoints.http_server import launch_server  # pyright: ignore[reportMissingImports]
    from sglang.srt.server_args import ServerArgs  # pyright: ignore[reportMissingImports]

    launch_server(ServerArgs(**arguments))


if __name__ == "__main__":  # its schedulers are spawned, which imports this module again
    main()
