"""What a harness of a researcher's own says and hears: completions, receipts, reports, the grid.

Completions are OpenAI's chat completions, field by field as far as they are served (platform.openai.com, API
reference); what is not served is no field here, and refused by its name.  `chat_template_kwargs` is SGLang's.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tttdd.protocol import Count, Error, RunState

MOST_STOPS = 4
STOP_CHARACTERS = 256
MOST_SCORE = 1e100
"""Sums of squares of larger ones would overflow."""

Stop = Annotated[str, Meta(min_length=1, max_length=STOP_CHARACTERS)]
Index = Annotated[int, Meta(ge=0, le=1_000_000)]
One = Annotated[float, Meta(ge=1, le=1)]
Zero = Annotated[float, Meta(ge=0, le=0)]

OWN_DISTRIBUTION = "leave it out: training needs samples of the model's own distribution, as it is"


class TextPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["text"]
    text: str


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    role: Literal["system", "developer", "user", "assistant"]
    """developer is OpenAI's newer word for system."""
    content: str | list[TextPart]

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    include_usage: bool | None = None


class TemplateOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    enable_thinking: bool | None = None
    """Default: the daemon's sampling.thinking."""


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/chat/completions."""

    hints: ClassVar[dict[str, str]] = {
        "n": "ask once for each completion: each has a receipt of its own",
        "temperature": OWN_DISTRIBUTION,
        "top_p": OWN_DISTRIBUTION,
        "presence_penalty": OWN_DISTRIBUTION,
        "frequency_penalty": OWN_DISTRIBUTION,
    }

    messages: Annotated[list[Message], Meta(min_length=1)]
    model: str | None = None
    """The run's name, if anything: what is served is always the run's newest release."""
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=1)] | None = None
    stop: Stop | Annotated[list[Stop], Meta(max_length=MOST_STOPS)] | None = None
    """Texts that end the completion, and are no part of it."""
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    """The embedded engine gives the same completion again for the same request, release and seed; SGLang knows no
    seeds, and a daemon that uses it refuses them."""
    max_tokens: Count | None = None
    """Default: the daemon's sampling.max_new_tokens, as far as the context has room."""
    max_completion_tokens: Count | None = None
    """The same."""
    temperature: One | None = None
    top_p: One | None = None
    presence_penalty: Zero | None = None
    frequency_penalty: Zero | None = None
    chat_template_kwargs: TemplateOptions | None = None


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    content: str
    role: Literal["assistant"] = "assistant"


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    message: Answer
    finish_reason: Literal["stop", "length"]
    index: int = 0


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    created: int
    """Unix time."""
    model: str
    """The run."""
    choices: list[Choice]
    usage: Usage
    system_fingerprint: str
    """release-N."""
    receipt: str
    """Names the completion in a report; given only after its tokens and log-probs are stored."""
    release: int
    """Release that sampled it; 0 is the base model."""
    step: int
    """Step in hand."""
    object: Literal["chat.completion"] = "chat.completion"


class Delta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    role: Literal["", "assistant"] = ""
    content: str | None = None


class ChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    delta: Delta
    finish_reason: Literal["stop", "length"] | None = None
    index: int = 0


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a stream; the last one with a choice has the receipt."""

    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | UnsetType = UNSET
    system_fingerprint: str | UnsetType = UNSET
    receipt: str | UnsetType = UNSET
    release: int | UnsetType = UNSET
    step: int | UnsetType = UNSET
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """As OpenAI's clients show it."""

    message: str
    type: Literal["invalid_request_error", "server_error"]
    param: str | None
    code: str | None = None


class ChatError(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What any other path says as `Error`, for OpenAI's clients: they look for a message inside `error`."""

    error: Fault
    field: str | None = None
    hint: str | None = None

    @classmethod
    def of(cls, status: int, told: Error) -> ChatError:
        hint = f" ({told.hint})" if told.hint else ""
        kind = "server_error" if status >= 500 else "invalid_request_error"
        fault = Fault(message=f"{told.error}{hint}", type=kind, param=told.field)
        return cls(error=fault, field=told.field, hint=told.hint)


class Metadata(msgspec.Struct, frozen=True, kw_only=True):
    """More may stand beside these fields: it is kept with the report."""

    step: Index
    """Step in hand."""
    group: Index
    rollout: Index
    groups_per_step: Count
    rollouts_per_group: Count


class Report(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/runs/{run}/reports: what a completion is worth, and its place in the grid."""

    score: Annotated[float, Meta(ge=-MOST_SCORE, le=MOST_SCORE)]
    """Reward: higher is better."""
    references: Annotated[list[str], Meta(min_length=1, max_length=1)]
    """The completion's receipt."""
    metadata: Metadata
    report_id: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    """The same report under the same id gets the first answer again: for a harness that did not hear it."""


class Reported(msgspec.Struct, frozen=True, kw_only=True):
    run: str
    receipt: str
    step: int
    group: int
    rollout: int
    accepted: bool
    """False: the coordinate had a report already, which stays; the receipt can be reported elsewhere."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    group: int
    rollout: int


class RefusedRelease(msgspec.Struct, frozen=True, kw_only=True):
    """A coordinate at which a report of another release was refused: it can be sampled again."""

    group: int
    rollout: int
    releases: list[int]
    """The grid's and the report's."""


class GridInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The step in hand of an external run."""

    run: str
    state: RunState
    step: int
    steps: int
    release: int
    groups: int
    rollouts: int
    missing: list[Place]
    """Coordinates without a report, in order."""
    refused: list[RefusedRelease]
