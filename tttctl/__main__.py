"""tttctl VERB ...: parse, import that verb's module, call it, turn its end into an exit status.

    0 done   1 the run failed, or stdout could not be written   2 bad usage or refused   3 no daemon   130 interrupted

Everything else is imported within `main`, where an interrupt is no traceback.  A stream that is closed, full, or of an
encoding that lacks a character loses no work: what a verb does comes before what it says.
"""

from __future__ import annotations

import importlib
import io
import os
import sys

FULL_DISK = 507
INTERRUPTED = 130
START = "start one with: systemctl start tttdd | tttdd --config FILE [--socket PATH] | tttctl demo (a private one)"


def main() -> None:
    sys.excepthook = _fault
    trouble: OSError | None = None
    try:
        _open_streams()
        status = run(sys.argv[1:])
    except KeyboardInterrupt:
        status = INTERRUPTED
    except SystemExit as end:  # argparse has said why
        status = end.code if isinstance(end.code, int) else 1
    except OSError as error:
        status, trouble = 1, error
    sys.exit(_ended(status, trouble))


def run(arguments: list[str]) -> int:
    """Carry out one command line; returns the exit status."""
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        return INTERRUPTED


def _run(arguments: list[str]) -> int:
    _import_msgspec()
    from tttctl.client import Client, Failed, NoDaemon, default_socket
    from tttctl.parser import parser
    from tttctl.render import complain

    options = parser().parse_args(arguments)
    try:
        verb = getattr(importlib.import_module(options.module), options.verb)
        return verb(Client(options.socket or default_socket()), options)
    except NoDaemon as error:
        complain(f"{error}; {START}")
        return 3
    except Failed as error:
        complain(str(error))
        return 2 if error.status < 500 or error.status == FULL_DISK else 1


def _import_msgspec() -> None:
    """Without typing_extensions, which it looks for before typing: typing serves it as well, in 3/4 of the time."""
    if "msgspec" in sys.modules or "typing_extensions" in sys.modules:
        return
    sys.modules["typing_extensions"] = None  # pyright: ignore[reportArgumentType]  # None: not to be had
    importlib.import_module("msgspec")
    del sys.modules["typing_extensions"]


def _open_streams() -> None:
    """A closed one must not become the next file's number; writing to a closed stdout fails as on a full disk."""
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison]  # the interpreter's word for a closed one
        sys.stdin = open(os.devnull)  # noqa: SIM115
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison]
        sys.stdout = open(os.open(os.devnull, os.O_RDONLY), "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:  # pyright: ignore[reportUnnecessaryComparison]
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _ended(status: int, trouble: OSError | None) -> int:
    """The exit status, when stdout has taken all that was said, or has been found not to."""
    refused = _flushed("stdout")
    if trouble and trouble.filename is None:  # of a stream; without a buffer there is nothing left to be refused again
        refused = trouble
    if isinstance(refused, BrokenPipeError):  # the reader has seen enough
        status = 0 if trouble else status
    elif refused:
        _complain(f"cannot write to standard output: {refused.strerror}")
        status = status or 1
    elif trouble:
        _complain(str(trouble))
    _flushed("stderr")
    return status


def _flushed(name: str) -> OSError | None:
    """What keeps it from taking its text; the interpreter, which flushes it again, then finds nothing wrong."""
    stream = getattr(sys, name)
    try:
        stream.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return error
    return None


def _fault(kind: type[BaseException], error: BaseException, _: object) -> None:
    """What nobody foresaw, in one line; `python -X dev` has the traceback."""
    trace = error.__traceback__
    if sys.flags.dev_mode:
        sys.__excepthook__(kind, error, trace)
    if sys.flags.dev_mode or issubclass(kind, KeyboardInterrupt):
        return
    while trace and trace.tb_next:
        trace = trace.tb_next
    place = f" ({os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno})" if trace else ""  # noqa: PTH119
    _complain(f"a fault of tttctl, please report it: {kind.__name__}: {error}{place}")


def _complain(text: str) -> None:
    from tttctl.render import complain

    complain(text)


if __name__ == "__main__":
    main()
