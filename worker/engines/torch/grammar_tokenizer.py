"""The model's vocabulary as llguidance needs it: the bytes of every token."""

from collections.abc import Sequence
from pathlib import Path

from llguidance import LLTokenizer, TokenizerWrapper
from sentencepiece import SentencePieceProcessor

from serving.foreign_code import guarded

_SPACE = "\u2581"


class GrammarTokenizerError(ValueError):
    """The model's folder has no tokenizer that grammars can be matched with."""


def load_grammar_tokenizer(folder: Path, eos_ids: Sequence[int]) -> LLTokenizer:
    """Reads tokenizer.json, else sentencepiece's tokenizer.model; takes up to seconds. `eos_ids` end a text.

    Raises GrammarTokenizerError.
    """
    with guarded(lambda error: GrammarTokenizerError(f"{folder}: {error}")):
        if (folder / "tokenizer.json").is_file():
            return _from_json((folder / "tokenizer.json").read_text(encoding="utf-8"), list(eos_ids))
        if (folder / "tokenizer.model").is_file():
            pieces = _Pieces(folder / "tokenizer.model", eos_ids)
            return LLTokenizer(TokenizerWrapper(pieces), eos_token=list(eos_ids) or None)
    raise GrammarTokenizerError(f"{folder} has neither tokenizer.json nor tokenizer.model")


def _from_json(text: str, eos_ids: list[int]) -> LLTokenizer:
    try:
        return LLTokenizer(text, eos_token=eos_ids or None)
    except ValueError:
        return LLTokenizer(text)  # the ids may be of tokens that only other files name


class _Pieces:
    """What llguidance's TokenizerWrapper asks for."""

    def __init__(self, path: Path, eos_ids: Sequence[int]) -> None:
        processor = SentencePieceProcessor()
        processor.LoadFromSerializedProto(path.read_bytes())
        size = int(processor.vocab_size())
        self.tokens = [_piece_bytes(processor, token_id) for token_id in range(size)]
        self.special_token_ids = [token_id for token_id in range(size) if processor.is_control(token_id)]
        self._ids = {piece: token_id for token_id, piece in enumerate(self.tokens)}  # a text rather than a byte
        self._longest = max(map(len, self.tokens))
        for token_id in range(size, max(eos_ids, default=0) + 1):  # added ones; the model's file has no text of them
            self.tokens.append(f"<added {token_id}>".encode())
            self.special_token_ids.append(token_id)
        bos_id = int(processor.bos_id())
        self.bos_token_id = None if bos_id < 0 else bos_id
        self.eos_token_id = eos_ids[0] if eos_ids else int(processor.eos_id())

    def __call__(self, text: bytes) -> list[int]:
        """Longest pieces first. What sentencepiece makes of a text may begin with a space that is not there."""
        ids: list[int] = []
        start = 0
        while start < len(text):
            ends = range(min(start + self._longest, len(text)), start, -1)
            end = next((end for end in ends if text[start:end] in self._ids), None)
            if end is None:
                break  # a character that the model has no token for
            ids.append(self._ids[text[start:end]])
            start = end
        return ids


def _piece_bytes(processor: SentencePieceProcessor, token_id: int) -> bytes:
    piece = str(processor.id_to_piece(token_id))
    if processor.is_byte(token_id):
        return bytes.fromhex(piece.removeprefix("<0x").removesuffix(">"))
    return piece.replace(_SPACE, " ").encode()
