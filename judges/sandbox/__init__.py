"""Run untrusted programs, each in a contained child of its own; knows nothing of tasks or rewards.

Sandbox (client, any thread) --control socket, descriptors--> zygote --clone--> child: one program, then gone
DockerSandbox (the same)     --the engine's API------------> container of one program

`made` makes the one that a level names.
"""

from __future__ import annotations

from typing import Protocol

from judges.sandbox.client import Sandbox, Ticket
from judges.sandbox.messages import Entry, JudgeDied, Level, Limits, Outcome

__all__ = ["AnySandbox", "Entry", "JudgeDied", "Level", "Limits", "Outcome", "Sandbox", "Ticket", "made"]


class AnySandbox(Protocol):
    """Blocking, any thread; many programs can be in flight at once."""

    def start(self) -> None:
        """Make ready unless it is.  Raises JudgeDied when that fails, with what to do."""
        ...

    def close(self) -> None:
        """End every program that still runs, and all that was started for them."""
        ...

    @property
    def level(self) -> Level | None:
        """Containment in force; None before the start."""
        ...

    @property
    def missing(self) -> list[str]:
        """What that level does not contain on this machine, in words."""
        ...

    def run(self, program: str, entry: Entry, limits: Limits, ticket: Ticket | None = None) -> Outcome:
        """Run `program` and wait for its end, however it comes.  Raises JudgeDied when something of ours fails."""
        ...

    def cancel(self, ticket: Ticket) -> None:
        """End the run of `ticket`, or keep it from starting: its Outcome says `cancelled`."""
        ...


def made(level: Level, image: str | None = None, runtime: str | None = None) -> AnySandbox:
    """The sandbox of a level, not started yet; `image` and `runtime` are Docker's, None takes the defaults."""
    if level != "docker":
        return Sandbox(level)
    from judges.sandbox.docker import DEFAULT_IMAGE, DockerSandbox  # its SDK takes a quarter of a second to import

    return DockerSandbox(image or DEFAULT_IMAGE, runtime)
