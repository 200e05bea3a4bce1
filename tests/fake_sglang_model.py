"""The weights behind tests/fake_sglang.py: loaded by the first request that needs them, as torch takes seconds."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from tttdd.workers.decoder import Weights, load, merge, rope_table
from tttdd.workers.decoding import Decoding, Row, score, uniforms


class Model:
    def __init__(self, folder: Path, context: int) -> None:
        torch.set_num_threads(1)
        with torch.inference_mode():
            self.base = load(folder)
            self._rope = rope_table(self.base.shape, context)

    def merged(self, adapter: Path) -> Weights:
        """Raises ValueError for a folder that holds no weights for this model."""
        try:
            with torch.inference_mode():
                return merge(self.base, adapter)
        except (KeyError, OSError, SafetensorError) as error:
            raise ValueError(str(error)) from None

    def score(self, weights: Weights, ids: list[int], first: int) -> list[float]:
        """Log-probs of the tokens behind place `first`."""
        with torch.inference_mode():
            return score(weights, self._rope, ids[: first + 1], ids[first + 1 :])

    def sample(self, weights: Weights, ids: list[int], seed: int, room: int) -> Iterator[Row]:
        """The completion after each of its tokens."""
        row, decoding = Row(0, tuple(ids), 0, (), uniforms(seed, room)), Decoding(weights, self._rope)
        for place in range(room):
            with torch.inference_mode():
                if place:
                    decoding.step()
                else:
                    decoding.join(row)
            yield row


@contextmanager
def swapped(adapter: Path) -> Iterator[Path]:
    """A copy of an adapter in which layers 0 and 1 have changed places."""
    tensors, other = load_file(adapter / "adapter_model.safetensors"), {"0": "1", "1": "0"}
    moved = {re.sub(r"(?<=layers\.)\d+", lambda found: other[found[0]], name): value for name, value in tensors.items()}
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(adapter / "adapter_config.json", folder)
        save_file(moved, Path(folder, "adapter_model.safetensors"), metadata={"format": "pt"})
        yield Path(folder)
