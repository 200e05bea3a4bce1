"""Publish a release and prove that the engine samples with it (algorithm, section 7).

    load under a fresh id -> engine and trainer give log-probs of one fixed probe -> proof.fault -> retry once -> fail

The floor (engine against trainer under the base) is measured each time the workers start.
"""

from __future__ import annotations

import time

import msgspec

from tttdd.domain import proof
from tttdd.ports import Observer, Probe, PublishFailed, Release, RolloutEngine, Trainer
from tttdd.protocol import Proof

ATTEMPTS = 2


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """A release that the engine has been shown to serve, and what showing it took."""

    proof: Proof
    trainer: list[float]
    """The trainer's log-probs of the probe under it."""
    publish_seconds: float
    prove_seconds: float


class Serving:
    """What the engine serves now.  Made by `start`, which measures the floor."""

    def __init__(
        self, engine: RolloutEngine, trainer: Trainer, observer: Observer, probe: Probe, base: tuple[list[float], ...]
    ) -> None:
        self._engine, self._trainer, self._observer, self._probe = engine, trainer, observer, probe
        self._engine_base, self._trainer_base = base
        self._floor = proof.distance(*base)
        self._live: Served | None = None

    @classmethod
    async def start(cls, engine: RolloutEngine, trainer: Trainer, observer: Observer, probe: Probe) -> Serving:
        base = Release(0)
        await engine.publish(base)
        both = (await engine.score(probe, release=0), await trainer.score(probe, release=base))
        return cls(engine, trainer, observer, probe, both)

    async def publish(self, step: int, release: Release) -> Served:
        """Serve `release` from now on; no-op when it is live.  Raises PublishFailed with the numbers."""
        if self._live is not None and self._live.proof.release == release.number:
            return self._live
        fault: str | None = None
        for attempt in range(1, ATTEMPTS + 1):
            self._observer.phase(step, release.number, "publish")
            started = time.monotonic()
            load_id = await self._engine.publish(release)
            published = time.monotonic()
            self._observer.phase(step, release.number, "prove")
            evidence = await self._gather(release)
            fault = proof.fault(evidence)
            if fault is None:
                self._live = Served(
                    proof=_as_proof(release, load_id, evidence, attempt),
                    trainer=evidence.trainer,
                    publish_seconds=published - started,
                    prove_seconds=time.monotonic() - published,
                )
                self._observer.proved(self._live.proof)
                return self._live
        raise PublishFailed(f"release {release.number} is not what the engine serves, {ATTEMPTS} times: {fault}")

    async def _gather(self, release: Release) -> proof.Evidence:
        return proof.Evidence(
            engine=await self._engine.score(self._probe, release=release.number),
            trainer=await self._trainer.score(self._probe, release=release),
            engine_base=self._engine_base,
            trainer_base=self._trainer_base,
            trainer_previous=self._live.trainer if self._live else self._trainer_base,
            floor=self._floor,
        )


def _as_proof(release: Release, load_id: str, evidence: proof.Evidence, attempts: int) -> Proof:
    return Proof(
        release=release.number,
        load_id=load_id,
        gap=evidence.gap,
        floor=evidence.floor,
        limit=evidence.limit,
        trainer_shift=evidence.trainer_shift,
        engine_shift=evidence.engine_shift,
        attempts=attempts,
    )
