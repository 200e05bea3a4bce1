"""The command line: a client of the daemon's socket.

It starts with argparse and msgspec alone; what a verb needs beyond them is imported by that verb.
"""

import sys

if "msgspec" not in sys.modules and "typing_extensions" not in sys.modules:
    # msgspec looks for typing_extensions before typing, which serves it as well; a quarter of its import time is that.
    sys.modules["typing_extensions"] = None  # pyright: ignore[reportArgumentType]  # None: not to be had
    import msgspec  # noqa: F401  # pyright: ignore[reportUnusedImport]

    del sys.modules["typing_extensions"]
