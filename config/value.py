"""The kinds of value a flag can have, and how text becomes such a value and back."""

import re
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from math import isfinite
from pathlib import Path

BYTES = "bytes"
"""The unit of an int flag that also takes sizes such as 4GiB."""

Scalar = bool | int | float | str | Path | Enum
Value = Scalar | tuple[Scalar, ...] | None

TRUE_WORDS = ("true", "1", "yes", "on")
FALSE_WORDS = ("false", "0", "no", "off")
SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([a-z]*)", re.ASCII | re.IGNORECASE)
SIZE_UNITS = {
    "TiB": 2**40,
    "GiB": 2**30,
    "MiB": 2**20,
    "KiB": 2**10,
    "TB": 10**12,
    "GB": 10**9,
    "MB": 10**6,
    "kB": 1000,
}
SIZE_FACTORS = {"": 1, "b": 1, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40} | {
    unit.lower(): factor for unit, factor in SIZE_UNITS.items()
}
PLACEHOLDERS: dict[type, str] = {bool: "BOOL", int: "N", float: "X", str: "TEXT", Path: "PATH"}


@dataclass(frozen=True)
class Kind:
    """What values a flag takes: `scalar`, or a comma-separated tuple of it; if `is_optional`, empty text means None."""

    scalar: type[Scalar]
    is_optional: bool
    is_tuple: bool
    is_size: bool

    @classmethod
    def of(cls, annotation: object, unit: str | None) -> "Kind":
        """The kind a field's annotation names: bool, int, float, str, Path, an Enum, `X | None`, or `tuple[X, ...]`."""
        is_optional = typing.get_origin(annotation) in (types.UnionType, typing.Union)
        if is_optional:
            members = [member for member in typing.get_args(annotation) if member is not types.NoneType]
            assert len(members) == 1, f"{annotation}: a flag is one type, or that type | None"
            annotation = members[0]
        is_tuple = typing.get_origin(annotation) is tuple
        if is_tuple:
            annotation, rest = typing.get_args(annotation)
            assert rest is Ellipsis, "a flag's tuple is tuple[X, ...]"
        assert isinstance(annotation, type), f"{annotation}: no flag can have this type"
        assert annotation in PLACEHOLDERS or issubclass(annotation, Enum), f"{annotation}: no flag can have this type"
        return cls(annotation, is_optional, is_tuple, is_size=annotation is int and unit == BYTES)

    def read(self, text: str) -> Value:
        """Raises ValueError saying what `text` is not, without repeating it."""
        if not text and self.is_optional:
            return None
        if self.is_tuple:
            return self.read_items(text.split(",") if text else [])
        return self._scalar(text)

    def read_items(self, items: Sequence[str]) -> Value:
        """A tuple out of texts that were already separated. Raises ValueError, as `read`."""
        if not self.is_tuple:
            raise ValueError("is a list, one value expected")
        stripped = [item.strip() for item in items]
        if "" in stripped:
            raise ValueError("has an empty item")
        return tuple(self._scalar(item) for item in stripped)

    def show(self, value: Value) -> str:
        """The text that `read` turns into `value`; "none" for None."""
        match value:
            case None:
                return "none"
            case tuple():
                return ",".join(self.show(item) for item in value)
            case bool():
                return str(value).lower()
            case Enum():
                return value.name
            case int() if self.is_size:
                return _show_size(value)
        return str(value)

    def placeholder(self) -> str:
        """What stands for the value in the help."""
        if issubclass(self.scalar, Enum):
            word = "{" + ",".join(self.scalar.__members__) + "}"
        else:
            word = "SIZE" if self.is_size else PLACEHOLDERS[self.scalar]
        return f"{word},..." if self.is_tuple else word

    def _scalar(self, text: str) -> Scalar:
        if issubclass(self.scalar, Enum):
            return _read_enum(text, self.scalar)
        if self.is_size:
            return _read_size(text)
        if self.scalar is bool:
            return _read_bool(text)
        if self.scalar is int:
            return _read_int(text)
        if self.scalar is float:
            return _read_float(text)
        return _read_path(text) if self.scalar is Path else text


def _read_bool(text: str) -> bool:
    word = text.lower()
    if word not in TRUE_WORDS + FALSE_WORDS:
        raise ValueError("is not true or false")
    return word in TRUE_WORDS


def _read_int(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,40}", text):
        raise ValueError("is not a whole number")
    return int(text)


def _read_float(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not isfinite(number):
        raise ValueError("is not a number")
    return number


def _read_size(text: str) -> int:
    match = SIZE.fullmatch(text)
    factor = SIZE_FACTORS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise ValueError(f"is not a size; write bytes, or a number with {', '.join(SIZE_UNITS)}")
    num_bytes = Decimal(match[1]) * factor
    if num_bytes != int(num_bytes):
        raise ValueError("is not a whole number of bytes")
    return int(num_bytes)


def _show_size(num_bytes: int) -> str:
    for unit, factor in SIZE_UNITS.items():
        if num_bytes and num_bytes % factor == 0:
            return f"{num_bytes // factor}{unit}"
    return str(num_bytes)


def _read_enum(text: str, choices: type[Enum]) -> Enum:
    for name, member in choices.__members__.items():
        if name.lower() == text.lower().replace("-", "_"):
            return member
    raise ValueError(f"is not one of {', '.join(choices.__members__)}")


def _read_path(text: str) -> Path:
    if not text or "\0" in text:
        raise ValueError("is not a path")
    try:
        # a shell leaves the ~ of --model=~/folder alone
        return Path(text).expanduser()
    except RuntimeError as error:
        raise ValueError("names a home directory that is not known") from error
