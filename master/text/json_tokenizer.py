"""The back-end for tokenizer.json, over the `tokenizers` library."""

import json
from collections.abc import Sequence

from tokenizers import Tokenizer as LibraryTokenizer

from master.text.decoder_rules import DecoderRules
from master.text.markers import is_marker
from master.text.model_folder import ModelFolder, ModelFolderError
from master.text.special_tokens import SpecialTokens
from master.text.surrogates import refuse_lone_surrogates
from master.text.vocabulary import Vocabulary
from serving.foreign_code import guarded


class JsonTokenizer:
    """A `master.text.tokenizer.Tokenizer`.

    Special tokens around a text are the file's post-processor's; `add_bos_token` and `add_eos_token` of
    tokenizer_config.json change nothing, as in transformers 5.
    """

    def __init__(self, library: LibraryTokenizer, special_tokens: SpecialTokens) -> None:
        library.no_truncation()
        library.no_padding()
        self._library = library
        self.vocabulary = _vocabulary(library)
        added = library.get_added_tokens_decoder()
        self.special_texts = frozenset(token.content for token in added.values() if token.special)
        self.marker_ids = {
            token.content: token_id for token_id, token in added.items() if token.special or is_marker(token.content)
        }
        self.bos_id = special_tokens.resolve_bos(library.token_to_id)
        self.eos_ids = special_tokens.resolve_eos(library.token_to_id)

    @classmethod
    def load(cls, folder: ModelFolder, special_tokens: SpecialTokens) -> "JsonTokenizer":
        """Raises ModelFolderError if tokenizer.json is malformed or not supported."""
        text = folder.text("tokenizer.json") or ""
        with guarded(lambda error: ModelFolderError(f"{folder.path / 'tokenizer.json'}: {error}")):
            library = LibraryTokenizer.from_str(text)
        return cls(library, special_tokens)

    @property
    def vocab_size(self) -> int:
        return len(self.vocabulary.token_bytes)

    @property
    def special_ids(self) -> frozenset[int]:
        return self.vocabulary.special_ids

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        refuse_lone_surrogates(text)
        # The library's `encode` holds the GIL throughout; this one does not, and works out no offsets.
        return self._library.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        return self.vocabulary.decode(token_ids, skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        return self.vocabulary.bytes_of(token_id, skip_special_tokens=False)

    def token_text(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode("utf-8", "replace")


def _vocabulary(library: LibraryTokenizer) -> Vocabulary:
    state = library.decoder.__getstate__() if library.decoder is not None else b"null"
    rules = DecoderRules.parse(json.loads(state))
    in_model = library.get_vocab(with_added_tokens=False)
    added = library.get_added_tokens_decoder()
    table = [b""] * (max([*in_model.values(), *added], default=-1) + 1)
    for token, token_id in in_model.items():
        table[token_id] = rules.bytes_of(token)
    for token_id, added_token in added.items():
        if added_token.content not in in_model:
            table[token_id] = rules.bytes_of_added(added_token.content)
    special = frozenset(token_id for token_id, added_token in added.items() if added_token.special)
    return Vocabulary(tuple(table), special, rules.leading_space, rules.invalid_bytes)
