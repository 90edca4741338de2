import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import decoders, models

from master.text.decoder_rules import DecoderRules
from master.text.model_folder import ModelFolderError
from master.text.vocabulary import Vocabulary

TOKENS = ["▁", "▁▁", "▁a", "a", " ", " b", "b▁", "<0x20>", "<0x41>", "<0xe4>x", "é", "Ġ", "Ġc", "<s>"]
DECODERS = [
    decoders.ByteLevel(),
    decoders.Metaspace(),
    decoders.Metaspace(prepend_scheme="never"),
    decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
    decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    ),
]


@given(decoder=st.sampled_from(DECODERS), ids=st.lists(st.integers(0, len(TOKENS)), max_size=8), skip=st.booleans())
def test_text_is_that_of_the_library(decoder: decoders.Decoder, ids: list[int], skip: bool) -> None:
    if isinstance(decoder, decoders.Metaspace):
        # A vocabulary of this kind has no literal spaces: they became "▁" before it was made.
        ids = [token_id for token_id in ids if token_id == len(TOKENS) or " " not in TOKENS[token_id]]
    library = LibraryTokenizer(models.BPE(vocab={token: index for index, token in enumerate(TOKENS)}, merges=[]))
    library.add_special_tokens(["<s>"])
    library.decoder = decoder
    rules = DecoderRules.parse(json.loads(decoder.__getstate__()))
    vocabulary = Vocabulary(
        tuple(rules.bytes_of(token) for token in TOKENS),
        frozenset([TOKENS.index("<s>")]),
        rules.leading_space,
        rules.invalid_bytes,
    )
    assert vocabulary.decode(ids, skip) == library.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        {"type": "WordPiece", "prefix": "##", "cleanup": True},
        {"type": "BPEDecoder", "suffix": "</w>"},
        {"type": "Fuse"},
        {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"Regex": "a+"}, "content": "b"}]},
        {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Strip", "content": " ", "start": 1}]},
    ],
)
def test_a_decoder_that_cannot_be_followed_is_refused(decoder: object) -> None:
    with pytest.raises(ModelFolderError, match="not supported"):
        DecoderRules.parse(decoder)
