"""Turns text into token ids and back, the same way for every kind of tokenizer file."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from master.text.json_tokenizer import JsonTokenizer
from master.text.model_folder import ModelFolder, ModelFolderError
from master.text.sentencepiece_tokenizer import SentencePieceTokenizer
from master.text.special_tokens import SpecialTokens
from master.text.vocabulary import Vocabulary


class Tokenizer(Protocol):
    """Immutable once loaded, and safe to use from several threads at once.

    `vocab_size` is one more than the highest id that has a meaning. `eos_ids` are all ids that end a text.
    """

    @property
    def vocabulary(self) -> Vocabulary: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def special_ids(self) -> frozenset[int]: ...

    @property
    def marker_ids(self) -> Mapping[str, int]:
        """Texts that are one token and never written with others: special tokens, and added ones in brackets."""
        ...

    @property
    def special_texts(self) -> frozenset[str]: ...

    @property
    def bos_id(self) -> int | None: ...

    @property
    def eos_ids(self) -> tuple[int, ...]: ...

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Takes milliseconds for long texts and releases the GIL: call it in a thread for those.

        Special tokens written out in the text become their ids, as chat templates need.
        Raises ValueError, naming character and position, if the text has a lone surrogate.
        """

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        """The text of ids; those without a meaning add nothing. Raises ValueError for a negative id."""

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token adds to a text; a special token's are its name. Raises ValueError for a negative id."""

    def token_text(self, token_id: int) -> str:
        """`token_bytes` as text, with U+FFFD for what is no UTF-8 by itself. Raises ValueError for a negative id."""


def load_tokenizer(folder: Path) -> Tokenizer:
    """Loads tokenizer.json, or else a sentencepiece tokenizer.model.

    Raises ModelFolderError if neither is there, or if it is malformed or of a kind that is not supported.
    """
    model_folder = ModelFolder(folder)
    special_tokens = SpecialTokens.load(model_folder)
    if (folder / "tokenizer.json").is_file():
        return JsonTokenizer.load(model_folder, special_tokens)
    if (folder / "tokenizer.model").is_file():
        return SentencePieceTokenizer.load(model_folder, special_tokens)
    raise ModelFolderError(f"{folder} has neither tokenizer.json nor tokenizer.model")
