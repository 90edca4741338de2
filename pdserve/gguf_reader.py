"""Reads a GGUF file (version 2 or 3): its metadata, and its tensors as float32.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; block layouts: ggml-common.h, each of 32 values.
"""

import math
import mmap
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Scalar = int | float | bool | str
Metadata = Mapping[str, Scalar | list[Scalar]]
Floats = NDArray[np.float32]

MAGIC = b"GGUF"
VERSIONS = (2, 3)
BLOCK = 32
DEFAULT_ALIGNMENT = 32

TYPE_BOOL, TYPE_STRING, TYPE_ARRAY = 7, 8, 9
NUMBER_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", TYPE_BOOL: "?", 10: "Q", 11: "q", 12: "d"}


class GgufError(ValueError):
    """The file is not a GGUF file this reader knows."""


def _from_f32(raw: NDArray[np.uint8]) -> Floats:
    return raw.view(np.float32).copy()


def _from_f16(raw: NDArray[np.uint8]) -> Floats:
    return raw.view(np.float16).astype(np.float32)


def _from_q8_0(raw: NDArray[np.uint8]) -> Floats:
    blocks = raw.reshape(-1, 2 + BLOCK)
    scale = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    return (blocks[:, 2:].view(np.int8).astype(np.float32) * scale).reshape(-1)


def _from_q4_0(raw: NDArray[np.uint8]) -> Floats:
    blocks = raw.reshape(-1, 2 + BLOCK // 2)
    scale = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    return ((_levels(blocks[:, 2:]) - 8) * scale).reshape(-1)


def _from_q4_1(raw: NDArray[np.uint8]) -> Floats:
    blocks = raw.reshape(-1, 4 + BLOCK // 2)
    scale_and_minimum = blocks[:, :4].copy().view(np.float16).astype(np.float32)
    return (_levels(blocks[:, 4:]) * scale_and_minimum[:, :1] + scale_and_minimum[:, 1:]).reshape(-1)


def _levels(nibbles: NDArray[np.uint8]) -> Floats:
    """[blocks, BLOCK / 2] -> [blocks, BLOCK] from 0 to 15; the low nibbles are the first half."""
    return np.concatenate([nibbles & 0x0F, nibbles >> 4], axis=1).astype(np.float32)


@dataclass(frozen=True)
class Encoding:
    """How one ggml tensor type packs `num_values` values into `num_bytes` bytes."""

    num_values: int
    num_bytes: int
    decode: Callable[[NDArray[np.uint8]], Floats]


ENCODINGS = {
    0: Encoding(1, 4, _from_f32),
    1: Encoding(1, 2, _from_f16),
    2: Encoding(BLOCK, 2 + BLOCK // 2, _from_q4_0),
    3: Encoding(BLOCK, 4 + BLOCK // 2, _from_q4_1),
    8: Encoding(BLOCK, 2 + BLOCK, _from_q8_0),
}


@dataclass(frozen=True)
class TensorEntry:
    """Where a tensor lies: `shape` is outermost dimension first, `offset` counts from the file's start, in bytes."""

    shape: tuple[int, ...]
    type: int
    offset: int


class GgufFile:
    """A GGUF file mapped into memory; close it, or use it as a context manager.

    Raises GgufError if the file is truncated or not GGUF, OSError if it cannot be read.
    """

    metadata: Metadata
    tensors: Mapping[str, TensorEntry]

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            try:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except ValueError as error:
                raise GgufError(f"{path}: the file is empty") from error
        try:
            self.metadata, self.tensors = _Header(self._map).read()
        except (struct.error, UnicodeDecodeError, GgufError) as error:
            self._map.close()
            raise GgufError(f"{path}: {error}") from error

    def __enter__(self) -> "GgufFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._map.close()

    def tensor(self, name: str) -> Floats:
        """The tensor's values, a new array. Raises KeyError for an unknown name, GgufError for an unknown type."""
        entry = self.tensors[name]
        encoding = ENCODINGS.get(entry.type)
        if encoding is None:
            raise GgufError(f"{name}: tensor type {entry.type} is not supported")
        num_values = math.prod(entry.shape)  # of Python's integers, which a damaged shape cannot overflow
        if num_values % encoding.num_values:
            raise GgufError(f"{name}: {num_values} values are not whole blocks of {encoding.num_values}")
        num_bytes = num_values // encoding.num_values * encoding.num_bytes
        data = self._map[entry.offset : entry.offset + num_bytes]
        if len(data) < num_bytes:
            raise GgufError(f"{name}: {num_bytes} bytes expected, the file has {len(data)}")
        return encoding.decode(np.frombuffer(data, np.uint8)).reshape(entry.shape)


class _Header:
    """A cursor over the header; each read moves it on."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._position = 0

    def read(self) -> tuple[dict[str, Scalar | list[Scalar]], dict[str, TensorEntry]]:
        if self._bytes(len(MAGIC)) != MAGIC:
            raise GgufError("not a GGUF file")
        version = self._number("I")
        if version not in VERSIONS:
            raise GgufError(f"GGUF version {version}, known are {VERSIONS}")
        num_tensors, num_entries = int(self._number("Q")), int(self._number("Q"))
        metadata: dict[str, Scalar | list[Scalar]] = {}
        for _ in range(num_entries):
            key = self._string()
            metadata[key] = self._value(int(self._number("I")))
        entries = [self._tensor_entry() for _ in range(num_tensors)]
        alignment = int(str(metadata.get("general.alignment", DEFAULT_ALIGNMENT)))
        data_start = -(-self._position // alignment) * alignment
        return metadata, {name: TensorEntry(shape, kind, data_start + offset) for name, shape, kind, offset in entries}

    def _tensor_entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        num_dimensions = int(self._number("I"))
        # ggml writes the fastest dimension first
        shape = tuple(int(self._number("Q")) for _ in range(num_dimensions))[::-1]
        return name, shape, int(self._number("I")), int(self._number("Q"))

    def _value(self, kind: int) -> Scalar | list[Scalar]:
        if kind != TYPE_ARRAY:
            return self._scalar(kind)
        element_kind, length = int(self._number("I")), int(self._number("Q"))
        if element_kind == TYPE_ARRAY:
            raise GgufError("an array of arrays is not supported")
        return [self._scalar(element_kind) for _ in range(length)]

    def _scalar(self, kind: int) -> Scalar:
        if kind == TYPE_STRING:
            return self._string()
        if kind not in NUMBER_FORMATS:
            raise GgufError(f"metadata type {kind} is not known")
        return self._number(NUMBER_FORMATS[kind])

    def _string(self) -> str:
        return self._bytes(int(self._number("Q"))).decode()

    def _number(self, format: str) -> int | float | bool:
        number: int | float | bool
        (number,) = struct.unpack_from("<" + format, self._data, self._position)
        self._position += struct.calcsize("<" + format)
        return number

    def _bytes(self, length: int) -> bytes:
        data = self._data[self._position : self._position + length]
        if len(data) < length:
            raise GgufError("the file ends within its header")
        self._position += length
        return data
