"""Typed decoding of what a program returned: the JSON bytes become exactly the type asked for, or a rejection.

NaN, infinities, booleans, strings, numbers beyond float64 and wrong nesting never get past this point.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from judges.verdict import Reason, Verdict

T = TypeVar("T")


class Rejected(Exception):
    """The program's answer breaks a rule of the task."""

    def __init__(self, reason: Reason, detail: str, reported: float | None = None) -> None:
        super().__init__(detail)
        self.verdict = Verdict(valid=False, reason=reason, detail=detail, reported=reported)


def decode(artifact: bytes, shape: type[T], expected: str) -> T:
    """Raises Rejected, with `expected` saying in words what the program has to return."""
    try:
        return msgspec.json.decode(artifact, type=shape)
    except msgspec.ValidationError as error:
        reason: Reason = "wrong shape" if "of length" in str(error) else "wrong type"
        raise Rejected(reason, f"{_in_words(str(error))}; expected {expected}") from None
    except msgspec.DecodeError as error:
        raise Rejected("wrong type", f"{_malformed(artifact, str(error))}; expected {expected}") from None
    except RecursionError:
        raise Rejected("wrong type", f"the returned value is nested too deeply; expected {expected}") from None


def _in_words(message: str) -> str:
    """msgspec's message with its path written as an index into the returned value."""
    what, _, path = message.partition(" - at `$")
    return f"{what} at returned{path.rstrip('`')}" if path else what


def _malformed(artifact: bytes, message: str) -> str:
    for word in (b"NaN", b"Infinity"):
        if word in artifact:
            return f"a returned number is {word.decode()}"
    return f"the returned value is not JSON ({message})"
