"""client RUN: what the author of a harness needs of an external run: where it is reached, and what its grid lacks.

GET /v1/runs/{run}/grid -> GridInfo -> facts, and the two calls with curl, made for the next coordinate
"""

from __future__ import annotations

import shlex
from argparse import Namespace
from pathlib import Path

import msgspec

from tttctl.client import Client, run_path
from tttctl.render import say, show_json
from tttdd.harness_protocol import GridInfo, Metadata, Place, RefusedRelease

BASE_URL = "http://tttdd/v1"
HEADER = "x-tttdd-run"
NAMED = 8
"""Missing coordinates that are told by name; --json has them all."""
RECEIPT = r"""sed 's/.*"receipt":"\([^"]*\)".*/\1/'"""


def client(client: Client, options: Namespace) -> int:
    grid = client.get(run_path(options.run, "/grid"), GridInfo)
    socket = str(Path(client.path).absolute())
    if options.json:
        reached = {"socket": socket, "base_url": BASE_URL, "header": {HEADER: grid.run}}
        show_json(msgspec.to_builtins(grid) | reached)
    else:
        _tell(grid, socket)
    return 0


def _tell(grid: GridInfo, socket: str) -> None:
    say(f"{grid.run}: {grid.state}")
    say(f"  socket    {socket}")
    say(f"  base URL  {BASE_URL}")
    say(f"  header    {HEADER}: {grid.run}")
    if grid.step >= grid.steps:
        say(f"  step      none: all {grid.steps} are committed")
        return
    say(f"  step      {grid.step} of 0 to {grid.steps - 1}, sampled by release {grid.release}")
    say(f"  lacks     {len(grid.missing)} of {grid.groups * grid.rollouts} reports{_named(grid.missing)}")
    for refused in grid.refused:
        say(f"  refused   {_mixed(refused)}")
    say()
    for line in _calls(grid, socket):
        say(line)


def _named(missing: list[Place]) -> str:
    """As group/rollout."""
    names = [f"{place.group}/{place.rollout}" for place in missing[:NAMED]]
    more = ", ..." if len(missing) > NAMED else ""
    return f", group/rollout: {', '.join(names)}{more}" if names else ""


def _mixed(refused: RefusedRelease) -> str:
    grid, told = refused.releases
    return f"{refused.group}/{refused.rollout}: a report of release {told} in a grid of release {grid}; sample it again"


def _calls(grid: GridInfo, socket: str) -> list[str]:
    """A completion, whose receipt the shell keeps, and its report at the first coordinate that lacks one."""
    place = grid.missing[0] if grid.missing else Place(group=0, rollout=0)
    metadata = Metadata(
        step=grid.step,
        group=place.group,
        rollout=place.rollout,
        groups_per_step=grid.groups,
        rollouts_per_group=grid.rollouts,
    )
    curl = f"curl -sS --unix-socket {shlex.quote(socket)}"
    asked = '{"messages": [{"role": "user", "content": "Say something."}]}'
    told = f'"metadata": {msgspec.json.encode(metadata).decode()}'
    return [
        f"answer=$({curl} -H {shlex.quote(f'{HEADER}: {grid.run}')} \\",
        f"  {BASE_URL}/chat/completions -d '{asked}')",
        'echo "$answer"',
        f"{curl} http://tttdd{run_path(grid.run, '/reports')} \\",
        f"""  -d '{{"score": 1.0, "references": ["'"$({RECEIPT} <<< "$answer")"'"], {told}}}'""",
    ]
