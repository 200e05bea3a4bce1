"""The frozen training batch of one step, one file from the daemon to the trainer, and the report that comes back.

    prompt + samples + advantages --encode--> batch file --read--> trainer

Per token the file holds int32 id, float64 log-prob and uint8 mask, little-endian: 13 bytes.  The same batch gives the
same bytes, so its hash names it; its own SHA-256 stands at its beginning.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from pathlib import Path

import msgspec

assert sys.byteorder == "little"
MAGIC = b"tttdd batch 2\n"


class TrainReport(msgspec.Struct, frozen=True):
    """What one optimizer step says of itself (algorithm, section 4)."""

    loss: float
    ratio_mean: float
    sampler_trainer_gap: float
    """Mean of logq - logp over the trained tokens, in nats."""
    kl_base: float
    """Mean of logq - logp_base over the trained tokens, in nats."""
    grad_norm: float
    tokens: int
    """Tokens that went through the model, prompts counted once per group."""
    seconds: float
    mfu: float | None = None
    """Useful FLOP/s over the peak of all devices; None where that is not known (CPU)."""
    base_seconds: float = 0.0
    """Spent on the log-probs of the base."""
    grad_seconds: float = 0.0
    """Spent on forward and backward passes."""
    max_tokens_per_gpu: int | None = None
    """Bound of the bins that were used: half of the configured one after an out-of-memory."""
    peak_bytes: int | None = None
    """Most memory that a device's tensors took; None on the CPU."""


class Sample(msgspec.Struct, frozen=True):
    """One completion; the three lists have one entry per sampled token."""

    token_ids: list[int]
    logprobs: list[float]
    """The sampler's log-prob of each token, in nats."""
    loss_mask: list[bool]
    """False where the sampler was forced to emit the token."""
    advantage: float


class Group(msgspec.Struct, frozen=True):
    """Samples of one prompt."""

    prompt_ids: list[int]
    samples: list[Sample]


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    run: str
    step: int
    release: int
    """The release that sampled it and that is trained from."""
    rollouts_total: int
    """Groups x rollouts of the whole grid, removed groups included: the constant under the loss."""
    groups: list[Group]


class _PackedSample(msgspec.Struct, frozen=True, array_like=True):
    token_ids: bytes
    logprobs: bytes
    loss_mask: bytes
    advantage: float


class _PackedGroup(msgspec.Struct, frozen=True, array_like=True):
    prompt_ids: bytes
    samples: list[_PackedSample]


class _PackedBatch(msgspec.Struct, frozen=True, kw_only=True, tag="batch 1", tag_field="format"):
    run: str
    step: int
    release: int
    rollouts_total: int
    groups: list[_PackedGroup]


def encode(batch: Batch) -> bytes:
    """The file's bytes."""
    packed = _PackedBatch(
        run=batch.run,
        step=batch.step,
        release=batch.release,
        rollouts_total=batch.rollouts_total,
        groups=[_pack(group) for group in batch.groups],
    )
    data = msgspec.msgpack.encode(packed)
    return MAGIC + hashlib.sha256(data).digest() + data


def read(path: Path) -> Batch:
    """Raises OSError, or ValueError for a file that is damaged or no batch."""
    data = path.read_bytes()
    try:
        packed = msgspec.msgpack.decode(_checked(data), type=_PackedBatch)
    except (msgspec.DecodeError, ValueError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    return Batch(
        run=packed.run,
        step=packed.step,
        release=packed.release,
        rollouts_total=packed.rollouts_total,
        groups=[_unpack(group) for group in packed.groups],
    )


def _checked(data: bytes) -> bytes:
    """What stands behind the sum; a file of schema 1 has none."""
    if not data.startswith(MAGIC):
        return data
    sum_at = len(MAGIC)
    kept, packed = data[sum_at : sum_at + 32], data[sum_at + 32 :]
    if hashlib.sha256(packed).digest() != kept:
        raise ValueError("its bytes are not those that were written")
    return packed


def pack_ids(ids: list[int]) -> bytes:
    return array("i", ids).tobytes()


def unpack_ids(data: bytes) -> list[int]:
    return list(array("i", data))


def pack_logprobs(logprobs: list[float]) -> bytes:
    return array("d", logprobs).tobytes()


def unpack_logprobs(data: bytes) -> list[float]:
    return list(array("d", data))


def pack_mask(mask: list[bool]) -> bytes:
    return bytes(mask)


def unpack_mask(data: bytes) -> list[bool]:
    return [bool(byte) for byte in data]


def _pack(group: Group) -> _PackedGroup:
    samples = [
        _PackedSample(pack_ids(s.token_ids), pack_logprobs(s.logprobs), pack_mask(s.loss_mask), s.advantage)
        for s in group.samples
    ]
    return _PackedGroup(pack_ids(group.prompt_ids), samples)


def _unpack(group: _PackedGroup) -> Group:
    samples = [
        Sample(unpack_ids(s.token_ids), unpack_logprobs(s.logprobs), unpack_mask(s.loss_mask), s.advantage)
        for s in group.samples
    ]
    return Group(unpack_ids(group.prompt_ids), samples)
