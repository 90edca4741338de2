"""What is declared of an option besides its name and type: what it may be, and which API calls it what."""

import math
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, get_type_hints


class Api(Enum):
    """The HTTP APIs. Over gRPC every option has the name it is declared by."""

    CHAT = "chat completions"
    COMPLETIONS = "text completions"
    RESPONSES = "responses"
    MESSAGES = "messages"


class Allowed(Protocol):
    """Its `str` is what documentation says."""

    def problem(self, value: object) -> str | None:
        """What is wrong with a value that was set, so that it follows the option's name; None if nothing is."""
        ...


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from `low`, unless that is excluded, to `high`."""

    low: float
    high: float = math.inf
    excludes_low: bool = False

    def problem(self, value: object) -> str | None:
        # JSON's true must not pass for the number 1, as Python would have it
        if isinstance(value, int | float) and not isinstance(value, bool) and self._holds(value):
            return None
        return f"is {shown(value)}; it must be {self}"

    def _holds(self, value: float) -> bool:
        """NaN is in no range."""
        return (self.low < value if self.excludes_low else self.low <= value) and value <= self.high

    def __str__(self) -> str:
        low, high = _power(self.low), _power(self.high)
        if not self.excludes_low:
            return f"at least {low}" if self.high == math.inf else f"{low} … {high}"
        return f"more than {low}" + ("" if self.high == math.inf else f" and at most {high}")


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts, or one that stands for a list of one. All sizes are in characters."""

    max_texts: int
    max_characters: int
    max_total: int

    def problem(self, value: object) -> str | None:
        texts = [value] if isinstance(value, str) else value
        if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
            return "is not a list of texts"
        if len(texts) > self.max_texts:
            return f"has {len(texts)} texts; at most {self.max_texts} are allowed"
        for text in texts:
            if not 0 < len(text) <= self.max_characters:
                return f"has a text of {len(text)} characters; each must have 1 … {self.max_characters}"
        total = sum(map(len, texts))
        if total > self.max_total:
            return f"has {total} characters in all; at most {self.max_total} are allowed"
        return None

    def __str__(self) -> str:
        return f"up to {self.max_texts}, each 1 … {self.max_characters} characters, {self.max_total} in all"


@dataclass(frozen=True, slots=True)
class Label:
    """One text that means nothing here."""

    max_characters: int

    def problem(self, value: object) -> str | None:
        if not isinstance(value, str):
            return f"is {shown(value)}, which is no text"
        if len(value) > self.max_characters:
            return f"has {len(value)} characters; at most {self.max_characters} are allowed"
        return None

    def __str__(self) -> str:
        return f"up to {self.max_characters} characters"


@dataclass(frozen=True, slots=True)
class TokenIds:
    """Token ids, or what is set for each of them. That they are in the vocabulary is for whoever knows it to check."""

    max_ids: int
    values: Range | None = None

    def problem(self, value: object) -> str | None:
        if not isinstance(value, Sized):
            return "is not a collection of token ids"
        if len(value) > self.max_ids:
            return f"has {len(value)} token ids; at most {self.max_ids} are allowed"
        if self.values is not None and isinstance(value, Mapping):
            for token_id, number in value.items():
                if problem := self.values.problem(number):
                    return f"of token {token_id} {problem}"
        return None

    def __str__(self) -> str:
        return f"up to {self.max_ids} tokens" + (f", each {self.values}" if self.values is not None else "")


@dataclass(frozen=True, slots=True)
class Option:
    """`names` has the APIs that call it otherwise, and with None those that do not take it.

    `allowed` is None where any value of its type will do.
    """

    doc: str
    allowed: Allowed | None = None
    names: Mapping[Api, str | None] = field(default_factory=dict)


def declared_options(declaration: type) -> dict[str, Option]:
    """Reads the options that a TypedDict's types are annotated with, in order."""
    hints = get_type_hints(declaration, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items()}


def _power(number: float) -> str:
    """The ends of 32 and 64 bits are hard to read in digits."""
    for power in (31, 63):
        if number in (-(2**power), 2**power - 1):
            return f"-2^{power}" if number < 0 else f"2^{power}-1"
    return str(number)


def shown(value: object) -> str:
    """A client's number may have thousands of digits."""
    if isinstance(value, int) and abs(value) >= 10**40:
        return "a number of over 40 digits"
    return f"{value!r:.40}"
