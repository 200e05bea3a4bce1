"""The frozen batch: what is written is what is read, byte for byte the same each time."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tttdd.domain.batch import MAGIC, Batch, Group, Sample, encode, read

finite = st.floats(allow_nan=False)


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    length = draw(st.integers(0, 5))
    return Sample(
        token_ids=draw(st.lists(st.integers(0, 2**31 - 1), min_size=length, max_size=length)),
        logprobs=draw(st.lists(finite, min_size=length, max_size=length)),
        loss_mask=draw(st.lists(st.booleans(), min_size=length, max_size=length)),
        advantage=draw(finite),
    )


groups = st.builds(Group, st.lists(st.integers(0, 200_000), max_size=5), st.lists(samples(), max_size=3))


def batch(some: list[Group]) -> Batch:
    return Batch(run="r", step=3, release=3, rollouts_total=32, groups=some)


@settings(max_examples=30)
@given(some=st.lists(groups, max_size=3))
def test_what_is_written_is_read_exactly(tmp_path_factory, some: list[Group]) -> None:
    path = tmp_path_factory.getbasetemp() / "0003.msgpack"
    path.write_bytes(encode(batch(some)))
    assert read(path) == batch(some)
    assert encode(read(path)) == path.read_bytes()


def test_a_batch_of_the_reference_grid_takes_13_bytes_a_token() -> None:
    sample = Sample([1] * 11_000, [-0.5] * 11_000, [True] * 11_000, 1.0)
    assert len(encode(batch([Group([1] * 100, [sample] * 4)]))) == pytest.approx(4 * 11_000 * 13, rel=0.01)


def flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


@pytest.mark.parametrize("damage", [lambda data: data[:-3], lambda data: b"", lambda data: b"\x81\xa1x\x01", flipped])
def test_a_damaged_batch_is_refused(tmp_path: Path, damage) -> None:
    path = tmp_path / "b"
    path.write_bytes(damage(encode(batch([Group([1, 2], [])]))))
    with pytest.raises(ValueError, match="damaged"):
        read(path)


def test_a_batch_that_was_written_before_there_was_a_sum_is_read(tmp_path: Path) -> None:
    path = tmp_path / "b"
    path.write_bytes(encode(batch([Group([1, 2], [])]))[len(MAGIC) + 32 :])
    assert read(path) == batch([Group([1, 2], [])])
