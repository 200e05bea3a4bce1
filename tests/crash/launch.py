"""python launch.py CONFIG: the daemon, less patient than in life; it asks the harness at every point (listener.py)."""

import sys

from tttdd import __main__, room, runner

runner.RESTARTS = 1000
runner.BACKOFF_SECONDS = 0.05
runner.ROOM_SECONDS = 0.2
room.LEAST_BYTES = 1 << 20

sys.argv = ["tttdd", "--config", sys.argv[1]]
__main__.main()
