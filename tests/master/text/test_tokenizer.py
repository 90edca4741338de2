import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sentencepiece import SentencePieceProcessor
from tokenizers import Tokenizer as LibraryTokenizer
from transformers import PreTrainedTokenizerFast

from master.text.model_folder import ModelFolderError
from master.text.tokenizer import Tokenizer, load_tokenizer

KINDS = st.sampled_from(["byte level", "byte fallback", "sentencepiece"])
PHRASES = st.sampled_from(
    ["Hello world", "你好", "🙂", "👩‍👩‍👧", "e\u0301", " ", "  ", "\n", "<|im_end|>", "ÖÜ", "<tool call>", "Ġ"]
)
TEXTS = st.lists(st.one_of(PHRASES, st.text(max_size=8)), max_size=8).map("".join)


def copy_with(folder: Path, target: Path, **files: object) -> Path:
    target.mkdir()
    for path in folder.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    for name, content in files.items():
        (target / f"{name}.json").write_text(json.dumps(content))
    return target


@given(kind=KINDS, text=TEXTS)
def test_text_survives_encoding_and_decoding(tokenizers: dict[str, Tokenizer], kind: str, text: str) -> None:
    if kind != "byte level":
        text = text.replace("▁", " ").replace("\x00", "")  # these stand for spaces, and end sentencepiece's strings
    tokenizer = tokenizers[kind]
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False), skip_special_tokens=False) == text


@given(text=TEXTS, ids=st.lists(st.integers(0, 450)), skip=st.booleans())
def test_byte_level_equals_the_library(
    byte_level: Tokenizer, byte_level_library: LibraryTokenizer, text: str, ids: list[int], skip: bool
) -> None:
    assert byte_level.encode(text, True) == byte_level_library.encode(text).ids
    ids = [token_id for token_id in ids if token_id != byte_level_library.token_to_id("ÖÜ")]
    assert byte_level.decode(ids, skip) == byte_level_library.decode(ids, skip_special_tokens=skip)


def test_an_added_token_in_latin_letters_is_itself(byte_level: Tokenizer) -> None:
    """The library reads it as if it were in the byte-level alphabet, and yields U+FFFD."""
    ids = byte_level.encode("ÖÜ", add_special_tokens=False)
    assert [byte_level.token_bytes(token_id) for token_id in ids] == ["ÖÜ".encode()]


@given(text=TEXTS, ids=st.lists(st.integers(259, 450)), skip=st.booleans())
def test_byte_fallback_equals_the_library_where_bytes_are_valid(
    byte_fallback: Tokenizer, byte_fallback_library: LibraryTokenizer, text: str, ids: list[int], skip: bool
) -> None:
    assert byte_fallback.encode(text, True) == byte_fallback_library.encode(text).ids
    ids = ids + byte_fallback_library.encode(text).ids + ids
    assert byte_fallback.decode(ids, skip) == byte_fallback_library.decode(ids, skip_special_tokens=skip)


def test_valid_characters_beside_invalid_bytes_are_kept(byte_fallback: Tokenizer) -> None:
    byte_ids = {byte_fallback.token_bytes(token_id): token_id for token_id in range(3, 259)}
    ids = [byte_ids[bytes([byte])] for byte in "你".encode() + b"\xff\xe4\xbd"]
    assert byte_fallback.decode(ids, skip_special_tokens=True) == "你\ufffd\ufffd\ufffd"


@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")))
def test_sentencepiece_encodes_as_the_library(
    sentencepiece_and_library: tuple[Tokenizer, SentencePieceProcessor], text: str
) -> None:
    tokenizer, library = sentencepiece_and_library
    assert tokenizer.encode(text, False) == library.encode(text)
    assert tokenizer.encode(text, True) == [library.bos_id(), *library.encode(text)]


