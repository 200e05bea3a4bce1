"""What the daemon answers to a caller that asked for something it cannot have: one class per kind of answer.

Refused -> 400 (what was asked breaks a rule)    NotFound -> 404 (no such name)    Conflict -> 409 (wrong state)
NotYet  -> 503 (it comes by itself: ask again)
"""

from __future__ import annotations

from typing import TypeGuard


class CallerError(Exception):
    """The caller's mistake, told in the caller's words; never a failure of a run or of the daemon.

    `field` names the part of the request it is about, `hint` what to do or the nearest name that exists.
    """

    def __init__(self, message: str, *, field: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.hint = hint


class Refused(CallerError):
    """What was asked breaks a rule."""


class NotFound(CallerError):
    """There is nothing of that name."""


class Conflict(CallerError):
    """It exists, but its state does not allow this."""


class NotYet(CallerError):
    """It is not there yet, and comes without the caller's doing."""


def first_words(group: BaseExceptionGroup[BaseException]) -> str:
    """The first error's message: the others are its consequences."""
    error: BaseException = group
    while _is_group(error):
        error = error.exceptions[0]
    return (str(error) or type(error).__name__).encode(errors="replace").decode()


def _is_group(error: BaseException) -> TypeGuard[BaseExceptionGroup[BaseException]]:
    return isinstance(error, BaseExceptionGroup)
