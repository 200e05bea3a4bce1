"""The pause point.  A closed gate lets what is in flight finish and holds whatever comes next."""

from __future__ import annotations

import anyio


class Gate:
    def __init__(self) -> None:
        self._opened = anyio.Event()
        self._opened.set()

    @property
    def closed(self) -> bool:
        return not self._opened.is_set()

    def close(self) -> None:
        if not self.closed:
            self._opened = anyio.Event()

    def open(self) -> None:
        self._opened.set()

    async def wait(self) -> None:
        """Return at once while open, else when it opens."""
        await self._opened.wait()