@given(num_begins=st.integers(0, 2), data=st.data())
def test_sentencepiece_decodes_any_ids_as_the_library(
    sentencepiece_and_library: tuple[Tokenizer, SentencePieceProcessor], num_begins: int, data: st.DataObject
) -> None:
    tokenizer, library = sentencepiece_and_library
    spaces = [library.piece_to_id(piece) for piece in ("▁", "▁▁", "<0x20>", "<unk>")]
    one_id = st.one_of(st.sampled_from(spaces), st.integers(5, tokenizer.vocab_size - 1))
    ids = [library.bos_id()] * num_begins + data.draw(st.lists(one_id, max_size=12))
    assert tokenizer.decode(ids, skip_special_tokens=True) == library.decode(ids)


def test_control_pieces_in_text_become_their_ids(sentencepiece: Tokenizer, processor: SentencePieceProcessor) -> None:
    ids = sentencepiece.encode("<s>[INST] Hello [/INST]", add_special_tokens=False)
    begin, open_id, close_id = (processor.piece_to_id(piece) for piece in ("<s>", "[INST]", "[/INST]"))
    assert ids == [begin, open_id, *processor.encode(" Hello "), close_id]
    assert sentencepiece.decode(ids, skip_special_tokens=False) == "<s>[INST]  Hello [/INST]"
    assert sentencepiece.token_text(processor.piece_to_id("▁")) == " "
    assert sentencepiece.token_bytes(processor.piece_to_id("<0xE4>")) == b"\xe4"


def test_added_tokens_extend_a_sentencepiece_model(
    sentencepiece: Tokenizer, sentencepiece_folder: Callable[[bool], Path], tmp_path: Path
) -> None:
    size = sentencepiece.vocab_size
    folder = copy_with(
        sentencepiece_folder(False),
        tmp_path / "model",
        added_tokens={"<|plain|>": size},
        tokenizer_config={
            "added_tokens_decoder": {str(size + 2): {"content": "<|end|>", "special": True}},
            "eos_token": {"content": "<|end|>"},
            "add_bos_token": False,
            "add_eos_token": True,
        },
    )
    tokenizer = load_tokenizer(folder)
    assert tokenizer.vocab_size == size + 3
    assert tokenizer.encode("<|plain|><|end|>", add_special_tokens=True) == [size, size + 2, size + 2]
    assert tokenizer.decode([size, size + 1, size + 2, 10**9], skip_special_tokens=True) == "<|plain|>"
    assert tokenizer.eos_ids == (size + 2,)


@pytest.mark.parametrize(
    ("content", "fault"),
    [(b"IQ== 0\nIg== 1\n", "tiktoken"), (b"\x00\x01", "not a sentencepiece model"), (b"", "sentencepiece model")],
)
def test_a_tokenizer_model_of_another_kind_is_refused(tmp_path: Path, content: bytes, fault: str) -> None:
    (tmp_path / "tokenizer.model").write_bytes(content)
    with pytest.raises(ModelFolderError, match=fault):
        load_tokenizer(tmp_path)


def test_a_folder_that_cannot_be_read_right_is_refused(
    byte_level_folder: Path, sentencepiece_folder: Callable[[bool], Path], tmp_path: Path
) -> None:
    with pytest.raises(ModelFolderError, match="neither"):
        load_tokenizer(tmp_path)
    with pytest.raises(ModelFolderError, match="not a folder"):
        load_tokenizer(tmp_path / "missing")
    with pytest.raises(ModelFolderError, match="legacy"):
        load_tokenizer(copy_with(sentencepiece_folder(False), tmp_path / "a", tokenizer_config={"legacy": False}))
    with pytest.raises(ModelFolderError, match=r"tokenizer\.json"):
        load_tokenizer(copy_with(byte_level_folder, tmp_path / "b", tokenizer={"version": "1.0"}))
    with pytest.raises(ModelFolderError, match="eos_token_id"):
        load_tokenizer(copy_with(byte_level_folder, tmp_path / "c", config={"eos_token_id": "x"}))
    parsed = json.loads((byte_level_folder / "tokenizer.json").read_text())
    with pytest.raises(ModelFolderError, match="WordPiece"):
        decoder = {"type": "WordPiece", "prefix": "##", "cleanup": True}
        load_tokenizer(copy_with(byte_level_folder, tmp_path / "d", tokenizer=parsed | {"decoder": decoder}))


