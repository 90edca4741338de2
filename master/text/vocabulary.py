"""What each token id adds to a text, as bytes.

The text of ids is the concatenation of their bytes read as UTF-8, but for two rules: what becomes of the space
that opens a text, and how many U+FFFD stand for bytes that are no UTF-8. Both work from left to right, so a
text can be decoded token by token, in constant time each, and never differs from decoding it whole.

`tokenizers.decoders.DecodeStream` is not used: it decodes a run of incomplete bytes anew with each token
(quadratic: seconds for a few thousand), and raises once invalid bytes follow a character it has given out.
"""

import codecs
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

_REPLACE_EACH_BYTE = "pdserve-replace-each-byte"


class LeadingSpace(Enum):
    """Encoders may put a space before the text; this is how decoding takes it away again."""

    KEEP = "keep"
    DROP_ONE = "drop one"  # the first space of the text
    DROP_ONE_PER_TOKEN = "drop one per token"  # of each token, until one of them has left text
    DROP_FIRST_TOKENS = "drop the first token's"  # every space of the first token


class InvalidBytes(Enum):
    """What a run of bytes that is no UTF-8 reads as; values are names of codec error handlers."""

    REPLACE_PREFIX = "replace"  # one U+FFFD for each maximal prefix of a character, as Unicode recommends
    REPLACE_EACH = _REPLACE_EACH_BYTE  # one U+FFFD for each byte, as sentencepiece does


@dataclass(frozen=True)
class Vocabulary:
    """`token_bytes[id]` are the bytes of a token in mid-text; ids that mean nothing, and ids past its end, have none.

    `verbatim_ids` keep their space even where they open a text.
    """

    token_bytes: tuple[bytes, ...]
    special_ids: frozenset[int]
    leading_space: LeadingSpace
    invalid_bytes: InvalidBytes
    verbatim_ids: frozenset[int] = frozenset()

    @cached_property
    def num_longest_bytes(self) -> int:
        """A text has at least so many tokens as this goes into its bytes."""
        return max(map(len, self.token_bytes), default=1) or 1

    def position_without_text(self, token_ids: Sequence[int]) -> int | None:
        """Where the first id is that means nothing. It has no text, and text cannot be cut to it."""
        known = len(self.token_bytes)
        wrong = (
            at for at, token_id in enumerate(token_ids) if not 0 <= token_id < known or not self.token_bytes[token_id]
        )
        return next(wrong, None)

    def bytes_of(self, token_id: int, skip_special_tokens: bool) -> bytes:
        """Raises ValueError for a negative id."""
        if token_id < 0:
            raise ValueError(f"token id {token_id} is negative")
        if token_id >= len(self.token_bytes) or (skip_special_tokens and token_id in self.special_ids):
            return b""
        return self.token_bytes[token_id]

    def opening_bytes_of(self, token_id: int, skip_special_tokens: bool) -> bytes:
        """The bytes of a token before which the text is empty."""
        token = self.bytes_of(token_id, skip_special_tokens)
        if self.leading_space is LeadingSpace.KEEP or token_id in self.verbatim_ids:
            return token
        if self.leading_space is LeadingSpace.DROP_FIRST_TOKENS:
            return token.replace(b" ", b"")
        return token.removeprefix(b" ")

    def opens_text(self, token_id: int, skip_special_tokens: bool) -> bool:
        """Whether the token after this one still opens the text, given that this one does."""
        if self.leading_space is LeadingSpace.DROP_ONE_PER_TOKEN:
            return not self.opening_bytes_of(token_id, skip_special_tokens)
        return not self.bytes_of(token_id, skip_special_tokens)

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool) -> str:
        """The text of all ids. Raises ValueError for a negative id."""
        text = bytearray()
        ids = iter(token_ids)
        for token_id in ids:
            text += self.opening_bytes_of(token_id, skip_special_tokens)
            if not self.opens_text(token_id, skip_special_tokens):
                break
        bytes_of = self.bytes_of
        text += b"".join([bytes_of(token_id, skip_special_tokens) for token_id in ids])
        return text.decode("utf-8", self.invalid_bytes.value)


def _replace_each_byte(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "\ufffd" * (error.end - error.start), error.end


codecs.register_error(_REPLACE_EACH_BYTE, _replace_each_byte)
