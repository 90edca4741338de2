"""The back-end for sentencepiece's tokenizer.model."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sentencepiece import SentencePieceProcessor

from master.text.markers import is_marker
from master.text.model_folder import ModelFolder, ModelFolderError
from master.text.special_tokens import SpecialTokens
from master.text.surrogates import refuse_lone_surrogates
from master.text.vocabulary import InvalidBytes, LeadingSpace, Vocabulary

_SPACE = "\u2581"
_TIKTOKEN_LINE = re.compile(rb"[A-Za-z0-9+/]+=* [0-9]+\r?\n")


@dataclass(frozen=True)
class _AddedToken:
    id: int
    text: str
    is_special: bool


class SentencePieceTokenizer:
    """A `master.text.tokenizer.Tokenizer`.

    Control pieces and added tokens are found in the text first; each stretch between them is then encoded
    by itself and gets the model's leading space, as Llama's first tokenizer did.
    """

    def __init__(
        self, processor: SentencePieceProcessor, added: Sequence[_AddedToken], special_tokens: SpecialTokens
    ) -> None:
        self._processor = processor
        size = int(processor.vocab_size())
        pieces = [str(processor.id_to_piece(token_id)) for token_id in range(size)]
        control = [token_id for token_id in range(size) if processor.is_control(token_id)]
        self._whole_tokens = {pieces[token_id]: token_id for token_id in control} | {
            token.text: token.id for token in added
        }
        self._splitter = re.compile(
            "(" + "|".join(re.escape(text) for text in sorted(self._whole_tokens, key=len, reverse=True)) + ")"
        )
        self.vocabulary = _vocabulary(processor, pieces, added, frozenset(control))
        self.special_texts = frozenset(
            text for text, token_id in self._whole_tokens.items() if token_id in self.vocabulary.special_ids
        )
        self.marker_ids = {
            text: token_id
            for text, token_id in self._whole_tokens.items()
            if text in self.special_texts or is_marker(text)
        }
        self.bos_id = special_tokens.resolve_bos(self._token_to_id)
        if self.bos_id is None:
            self.bos_id = _present(processor.bos_id())
        eos_ids = special_tokens.resolve_eos(self._token_to_id)
        own_eos = _present(processor.eos_id())
        self.eos_ids = eos_ids if eos_ids or own_eos is None else (own_eos,)
        adds_bos = special_tokens.add_bos is not False
        self._prefix = [self.bos_id] if adds_bos and self.bos_id is not None else []
        self._suffix = [self.eos_ids[0]] if special_tokens.add_eos and self.eos_ids else []

    @classmethod
    def load(cls, folder: ModelFolder, special_tokens: SpecialTokens) -> "SentencePieceTokenizer":
        """Raises ModelFolderError if tokenizer.model is no sentencepiece model."""
        path = folder.path / "tokenizer.model"
        content = path.read_bytes()
        if _TIKTOKEN_LINE.match(content):
            raise ModelFolderError(f"{path} holds tiktoken ranks, not a sentencepiece model; tokenizer.json is needed")
        config = folder.json_object("tokenizer_config.json")
        if config.get("legacy") is False:
            raise ModelFolderError(f"{folder.path}: a tokenizer_config.json with legacy=false needs tokenizer.json")
        processor = SentencePieceProcessor()
        try:
            processor.LoadFromSerializedProto(content)
        except RuntimeError as error:
            raise ModelFolderError(f"{path} is not a sentencepiece model: {error}") from error
        if not content or processor.vocab_size() == 0:
            raise ModelFolderError(f"{path} is a sentencepiece model without pieces")
        return cls(processor, _added_tokens(folder, int(processor.vocab_size()), special_tokens), special_tokens)

    @property
    def vocab_size(self) -> int:
        return len(self.vocabulary.token_bytes)

    @property
    def special_ids(self) -> frozenset[int]:
        return self.vocabulary.special_ids

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        refuse_lone_surrogates(text)
        ids: list[int] = []
        for stretch in self._splitter.split(text) if self._whole_tokens else [text]:
            token_id = self._whole_tokens.get(stretch)
            if token_id is not None:
                ids.append(token_id)
            elif stretch:
                ids.extend(self._processor.encode(stretch))
        return self._prefix + ids + self._suffix if add_special_tokens else ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        return self.vocabulary.decode(token_ids, skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        return self.vocabulary.bytes_of(token_id, skip_special_tokens=False)

    def token_text(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def _token_to_id(self, text: str) -> int | None:
        return self._whole_tokens.get(text)


def _vocabulary(
    processor: SentencePieceProcessor, pieces: Sequence[str], added: Sequence[_AddedToken], control: frozenset[int]
) -> Vocabulary:
    table = [piece.replace(_SPACE, " ").encode() for piece in pieces]
    table += [b""] * (max((token.id for token in added), default=-1) + 1 - len(table))
    byte_ids = [token_id for token_id in range(len(pieces)) if processor.is_byte(token_id)]
    for token_id in byte_ids:
        table[token_id] = bytes.fromhex(pieces[token_id].removeprefix("<0x").removesuffix(">"))
    for token in added:
        table[token.id] = token.text.encode()
    unknown = int(processor.unk_id())
    table[unknown] = str(processor.decode([unknown])).encode()
    special = control | {token.id for token in added if token.is_special}
    verbatim = frozenset([*byte_ids, unknown, *(token.id for token in added)])
    return Vocabulary(tuple(table), special, _leading_space(processor, pieces), InvalidBytes.REPLACE_EACH, verbatim)


def _leading_space(processor: SentencePieceProcessor, pieces: Sequence[str]) -> LeadingSpace:
    """The model's own flags are not to be read without its protobuf schema, so its decoder is asked."""
    word = re.compile(f"{_SPACE}[^{_SPACE}]")
    spaced = next((index for index, piece in enumerate(pieces) if word.match(piece)), None)
    if spaced is None or str(processor.decode([spaced])).startswith(" "):
        return LeadingSpace.KEEP
    lone = next((index for index, piece in enumerate(pieces) if piece == _SPACE), None)
    if lone is None or str(processor.decode([lone, spaced])).startswith(" "):
        return LeadingSpace.DROP_ONE
    return LeadingSpace.DROP_ONE_PER_TOKEN


def _added_tokens(folder: ModelFolder, num_pieces: int, special_tokens: SpecialTokens) -> list[_AddedToken]:
    """Tokens beyond the model's pieces, from added_tokens.json and tokenizer_config.json."""
    named = frozenset(special_tokens.texts.values())
    added: dict[int, _AddedToken] = {}
    for text, token_id in folder.json_object("added_tokens.json").items():
        if not isinstance(token_id, int):
            raise ModelFolderError(f"{folder.path / 'added_tokens.json'}: the id of {text!r} is {token_id!r}")
        added[token_id] = _AddedToken(token_id, text, text in named)
    declared = folder.json_object("tokenizer_config.json").get("added_tokens_decoder")
    for key, value in declared.items() if isinstance(declared, dict) else ():
        match value:
            case {"content": str(text)} if str(key).isdecimal():
                added[int(key)] = _AddedToken(int(key), text, value.get("special") is True or text in named)
            case _:
                raise ModelFolderError(f"tokenizer_config.json: added token {key!r} is {value!r}")
    return [token for token in added.values() if token.id >= num_pieces and token.text]


def _present(token_id: int) -> int | None:
    return None if token_id < 0 else token_id