@pytest.mark.parametrize("kind", ["byte level", "byte fallback", "sentencepiece"])
def test_a_lone_surrogate_is_refused_by_name(tokenizers: dict[str, Tokenizer], kind: str) -> None:
    with pytest.raises(ValueError, match=r"U\+D800 at character 2") as caught:
        tokenizers[kind].encode("ab\ud800", add_special_tokens=True)
    str(caught.value).encode("ascii")


def test_ids_without_a_meaning_add_nothing_and_negative_ones_are_refused(byte_level: Tokenizer) -> None:
    assert byte_level.decode([byte_level.vocab_size, 10**12], skip_special_tokens=False) == ""
    assert byte_level.token_bytes(byte_level.vocab_size) == b""
    with pytest.raises(ValueError, match="-1"):
        byte_level.decode([-1], skip_special_tokens=False)


def test_truncation_and_padding_in_the_file_are_ignored(byte_level_folder: Path, tmp_path: Path) -> None:
    library = LibraryTokenizer.from_file(str(byte_level_folder / "tokenizer.json"))
    library.enable_truncation(4)
    library.enable_padding(length=64)
    library.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(tmp_path).encode("lazy dog " * 9, True) == load_tokenizer(byte_level_folder).encode(
        "lazy dog " * 9, True
    )


@pytest.mark.parametrize(
    "flags",
    [{}, {"add_bos_token": True}, {"add_bos_token": False}, {"add_bos_token": True, "add_eos_token": True}],
)
def test_special_tokens_around_a_text_are_those_of_transformers(
    byte_level_folder: Path, tmp_path: Path, flags: dict[str, bool]
) -> None:
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    folder = copy_with(byte_level_folder, tmp_path / "model", tokenizer_config=config | flags)
    oracle = PreTrainedTokenizerFast.from_pretrained(str(folder))
    assert load_tokenizer(folder).encode("Hello", add_special_tokens=True) == oracle("Hello")["input_ids"]


def test_every_id_that_ends_a_text_is_found(byte_level_folder: Path, tmp_path: Path) -> None:
    tokens = load_tokenizer(byte_level_folder)
    end, start = (tokens.encode(text, False)[0] for text in ("<|im_end|>", "<|im_start|>"))
    folder = copy_with(
        byte_level_folder,
        tmp_path / "model",
        tokenizer_config={"eos_token": "<|im_end|>", "bos_token": None},
        special_tokens_map={"bos_token": {"content": "<|im_start|>"}, "eos_token": "<|begin|>"},
        generation_config={"eos_token_id": [7, end, 8]},
        config={"eos_token_id": 9, "bos_token_id": 10},
    )
    loaded = load_tokenizer(folder)
    assert loaded.eos_ids == (end, 7, 8)
    assert loaded.bos_id == start
    nested = copy_with(byte_level_folder, tmp_path / "nested", config={"text_config": {"eos_token_id": [5, 6]}})
    assert load_tokenizer(nested).eos_ids == (5, 6)
    assert load_tokenizer(nested).bos_id is None


@pytest.mark.parametrize("kind", ["byte level", "byte fallback", "sentencepiece"])
def test_threads_can_share_a_tokenizer(tokenizers: dict[str, Tokenizer], kind: str) -> None:
    tokenizer = tokenizers[kind]
    texts = [f"Hello world {index} 你好 " * 50 for index in range(16)]
    with ThreadPoolExecutor(8) as pool:
        encoded = list(pool.map(lambda text: tokenizer.encode(text, True), texts * 4))
    assert encoded == [tokenizer.encode(text, True) for text in texts] * 4


@pytest.mark.parametrize("kind", ["byte level", "byte fallback", "sentencepiece"])
def test_other_threads_go_on_while_a_long_text_is_encoded(tokenizers: dict[str, Tokenizer], kind: str) -> None:
    text = "The quick brown fox jumps. " * 20_000
    num_turns = 0
    with ThreadPoolExecutor(1) as pool:
        encoding = pool.submit(tokenizers[kind].encode, text, True)
        while not encoding.done():
            num_turns += 1
            time.sleep(0)  # gives the interpreter away; it comes back at once unless the encoder keeps it
    assert num_turns > 100
