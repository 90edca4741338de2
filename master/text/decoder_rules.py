"""Reads the `decoder` of a tokenizer.json as rules for the bytes of each token.

Source: the decoders of the `tokenizers` library. One difference is meant: where byte tokens are no UTF-8, the
library replaces every byte since the last ordinary token, valid characters included. Here the valid ones are
kept, as sentencepiece does, because a stream has given them out already.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from master.text.model_folder import ModelFolderError
from master.text.vocabulary import InvalidBytes, LeadingSpace

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True)
class DecoderRules:
    """`replacements` apply in order to each token's text."""

    replacements: tuple[tuple[str, str], ...]
    is_byte_level: bool
    has_byte_fallback: bool
    leading_space: LeadingSpace

    @classmethod
    def parse(cls, decoder: object) -> "DecoderRules":
        """`decoder` as parsed from JSON. Raises ModelFolderError naming a part that is not supported."""
        replacements: list[tuple[str, str]] = []
        is_byte_level = has_byte_fallback = is_fused = False
        leading_space = LeadingSpace.KEEP
        for step in _steps(decoder):
            match step:
                case {"type": "ByteLevel"}:
                    is_byte_level = True
                case {"type": "ByteFallback"}:
                    has_byte_fallback = True
                case {"type": "Fuse"}:
                    is_fused = True
                case {"type": "Replace", "pattern": {"String": str(pattern)}, "content": str(content)} if not is_fused:
                    replacements.append((pattern, content))
                case {"type": "Strip", "content": " ", "start": 0 | 1 as start, "stop": 0} if is_fused:
                    leading_space = LeadingSpace.DROP_ONE if start else leading_space
                case {"type": "Metaspace", "replacement": str(space), **options} if not is_fused:
                    replacements.append((space, " "))
                    if not _keeps_prefix(options):
                        leading_space = LeadingSpace.DROP_FIRST_TOKENS
                case _:
                    raise ModelFolderError(f"tokenizer.json: decoder {step!r} is not supported")
        if not (is_byte_level or replacements or has_byte_fallback):
            raise ModelFolderError(f"tokenizer.json: decoder {decoder!r} is not supported")
        return cls(tuple(replacements), is_byte_level, has_byte_fallback, leading_space)

    @property
    def invalid_bytes(self) -> InvalidBytes:
        return InvalidBytes.REPLACE_EACH if self.has_byte_fallback else InvalidBytes.REPLACE_PREFIX

    def bytes_of(self, token: str) -> bytes:
        """The bytes that a token of the model's vocabulary stands for."""
        for pattern, content in self.replacements:
            token = token.replace(pattern, content)
        if self.has_byte_fallback and (byte := _BYTE_TOKEN.fullmatch(token)):
            return bytes.fromhex(byte[1])
        if self.is_byte_level:
            try:
                return bytes([_BYTE_OF_CHARACTER[character] for character in token])
            except KeyError:  # a token written out as it is, such as DeepSeek's special ones
                return token.encode("utf-8", "replace")
        return token.encode("utf-8", "replace")

    def bytes_of_added(self, token: str) -> bytes:
        """An added token is written out as it is, never in the byte-level alphabet."""
        return token.encode("utf-8", "replace") if self.is_byte_level else self.bytes_of(token)


def _steps(decoder: object) -> Iterable[object]:
    match decoder:
        case {"type": "Sequence", "decoders": list(steps)}:
            return steps
    return (decoder,)


def _keeps_prefix(metaspace: Mapping[object, object]) -> bool:
    return metaspace.get("prepend_scheme") == "never" or metaspace.get("add_prefix_space") is False


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's one printable character for each byte: printable Latin-1 is itself, the rest counts up from U+0100."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + index): byte for index, byte in enumerate(others)}


_BYTE_OF_CHARACTER = _byte_level_alphabet()
