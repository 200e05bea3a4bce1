"""The step in hand as a harness may sample from it, and what it may ask."""

from __future__ import annotations

import msgspec

from tttdd.domain.grid import Coordinate
from tttdd.errors import Refused
from tttdd.gate import Gate
from tttdd.ports import Observer, Release, RolloutEngine, Turn, WorkerFailed
from tttdd.sample_clock import SampleClock
from tttdd.thinking import Answers


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A completion that a harness wants."""

    turns: list[Turn]
    thinking: bool | None
    stop: tuple[str, ...]
    seed: int | None
    """None: any."""
    max_new_tokens: int | None


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """What the step in hand samples from, and what its grid still lacks."""

    run: str
    step: int
    release: Release
    context_length: int
    """Tokens, of prompt and answer together."""
    max_new_tokens: int
    """The most that an answer may have."""
    best: float
    """Highest reward before the step."""
    missing: set[Coordinate]
    engine: RolloutEngine
    answers: Answers
    observer: Observer
    gate: Gate
    clock: SampleClock


async def encode(opening: Opening, ask: Ask) -> list[int]:
    """The prompt's tokens; raises Refused where the template takes no such conversation or the context has no room."""
    try:
        ids = await opening.engine.encode_chat(ask.turns, ask.thinking)
    except WorkerFailed as error:
        raise Refused(f"messages: {error}", field="messages") from None
    context, most, wanted = opening.context_length, opening.max_new_tokens, ask.max_new_tokens or 1
    if not ids:
        raise Refused("messages: the model's chat template makes no token of them", field="messages")
    if wanted > most:
        told = f"max_tokens: {wanted} are asked for; sampling.max_new_tokens is {most}"
        raise Refused(told, field="max_tokens", hint="ask for less, or raise it in the daemon's configuration")
    if len(ids) >= context:
        told = f"messages: the prompt has {len(ids)} tokens, and the context {context} for prompt and answer"
        raise Refused(told, field="messages")
    if len(ids) + wanted > context:
        told = f"max_tokens: the prompt has {len(ids)} tokens and {wanted} are asked for; the context has {context}"
        raise Refused(told, field="max_tokens", hint=f"{context - len(ids)} at most")
    return ids
