"""One contained child: contain this process for good, then run the program it was cloned for, then end.

    descriptors -> namespaces -> limits -> user -> Landlock -> seccomp -> program -> entry function -> JSON -> exit

Nothing that the program can see holds a secret, and nothing that it returns is believed: the bytes on the result
pipe go to a grader that never ran a program.
"""

from __future__ import annotations

import fcntl
import io
import json
import linecache
import os
import resource
import select
import signal
import sys
import traceback
import types
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn, cast

import msgspec

from judges.sandbox import landlock, limits, linux, namespaces, seccomp
from judges.sandbox.messages import Entry, Failure, Job, Launch, Refused

JOB, RESULT, STATUS, PARENT, GROUP = 10, 11, 12, 13, 14
_ABOVE = 200
_TRACEBACK_FRAMES = 20
_NAME = "<program>"
_decoder = msgspec.msgpack.Decoder(Job)
"""Made once, when the zygote starts."""


class Containment(msgspec.Struct, frozen=True):
    """What the zygote found that this machine can do."""

    owner: namespaces.Owner | None
    """None: no namespaces, level `process`."""
    users: bool
    """Each slot has a user id of its own."""
    landlock: bool
    seccomp: bool
    groups: bool
    """Each has a control group of its own."""
    readable: list[str]
    ids: tuple[int, int]
    """User and group of the zygote."""
    numerical_threads: Any
    """limits.find_numerical_threads()"""


def main(launch: Launch, descriptors: Sequence[int], containment: Containment) -> NoReturn:
    """`descriptors`: job, result, output, status, the zygote's pidfd, and where there is one the entrance of a control
    group.  Whatever happens, this process ends here."""
    try:
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
        job = _contained(launch, containment, descriptors)
        os._exit(run(job))
    finally:  # a program's exception can fail in its own __str__
        os._exit(1)


def _contained(launch: Launch, containment: Containment, descriptors: Sequence[int]) -> Job:
    """What to run, once there is no way back."""
    status = descriptors[3]
    try:
        _take_descriptors(descriptors)
        status = STATUS
        _contain(launch, containment)
    except BaseException as error:  # noqa: BLE001  whatever fails before the program runs is ours
        report(status, Refused(f"cannot contain a program: {type(error).__name__}: {error}"))
        os._exit(1)
    job = _decoder.decode(os.pread(JOB, os.fstat(JOB).st_size, 0))
    os.close(STATUS)
    os.close(JOB)
    return job


def report(status: int, message: msgspec.Struct) -> None:
    """One line for the client; it may have given up on this program."""
    with suppress(BrokenPipeError):
        os.write(status, msgspec.json.encode(message) + b"\n")


def _take_descriptors(descriptors: Sequence[int]) -> None:
    """Standard streams and fixed numbers; every other descriptor of the zygote is closed."""
    moved = [fcntl.fcntl(each, fcntl.F_DUPFD, _ABOVE) for each in descriptors]
    os.closerange(3, _ABOVE)
    for source, target in zip(moved, (JOB, RESULT, 1, STATUS, PARENT, GROUP), strict=False):
        os.dup2(source, target)
    os.dup2(1, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.closerange(3, JOB)
    os.closerange(GROUP + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _contain(launch: Launch, containment: Containment) -> None:
    if containment.groups:
        os.write(GROUP, b"0")  # 0 is this process
        os.close(GROUP)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.setsid()
    os.umask(0o077)
    limits.die_first_when_memory_is_short()
    limits.pin(launch.processors, containment.numerical_threads)
    if containment.owner is not None:
        namespaces.settle(containment.owner, containment.ids, launch.limits.files_bytes)
    _limit_and_give_up_rights(launch, containment)
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)  # a change of user has cleared it
    _end_without_parent()
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    if containment.landlock:
        writable = [os.devnull, *([namespaces.SCRATCH] if containment.owner else [])]  # many silence prints with it
        landlock.restrict([*containment.readable, "/proc/self", "/proc/cpuinfo", "/proc/meminfo"], writable)
    if containment.seccomp:
        seccomp.install()


def _end_without_parent() -> None:
    """It may have ended before its death could have been a signal."""
    parent = select.poll()
    parent.register(PARENT, select.POLLIN)
    if parent.poll(0):
        os._exit(1)
    os.close(PARENT)


def _limit_and_give_up_rights(launch: Launch, containment: Containment) -> None:
    """An own user where the zygote is root.  Without a root of its own it may need to pass closed folders above the
    interpreter: it keeps the right to read, which Landlock narrows to the libraries."""
    owner, users = containment.owner, containment.users
    limits.apply(launch.limits, may_write=owner is not None, own_user=users or owner == "user")
    linux.prctl(linux.PR_SET_KEEPCAPS, 1)
    if users:
        namespaces.become_user_of(launch.slot)
    reads_anywhere = users and owner is None and containment.landlock
    linux.keep_capabilities(linux.CAP_DAC_READ_SEARCH if reads_anywhere else 0)
    linux.prctl(linux.PR_SET_DUMPABLE, 0)


def run(job: Job) -> int:
    """The exit status.  Result or failure is on the result pipe, tracebacks are on the output."""
    stream = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), "utf-8", "backslashreplace", write_through=True)
    sys.stdout = sys.stderr = sys.__stdout__ = sys.__stderr__ = stream
    try:
        answer = b"R" + _call(job.program, job.entry)
    except _Failed as failed:
        answer = b"E" + msgspec.json.encode(failed.failure)
    _write(answer)
    return 0


