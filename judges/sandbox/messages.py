"""What goes between the sandbox's client and its zygote, and what `Sandbox.run` takes and gives.

client -> zygote   Launch (with four descriptors) | Kill          one packet each on the control socket
zygote -> client   Hello once; per program, on its status pipe: Started, then Ended or Refused
"""

from __future__ import annotations

from typing import Literal

import msgspec

Level = Literal["namespaces", "docker", "process"]
Ending = Literal["exited", "wall", "output", "result", "cancelled"]
_NEARLY = 0.5
"""The kernel enforces processor time by ticks; on a busy virtual machine they run ahead of what it reports."""


class JudgeDied(RuntimeError):
    """A process of ours (zygote or grader) ended, or the machine refused it a child.  Never the program's fault:
    the call can be repeated, and the next one starts a new process where that is needed."""


class Entry(msgspec.Struct, frozen=True):
    """The function of the program that is called, by keyword arguments."""

    function: str
    kwargs: dict[str, int | float] = {}
    helpers: str = ""
    """Python source that is executed in the program's namespace first: what the task's instruction promises."""


class Job(msgspec.Struct, frozen=True):
    """What a child runs: the contents of its sealed memory file, in msgpack."""

    program: bytes
    """Source as the model wrote it: any bytes."""
    entry: Entry


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What one program may use.  Seconds and bytes."""

    wall_seconds: float
    """Besides what it waits for a processor that others use."""
    cpu_seconds: int
    """Of all its threads together; RLIMIT_CPU knows whole seconds only."""
    cpus: int = 1
    memory_bytes: int = 1 << 30
    """Of address space."""
    files_bytes: int = 16 << 20
    """All files of its private /tmp together."""
    threads: int = 64
    output_bytes: int = 4 << 20
    """What it may print before it is killed."""
    result_bytes: int = 2 << 20
    """A hundred thousand numbers, written out; more would take long to grade."""

    def processor_time_is_up(self, cpu_seconds: float) -> bool:
        """Whether a program that the kernel killed after so much processor time was killed for it."""
        return cpu_seconds >= _NEARLY * self.cpu_seconds


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How one program ended."""

    ending: Ending
    """`exited` by itself or by the kernel's hand, or killed by us at the limit named."""
    wait_status: int
    """As from wait(2)."""
    result: bytes
    """Bytes of the result pipe, at most `result_bytes`: b"R" + JSON, or b"E" + JSON of a Failure, or anything."""
    output: bytes
    """Tail of what it printed."""
    seconds: float
    """Wall clock from the child's start to its end."""
    cpu_seconds: float
    peak_bytes: int
    out_of_memory: bool = False
    """It got SIGKILL, and the kernel's count of processes killed for memory rose while it ran: its group's count where
    it has one, else the machine's, which counts others too and tells nothing where its processor time was up."""


class Failure(msgspec.Struct, frozen=True):
    """The child's own word on why there is no result.  A program can forge it, and only harm itself."""

    reason: Literal["syntax", "import", "exception", "memory", "no result", "wrong type"]
    detail: str


class Launch(msgspec.Struct, frozen=True, tag="launch"):
    id: int
    slot: int
    """Smallest number free among the running programs: picks the user id."""
    processors: tuple[int, ...]
    """It runs on these only."""
    limits: Limits


class Kill(msgspec.Struct, frozen=True, tag="kill"):
    id: int


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    level: Level
    missing: list[str]


class Started(msgspec.Struct, frozen=True, tag="started"):
    at: float
    """Monotonic clock, which all processes of a machine share."""
    pid: int
    """As the zygote and its client see it."""


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    at: float
    wait_status: int
    cpu_seconds: float
    peak_bytes: int
    out_of_memory: bool = False


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The child could not be made or contained."""

    message: str


Request = Launch | Kill
Report = Started | Ended | Refused
