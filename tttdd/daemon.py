"""Composition root: open what lives as long as the daemon, serve the socket, work the queue, wait for a signal.

lock state_dir -> store -> judges (starting) -> board, runner -> socket -> READY; gauges of the devices, if any
SIGTERM | SIGINT -> cancel everything, stop workers, close the store; a run in hand goes on at the next start
"""

from __future__ import annotations

import fcntl
import logging
import resource
import signal
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterator
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import anyio

from judges.sandbox import made
from tttdd import gpus, notify, sglang_version
from tttdd.adapters.catalog import JudgeCatalog
from tttdd.adapters.judge_pool import JudgePool
from tttdd.adapters.store import SqliteStore
from tttdd.adapters.workshop import LocalWorkshop
from tttdd.announce import Announcer
from tttdd.api import app, server
from tttdd.api.logs import RecentLog
from tttdd.board import Board, BoardLog
from tttdd.config import Config, Wandb, place
from tttdd.desk import Desk
from tttdd.durable import make_folder
from tttdd.ports import StoreError
from tttdd.protocol import GpuInfo, JudgesInfo
from tttdd.room import NO_ROOM, DiskRoom
from tttdd.runner import Runner

GAUGE_SECONDS = 2.0

_log = logging.getLogger("tttdd")


class CannotStart(RuntimeError):
    """Something that the daemon needs is taken or missing.  The message says what to do."""


class CannotStartYet(CannotStart):
    """It may come by itself: another start can do."""


def run(config: Config, path: Path) -> None:
    """Serve until SIGTERM or SIGINT; raises CannotStart."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # a connection for each completion under way
    _check(config, path)
    state_dir, address = Path(config.daemon.state_dir).absolute(), Path(config.daemon.socket)
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(state_dir))
            store = stack.enter_context(closing(SqliteStore(state_dir)))
        except OSError as error:
            kind = CannotStartYet if error.errno in NO_ROOM else CannotStart
            raise kind(f"{state_dir}: cannot be used as state_dir: {error.strerror}") from None
        except StoreError as error:
            raise CannotStart(str(error)) from None
        try:
            sock = stack.enter_context(server.from_systemd() or server.bind(address, config.daemon.group))
        except OSError as error:
            raise CannotStart(f"{address}: cannot listen there: {error.strerror}") from None
        except (LookupError, server.SocketInUse) as error:
            raise CannotStart(str(error)) from None
        _log.info("config %s, state %s, socket %s", path.absolute(), state_dir, sock.getsockname())
        anyio.run(_serve, config, path.absolute(), state_dir, sock, store)


def _check(config: Config, path: Path) -> None:
    """What a configuration may say, but this version or this machine cannot do."""
    if config.engine.backend == "sglang":
        try:
            sglang_version.check(config.engine.arguments)
        except sglang_version.Unsupported as error:
            raise CannotStart(f'{place(path, "engine.backend")}: engine.backend = "sglang": {error}') from None
    for folder in config.tasks.path:
        if not Path(folder).is_dir():
            raise CannotStart(f"{path}: tasks.path: {folder} is no directory")
    if config.engine.devices or config.trainer.devices:
        for field, rule in gpus.missing(config, gpus.read()):
            raise CannotStart(f"{place(path, field)}: {field}: {rule}")


async def _serve(config: Config, path: Path, state_dir: Path, sock: socket.socket, store: SqliteStore) -> None:
    settings = config.judges
    sandbox = made(settings.sandbox, settings.docker_image, settings.docker_runtime)
    async with _signals() as signals, JudgePool(settings.parallel, sandbox) as judges:
        board = Board(str(path), str(state_dir), lambda: runner.runs(), lambda: _judges(judges))
        recent = RecentLog()
        for handler in (BoardLog(board), recent, notify.StatusLog(logging.INFO)):
            logging.getLogger("tttdd").addHandler(handler)
        workshop = LocalWorkshop(config, store, state_dir)
        desk = Desk(store, board.touch)
        runner = Runner(config, store, board, JudgeCatalog(config, judges), workshop, DiskRoom(state_dir), desk)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_until_signal, signals, tasks.cancel_scope)
            tasks.start_soon(notify.watchdog)
            tasks.start_soon(runner.work)
            tasks.start_soon(runner.await_room)
            tasks.start_soon(gauge, board)
            for follower in _followers(config, store, board, runner, state_dir):
                tasks.start_soon(apart, follower)
            application = app.build(runner, board, desk, group=config.daemon.group, recent=recent)
            await server.serve(sock, application, ready=_ready)


def _followers(
    config: Config, store: SqliteStore, board: Board, runner: Runner, state_dir: Path
) -> Iterator[Callable[[], Coroutine[Any, Any, None]]]:
    """Who tells others of the runs, as far as it is wanted."""
    if config.notify.command:
        yield Announcer(config.notify, store, board, state_dir, runner.run).announce
    if config.tracking.wandb.enabled:
        yield from _trackers(config.tracking.wandb, store, board, state_dir)


def _trackers(
    settings: Wandb, store: SqliteStore, board: Board, state_dir: Path
) -> Iterator[Callable[[], Coroutine[Any, Any, None]]]:
    # What most daemons do without costs a start some hundredths of a second.
    from tttdd.adapters.tracking_wandb import NoKey, WandbTracking
    from tttdd.tracking import Tracker

    try:
        yield Tracker(store, board, state_dir, WandbTracking(settings).open, adapters=settings.upload_checkpoints).track
    except (NoKey, OSError) as error:
        _log.error("%s", error)


async def apart(follower: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Who only tells of the runs must not end them: not even by a mistake of ours."""
    try:
        await follower()
    except Exception:  # noqa: BLE001
        _log.exception("%s has failed, and tells no more until the next start; no run is touched", follower)


async def gauge(board: Board) -> None:
    """Keep the devices' newest reading on the board, told when a person would see a difference.  Ends without devices.

    NVML stays open meanwhile: starting it anew would cost more than reading does.
    """
    told: list[GpuInfo] = []
    with ExitStack() as stack:
        await anyio.to_thread.run_sync(stack.enter_context, gpus.opened())
        while now := await anyio.to_thread.run_sync(gpus.read, abandon_on_cancel=True):
            board.gpus = now
            if gpus.differ(told, now):
                told = now
                board.touch()
            await anyio.sleep(GAUGE_SECONDS)
        board.gpus = []


def _judges(pool: JudgePool) -> JudgesInfo:
    return JudgesInfo(level=pool.level, missing=pool.missing, parallel=pool.parallel)


def _ready() -> None:
    _log.info("ready")
    notify.ready()


@asynccontextmanager
async def _signals() -> AsyncGenerator[AsyncIterator[signal.Signals]]:
    """To the very end: one that comes while all is being stopped must not stop that, nor one after it."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    with anyio.open_signal_receiver(*numbers) as signals:
        try:
            yield signals
        finally:
            signal.pthread_sigmask(signal.SIG_BLOCK, numbers)  # leaving the receiver puts back what would end us
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)


async def _until_signal(signals: AsyncIterator[signal.Signals], scope: anyio.CancelScope) -> None:
    number = await anext(signals)
    _log.info("%s: stopping", signal.Signals(number).name)
    notify.stopping()
    scope.cancel()


@contextmanager
def locked(state_dir: Path) -> Generator[None]:
    """One daemon per state_dir: the lock goes with the process, however it ends."""
    make_folder(state_dir)
    with (state_dir / "lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CannotStart(
                f"{state_dir}: another daemon uses this state_dir; stop it, or give another --state-dir"
            ) from None
        yield