class _Failed(Exception):
    def __init__(self, failure: Failure) -> None:
        self.failure = failure


def _call(source: bytes, entry: Entry) -> bytes:
    """JSON of what the entry function returned.  Raises _Failed with the class of what went wrong."""
    module = types.ModuleType("__program__")
    sys.modules["__program__"] = module
    try:
        code = _compiled(source)
        exec(compile(entry.helpers, "<helpers>", "exec"), module.__dict__)
        exec(code, module.__dict__)
        function = getattr(module, entry.function, None)
        if not callable(function):
            raise _Failed(Failure("no result", f"the program defines no function {entry.function}"))
        value: Any = function(**entry.kwargs)
        return _encoded(value, entry.function)
    except _Failed:
        raise
    except BaseException as error:  # noqa: BLE001  SystemExit and KeyboardInterrupt are the program's, too
        raise _Failed(_failure(error)) from None


def _compiled(source: bytes) -> types.CodeType:
    try:
        text = source.decode()
        linecache.cache[_NAME] = (len(text), None, text.splitlines(True), _NAME)
        return compile(text, _NAME, "exec")
    except (SyntaxError, ValueError) as error:  # ValueError: null bytes, invalid UTF-8
        line = f" (line {error.lineno})" if isinstance(error, SyntaxError) and error.lineno else ""
        message = error.msg if isinstance(error, SyntaxError) else str(error)
        raise _Failed(Failure("syntax", _plain(f"{type(error).__name__}: {message}{line}"))) from None


def _failure(error: BaseException) -> Failure:
    words = _plain(f"{type(error).__name__}: {error}{_line_of(error)}")
    match error:
        case SystemExit():
            return Failure("no result", f"the program ended itself before it returned: {words}")
        case MemoryError():
            return Failure("memory", words)
        case _:
            _show(error)
            return Failure("import" if isinstance(error, ImportError) else "exception", words)


def _line_of(error: BaseException) -> str:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == _NAME]
    return f" (line {lines[-1]})" if lines else ""


def _show(error: BaseException) -> None:
    """The traceback as the program's own run would print it: without our frame."""
    inner = error.__traceback__.tb_next if error.__traceback__ else None
    traceback.print_exception(error.with_traceback(inner), limit=-_TRACEBACK_FRAMES)


def _plain(text: str) -> str:
    """Valid UTF-8, one line, short."""
    return " ".join(text.encode("utf-8", "backslashreplace").decode()[:500].split())


def _encoded(value: Any, function: str) -> bytes:
    try:
        return json.dumps(_as_json(value)).encode()
    except (TypeError, ValueError, RecursionError) as error:
        detail = f"{function} returned a value that is not made of numbers and lists: {error}"
        raise _Failed(Failure("wrong type", _plain(detail))) from None


def _as_json(value: Any) -> Any:
    numpy: Any = sys.modules.get("numpy")  # without it there is nothing of numpy's
    if numpy and isinstance(value, numpy.ndarray | numpy.generic):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [_as_json(each) for each in cast("list[Any]", value)]
    return value


def _write(answer: bytes) -> None:
    view = memoryview(answer)
    while view:
        view = view[os.write(RESULT, view) :]
