"""A completion's text up to the first of its stops, as a whole and piece by piece.

    add("def f(", ...) -> told at once, but for an end that could be the beginning of a stop -> finish(whole text)

What the sampler was forced to say, to close a thinking that was too long, stops nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from tttdd.thinking import CLOSING


class Content:
    """`tell`, if any, is given the text in pieces; joined they are what `finish` returns."""

    def __init__(self, stops: tuple[str, ...], tell: Callable[[str], None] | None = None) -> None:
        self._stops, self._tell = stops, tell
        self._held = ""
        self._told = 0

    def add(self, piece: str) -> None:
        self._held += piece
        sure = len(self._held) - (0 if piece == CLOSING else self._doubtful())
        self._give(until(self._held, self._stops)[:sure])

    def finish(self, text: str) -> str:
        """The content of the whole text; what was not told of it yet is told."""
        content = until(text, self._stops)
        self._held = content[self._told :]
        self._give(self._held)
        return content

    def _give(self, text: str) -> None:
        if text and self._tell:
            self._tell(text)
            self._told += len(text)
            self._held = self._held[len(text) :]

    def _doubtful(self) -> int:
        """Characters at the end that could be the beginning of a stop."""
        lengths = (n for stop in self._stops for n in range(1, len(stop)) if self._held.endswith(stop[:n]))
        return max(lengths, default=0)


def until(text: str, stops: tuple[str, ...]) -> str:
    """`text` before the first of `stops`; all of it where there is none."""
    begin = text.rfind(CLOSING) + len(CLOSING) if CLOSING in text else 0
    places = [place for stop in stops if (place := text.find(stop, begin)) >= 0]
    return text[: min(places, default=len(text))]
