"""How long the sampling half of a step took, and how many tokens a second it made."""

from __future__ import annotations

import time


class SampleClock:
    """Times the sampling half; what a crash interrupted is not counted."""

    def __init__(self) -> None:
        self._started = self._last_sampled = time.monotonic()
        self._tokens = 0

    def sampled(self, tokens: int) -> None:
        self._tokens += tokens
        self._last_sampled = time.monotonic()

    def row(self) -> dict[str, float]:
        now = time.monotonic()
        sampling = self._last_sampled - self._started
        return {
            "time/sample": now - self._started,
            "time/judge_wait": now - self._last_sampled,
            "rollout/tokens_per_second": self._tokens / sampling if sampling > 0 else 0.0,
        }
