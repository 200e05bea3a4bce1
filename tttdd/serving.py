"""Publish a release and prove that the engine samples with it (algorithm, section 7).

    load under a fresh id -> engine and trainer give log-probs of one fixed probe -> proof.fault -> retry once -> fail
    proved -> it is live -> the release before is unloaded

The floor (engine against trainer under the base) is measured each time the workers start.  Every process that samples
is proved for itself; what a failed publish leaves served is what was served before.
"""

from __future__ import annotations

import time

import msgspec

from tttdd.domain import prompt, proof
from tttdd.domain.archive import Node
from tttdd.domain.prompt import TaskPrompt
from tttdd.failpoint import Point, reach
from tttdd.ports import Observer, Probe, PublishFailed, Release, RolloutEngine, Trainer
from tttdd.protocol import Proof

ATTEMPTS = 2
PROBE_TOKENS = 2048
"""At most: the more there are, the smaller a move of the weights that shows above bfloat16's rounding."""
END_OF_CONTEXT = 8
"""Tokens that an engine may keep free."""


async def make_probe(engine: RolloutEngine, task: TaskPrompt, seed: Node, context_length: int) -> Probe:
    """A seed's prompt, then what the model would have to write for the starter; all but the first token count."""
    prompt_ids = await engine.encode(prompt.render(task, seed))
    answer_ids = await engine.encode_more(prompt.written_part(task, seed))
    ids = (prompt_ids + answer_ids)[-min(PROBE_TOKENS, context_length - END_OF_CONTEXT) :]
    return Probe(ids[:1], ids[1:])


class Measured(msgspec.Struct, frozen=True):
    """Log-probs of the probe, in nats."""

    engines: list[list[float]]
    """One list from each process that samples."""
    trainer: list[float]


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """A release that the engine has been shown to serve, and what showing it took."""

    proof: Proof
    """Of the process whose gap is the widest."""
    measured: Measured
    publish_seconds: float
    prove_seconds: float
    retire_seconds: float


class Serving:
    """What the engine serves now.  Made by `start`, which measures the floor."""

    def __init__(
        self, engine: RolloutEngine, trainer: Trainer, observer: Observer, probe: Probe, base: Measured
    ) -> None:
        self._engine, self._trainer, self._observer, self._probe = engine, trainer, observer, probe
        self._base = self._previous = base
        self._live: Served | None = None

    @classmethod
    async def start(cls, engine: RolloutEngine, trainer: Trainer, observer: Observer, probe: Probe) -> Serving:
        base = Release(0)
        await engine.publish(base)
        engines = await engine.score(probe, release=0)
        return cls(engine, trainer, observer, probe, Measured(engines, await trainer.score(probe, release=base)))

    async def publish(self, step: int, release: Release) -> Served:
        """Serve `release` from now on; no-op when it is live.  Raises PublishFailed with the numbers."""
        if self._live is not None and self._live.proof.release == release.number:
            return self._live
        fault: str | None = None
        for attempt in range(1, ATTEMPTS + 1):
            self._observer.phase(step, release.number, "publish")
            started = time.monotonic()
            load_id = await self._engine.publish(release)
            reach(Point.RELEASE_LOADED)
            published = time.monotonic()
            self._observer.phase(step, release.number, "prove")
            measured = await self._measure(release)
            evidence = self._evidence(measured)
            fault = next((found for each in evidence if (found := proof.fault(each))), None)
            if fault is None:
                proved = time.monotonic()
                reach(Point.RELEASE_PROVED)
                await self._engine.keep(release.number)
                reach(Point.RELEASE_LIVE)
                self._live = Served(
                    proof=_as_proof(release, load_id, max(evidence, key=lambda each: each.gap), attempt),
                    measured=measured,
                    publish_seconds=published - started,
                    prove_seconds=proved - published,
                    retire_seconds=time.monotonic() - proved,
                )
                if all(each.since_previous.believed for each in evidence):
                    self._previous = measured  # else what is too small to tell adds up until it is not
                self._observer.proved(self._live.proof)
                return self._live
        raise PublishFailed(f"release {release.number} is not what the engine serves, {ATTEMPTS} times: {fault}")

    async def _measure(self, release: Release) -> Measured:
        engines = await self._engine.score(self._probe, release=release.number)
        return Measured(engines, await self._trainer.score(self._probe, release=release))

    def _evidence(self, now: Measured) -> list[proof.Evidence]:
        """One for each process that samples."""
        engines = zip(now.engines, self._base.engines, self._previous.engines, strict=True)
        return [
            proof.Evidence(
                engine=engine,
                trainer=now.trainer,
                engine_base=base,
                trainer_base=self._base.trainer,
                engine_previous=previous,
                trainer_previous=self._previous.trainer,
                floor=proof.distance(base, self._base.trainer),
            )
            for engine, base, previous in engines
        ]


def _as_proof(release: Release, load_id: str, evidence: proof.Evidence, attempts: int) -> Proof:
    made = evidence.since_previous
    return Proof(
        release=release.number,
        load_id=load_id,
        gap=evidence.gap,
        floor=evidence.floor,
        limit=evidence.limit,
        trainer_shift=evidence.trainer_shift,
        engine_shift=evidence.engine_shift,
        share=made.value if made.believed else None,
        attempts=attempts,
    )
