"""What the algorithm needs of the world, in the algorithm's own words.

    RolloutEngine  prompt tokens -> sampled tokens with the sampler's log-probs, under one named release
    Trainer        (release N, frozen batch) -> release N + 1, a function on files
    Judge          program -> verdict
    Store          the only memory between the two halves of a step
    Observer       who watches: phases and cells for the board

Adapters implement one port each; `step.py` knows nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from judges.verdict import Verdict
from tttdd.domain.archive import Archive
from tttdd.domain.batch import TrainReport
from tttdd.domain.grid import Coordinate
from tttdd.domain.prompt import Prompt
from tttdd.protocol import CellState, PhaseName, Proof

OnText = Callable[[str], None]


class WorkerDied(RuntimeError):
    """A worker process ended or broke its pipe.  The runner restarts the workers and re-enters the loop."""


class WorkerFailed(RuntimeError):
    """A worker answered a request with an error: the run fails with the message."""


class PublishFailed(RuntimeError):
    """The engine does not serve the release it was given; the message holds the numbers (algorithm, section 7)."""


class StoreError(RuntimeError):
    """The stored state does not allow what was asked, or cannot be read.  The message says what and where."""


class StoreUnusable(StoreError):
    """Nothing can be read or written now: it is locked, gone, or its disk fails.  No run's fault."""


class Release(msgspec.Struct, frozen=True):
    """A numbered set of weights.  Release 0 is the base model: it has no folder."""

    number: int
    path: Path | None = None


class Sampled(msgspec.Struct, frozen=True):
    """One completion.  The three lists have one entry per sampled token."""

    token_ids: list[int]
    logprobs: list[float]
    """The sampler's log-probability of each token at temperature 1, in nats."""
    loss_mask: list[bool]
    """False where the sampler was forced to emit the token: such tokens take no part in the loss."""
    text: str
    finish_reason: Literal["stop", "length"]
    release: int


class Turn(msgspec.Struct, frozen=True):
    """One message of a conversation."""

    role: str
    """As the model's chat template knows it: system, user, assistant."""
    content: str


class Probe(msgspec.Struct, frozen=True):
    """Fixed tokens that prove what an engine serves: the log-probs of `completion_ids` after `prompt_ids`."""

    prompt_ids: list[int]
    completion_ids: list[int]


class Rollout(msgspec.Struct, frozen=True):
    """One judged sample at its coordinate, as it is stored."""

    coordinate: Coordinate
    parent: int
    """Id of the archive node whose program was shown to the model."""
    program: str | None
    """What was judged; None when the answer held no program."""
    sampled: Sampled
    verdict: Verdict
    prompt_ids: list[int] = []
    """What a harness asked; empty where the prompt is its group's own, made of the parent."""


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """A completion that a harness was given, as it is stored before."""

    id: str
    run: str
    step: int
    """Step in hand when it was sampled."""
    prompt_ids: list[int]
    sampled: Sampled
    """Its text is what the harness was told."""
    place: Coordinate | None = None
    """Where it was reported."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a harness said of a receipt, as it is stored."""

    receipt: str
    report_id: str | None
    content: str
    """JSON."""
    place: Coordinate
    accepted: bool = True
    """False: the coordinate had a report already."""


class Ready(msgspec.Struct, frozen=True):
    """The store's word that `step` can be sampled under `release`."""

    step: int
    release: Release


class Pending(msgspec.Struct, frozen=True):
    """The store's word that the grid of `step` is archived and its frozen batch waits to be trained."""

    step: int
    release: Release
    batch: Path | None
    """None in a run that does not train."""
    metrics: dict[str, float]
    """The grid's half of the step's metrics row."""


class ModelFiles(msgspec.Struct, frozen=True):
    """A transformers directory that is complete."""

    path: Path
    revision: str
    """Hash of its files."""


