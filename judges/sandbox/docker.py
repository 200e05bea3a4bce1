"""Level `docker`: a container for each program (engine.py), behind the same words as every sandbox.

    run: container -> Order to its process 1 (contained.py) -> its Outcome -> the container is gone

What fails on the way (no engine, no image, a container killed by someone) is JudgeDied, never the program's.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Generator
from contextlib import contextmanager
from importlib import metadata
from types import TracebackType
from typing import Self

from judges.sandbox import contained
from judges.sandbox.client import START_SECONDS, Ticket
from judges.sandbox.collect import ANSWER_SECONDS, MOST_WAITED, Collector
from judges.sandbox.engine import Container, Engine, errors
from judges.sandbox.messages import Entry, Job, JudgeDied, Level, Limits, Outcome

DEFAULT_IMAGE = f"tttdd-judge:{metadata.version('tttdd')}"
_END_SECONDS = 10.0


class DockerSandbox:
    """As Sandbox: `with DockerSandbox() as sandbox: sandbox.run(program, Entry("run"), limits)`.

    The engine is the one of DOCKER_HOST, else this machine's.
    """

    def __init__(self, image: str = DEFAULT_IMAGE, runtime: str | None = None) -> None:
        self._image, self._runtime = image, runtime
        self._engine: Engine | None = None
        self._closed = False
        self._starting = threading.Lock()
        """Held for as long as a start takes; the other for moments only, so that `cancel` never waits."""
        self._lock = threading.Lock()
        self._slots: set[int] = set()
        self._running: set[Container] = set()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self.close()

    def start(self) -> None:
        """Look at engine and image unless it is done, by a container that runs nothing.  Raises JudgeDied."""
        with _ours():
            self._found()

    def close(self) -> None:
        """End every container that still runs."""
        with self._lock:
            self._closed = True
            running = list(self._running)
        for container in running:
            container.hang_up()
            container.remove()
        with self._starting:
            self._forget()

    @property
    def level(self) -> Level | None:
        return "docker" if self._engine else None

    @property
    def missing(self) -> list[str]:
        """What this engine, image and runtime do not contain, in words."""
        engine = self._engine
        return engine.missing if engine else []

    def run(self, program: str, entry: Entry, limits: Limits, ticket: Ticket | None = None) -> Outcome:
        """Run `program` in a new container and wait for its end, however it comes.  Raises JudgeDied."""
        ticket = ticket or Ticket()
        job = Job(program.encode("utf-8", "surrogatepass"), entry)
        with self._slot() as slot, _ours():
            engine = self._found()
            try:
                return self._run(engine, contained.Order(slot, limits, job), ticket)
            except (*errors(), OSError):
                with self._starting:
                    if self._engine is engine:
                        self._forget()  # the next run looks anew at what there is
                raise

    def cancel(self, ticket: Ticket) -> None:
        """End the run of `ticket`, or keep it from starting: its Outcome says `cancelled`."""
        with self._lock:
            ticket.cancelled = True
            if ticket.kill is not None:
                ticket.kill()

    def _run(self, engine: Engine, order: contained.Order, ticket: Ticket) -> Outcome:
        cancelled = Collector(order.limits, lambda: None).outcome("cancelled")
        if ticket.cancelled:
            return cancelled
        with engine.container(order.limits) as container:
            with self._lock:
                if ticket.cancelled:
                    return cancelled
                if self._closed:
                    raise JudgeDied("the sandbox is closed")
                ticket.kill = container.hang_up
                self._running.add(container)
            try:
                return _exchange(container, order)
            except JudgeDied:
                if ticket.cancelled:
                    return cancelled
                raise
            finally:
                with self._lock:
                    ticket.kill = None
                    self._running.remove(container)

    def _found(self) -> Engine:
        with self._starting:
            if self._closed:
                raise JudgeDied("the sandbox is closed")
            if self._engine is None:
                self._engine = Engine(self._image, self._runtime)
            return self._engine

    def _forget(self) -> None:
        if self._engine is not None:
            self._engine.api.close()
            self._engine = None

    @contextmanager
    def _slot(self) -> Generator[int]:
        with self._lock:
            slot = next(number for number in itertools.count() if number not in self._slots)
            self._slots.add(slot)
        try:
            yield slot
        finally:
            with self._lock:
                self._slots.remove(slot)


def _exchange(container: Container, order: contained.Order) -> Outcome:
    """Process 1 keeps the limits; the patience here is for one that hangs."""
    container.hear(contained.Ready, START_SECONDS)
    container.send(order)
    patience = START_SECONDS + order.limits.wall_seconds * (1 + MOST_WAITED) + ANSWER_SECONDS
    outcome = container.hear(Outcome, patience)
    container.wait(_END_SECONDS)
    return outcome


@contextmanager
def _ours() -> Generator[None]:
    """No failure of engine or connection is the program's."""
    try:
        yield
    except (*errors(), OSError) as error:
        raise JudgeDied(f"the Docker engine failed: {error}") from error
