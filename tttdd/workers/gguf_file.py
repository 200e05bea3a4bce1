"""Reading a GGUF file: its keys, and where its tensors lie (format: ggml's docs/gguf.md, version 3).

    "GGUF", version, counts | keys | tensor names, shapes, types, offsets | padding | data

The gguf package's own reader takes half a minute over the 150,000 words of a tokenizer; this takes less than a second.
The package still dequantises.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize, quant_shape_to_byte_shape
from numpy.typing import NDArray

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
ALIGNMENT = 32


class GgufFile:
    """Raises ValueError for a file that is not GGUF or is cut short."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._at = 0
        try:
            magic, version, tensors, keys = self._unpack("<4sIQQ")
            if magic != b"GGUF" or version < 2:
                raise ValueError(f"{path.name} is not a GGUF file")
            self.keys: dict[str, Any] = {self._string(): self._value(*self._unpack("<I")) for _ in range(keys)}
            self._tensors = [self._tensor() for _ in range(tensors)]
        except (struct.error, UnicodeDecodeError):
            raise ValueError(f"{path.name} is cut short or damaged") from None
        alignment = self.keys.get("general.alignment", ALIGNMENT)
        self._data = -(-self._at // alignment) * alignment

    def __len__(self) -> int:
        return len(self._tensors)

    def tensors(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """(name, values) of every tensor, dequantised, rows first."""
        for name, shape, kind, offset in self._tensors:
            block, size = GGML_QUANT_SIZES[kind]
            count = math.prod(shape) // block * size
            start = self._data + offset
            if start + count > len(self._bytes):
                raise ValueError(f"tensor {name} is cut short")
            raw = np.frombuffer(self._bytes, np.uint8, count, start).reshape(quant_shape_to_byte_shape(shape, kind))
            yield name, np.asarray(dequantize(raw, kind), np.float32)

    def _unpack(self, format: str) -> tuple[Any, ...]:
        values = struct.unpack_from(format, self._bytes, self._at)
        self._at += struct.calcsize(format)
        return values

    def _string(self) -> str:
        (length,) = self._unpack("<Q")
        (raw,) = self._unpack(f"<{length}s")
        return raw.decode()

    def _value(self, kind: int) -> Any:
        if kind == STRING:
            return self._string()
        if kind == ARRAY:
            inner, length = self._unpack("<IQ")
            if inner in SCALARS:
                return list(self._unpack(f"<{length}{SCALARS[inner]}"))
            return [self._value(inner) for _ in range(length)]
        if kind not in SCALARS:
            raise ValueError(f"unknown GGUF value type {kind}")
        return self._unpack(f"<{SCALARS[kind]}")[0]

    def _tensor(self) -> tuple[str, tuple[int, ...], GGMLQuantizationType, int]:
        name = self._string()
        (dimensions,) = self._unpack("<I")
        shape = self._unpack(f"<{dimensions}Q")
        kind, offset = self._unpack("<IQ")
        return name, shape[::-1], GGMLQuantizationType(kind), offset