class RolloutEngine(Protocol):
    """Samples from the model.  A release must be published before it is named in a request."""

    @property
    def reproducible(self) -> bool:
        """Whether the same arguments of `sample` give the same tokens."""
        ...

    async def publish(self, release: Release) -> str:
        """Load `release` and serve it beside the base; returns the engine's load id."""
        ...

    async def keep(self, release: int) -> None:
        """Serve only `release` and the base from now on, and free what the others held."""
        ...

    async def rest(self) -> None:
        """Lend the trainer the device memory that only sampling needs, until the next publish."""
        ...

    async def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt; in chat style that of a conversation of one turn."""
        ...

    async def encode_chat(self, messages: list[Turn], thinking: bool | None) -> list[int]:
        """Token ids of a conversation by the model's chat template, up to where the answer begins.  `thinking` is the
        template's `enable_thinking`; None: as configured.  WorkerFailed says why there is no template, or what it has
        against the conversation."""
        ...

    async def encode_more(self, text: str) -> list[int]:
        """Token ids of a text that stands behind other tokens: nothing is put in front of it."""
        ...

    async def sample(
        self,
        prompt_ids: list[int],
        *,
        release: int,
        seed: int,
        stop: tuple[str, ...],
        max_new_tokens: int,
        on_text: OnText | None = None,
    ) -> Sampled:
        """One completion at temperature 1, untruncated.  Ends at the end-of-sequence token, at the first token that
        completes one of `stop`, at `max_new_tokens`, or with the context.  Cancelling the call frees its place.

        `on_text` gets the text piece by piece as it is sampled, in whole characters; joined they are the answer's
        `text`.  It is called in the caller's task, and what it raises ends the call.

        The embedded engine gives the same tokens for the same arguments; SGLang draws from one stream for all.
        Calls whose seeds differ in the last bit belong to one rollout: the later prompt goes on from the earlier."""
        ...

    async def score(self, probe: Probe, *, release: int) -> list[list[float]]:
        """Log-probs of the probe's completion tokens under `release` (0 = base), in nats: one list from each process
        that samples."""
        ...


class Trainer(Protocol):
    """Takes optimizer steps."""

    async def train(self, release: Release, batch: Path, target: Release) -> TrainReport:
        """One step on `batch` from `release`; `target.path` appears complete or not at all.  If it is there
        already, made from the same release and batch, its report is returned and nothing is trained."""
        ...

    async def score(self, probe: Probe, *, release: Release) -> list[float]:
        """Log-probs of the probe's completion tokens as the trainer computes them, in nats."""
        ...


class Judge(Protocol):
    async def grade(self, program: str) -> Verdict:
        """Run `program` in a sandbox and grade what it returned.  Waiting for a free slot costs it no time."""
        ...


class Store(Protocol):
    """A run's memory.  Every method that writes is one durable transaction."""

    def state(self, run: str) -> Ready | Pending: ...

    def archive(self, run: str) -> Archive: ...

    def record(self, run: str, rollout: Rollout, report: Report | None = None) -> bool:
        """Keep a judged rollout, and the report that a harness made of it; False if its coordinate was taken already
        (the first one stays)."""
        ...

    def rollouts(self, run: str, step: int) -> list[Rollout]:
        """What was recorded of `step`, in coordinate order, of its current release."""
        ...

    def begin(self, run: str, step: int, archive: Archive, batch: Path | None, metrics: dict[str, float]) -> None:
        """Ready -> Pending: archive, visits, pruning, batch reference and the grid's metrics, at once."""
        ...

    def commit(self, run: str, step: int, release: Release, proof: Proof | None, metrics: dict[str, float]) -> None:
        """Pending -> Ready(step + 1, release): release, proof and the step's whole metrics row, at once.  Without a
        proof the release is the one that the step began with: nothing was trained."""
        ...

    def kept_releases(self, run: str, keep: int) -> set[int]:
        """Numbers of the `keep` newest committed releases and of the one that sampled the best program."""
        ...


class Observer(Protocol):
    def phase(self, step: int, release: int, phase: PhaseName) -> None: ...

    def cell(self, coordinate: Coordinate, state: CellState) -> None: ...

    def progress(self, share: float) -> None:
        """How much of the phase in hand is done, 0 to 1."""
        ...

    def proved(self, proof: Proof) -> None: ...

    def committed(self, step: int, metrics: dict[str, float]) -> None: ...
