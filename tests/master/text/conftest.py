"""Small tokenizers of each kind, trained here, in folders laid out as a model's."""

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as LibraryTokenizer

from master.text.tokenizer import Tokenizer, load_tokenizer

CORPUS = [
    "The quick brown fox jumps over the lazy dog.",
    "Hello world, hello there: how are you today?",
    "def main():\n    return [1, 2, 3]\n",
    "你好世界 你好 世界 🙂🙂 naïve café e\u0301",
]

SentencePieceFolder = Callable[[bool], Path]


@pytest.fixture(scope="session")
def byte_level_library() -> LibraryTokenizer:
    library = LibraryTokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.train_from_iterator(
        CORPUS * 20,
        trainers.BpeTrainer(
            vocab_size=400,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=["<|begin|>", "<|im_start|>", "<|im_end|>"],
            show_progress=False,
        ),
    )
    library.add_tokens([AddedToken("<tool call>", special=False, normalized=False), "ÖÜ"])
    library.add_special_tokens(["<\uff5cend\u2581of\u2581sentence\uff5c>"])
    library.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", library.token_to_id("<|begin|>"))]
    )
    return library


@pytest.fixture(scope="session")
def byte_fallback_library() -> LibraryTokenizer:
    """Llama 2's is such a one: spaces become U+2581, one is put first, what is unknown becomes byte tokens."""
    library = LibraryTokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    library.normalizer = normalizer
    library.train_from_iterator(
        CORPUS[:3] * 20,
        trainers.BpeTrainer(
            vocab_size=400,
            special_tokens=["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))],
            show_progress=False,
        ),
    )
    trained = json.loads(library.to_str())
    trained["added_tokens"] = [token for token in trained["added_tokens"] if not token["content"].startswith("<0x")]
    library = LibraryTokenizer.from_str(json.dumps(trained))
    library.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return library


@pytest.fixture(scope="session")
def byte_level_folder(byte_level_library: LibraryTokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("byte-level")
    byte_level_library.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="session")
def byte_fallback_folder(byte_fallback_library: LibraryTokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("byte-fallback")
    byte_fallback_library.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="session")
def sentencepiece_folder(tmp_path_factory: pytest.TempPathFactory) -> SentencePieceFolder:
    """By whether the model takes away extra spaces (sentencepiece's default; Llama's do not)."""
    folders: dict[bool, Path] = {}

    def folder_for(removes_extra_spaces: bool) -> Path:
        if removes_extra_spaces not in folders:
            model = io.BytesIO()
            SentencePieceTrainer.train(
                sentence_iterator=iter(CORPUS[:3] * 20),
                model_writer=model,
                vocab_size=360,
                model_type="bpe",
                byte_fallback=True,
                control_symbols=["[INST]", "[/INST]"],
                user_defined_symbols=["▁▁", "<think>"],
                remove_extra_whitespaces=removes_extra_spaces,
                normalization_rule_name="identity",
                hard_vocab_limit=False,
                minloglevel=2,
            )
            folders[removes_extra_spaces] = tmp_path_factory.mktemp("sentencepiece")
            (folders[removes_extra_spaces] / "tokenizer.model").write_bytes(model.getvalue())
        return folders[removes_extra_spaces]

    return folder_for


@pytest.fixture(scope="session")
def processor(sentencepiece_folder: SentencePieceFolder) -> SentencePieceProcessor:
    return SentencePieceProcessor(model_file=str(sentencepiece_folder(False) / "tokenizer.model"))


@pytest.fixture(scope="session")
def byte_level(byte_level_folder: Path) -> Tokenizer:
    return load_tokenizer(byte_level_folder)


@pytest.fixture(scope="session")
def byte_fallback(byte_fallback_folder: Path) -> Tokenizer:
    return load_tokenizer(byte_fallback_folder)


@pytest.fixture(scope="session")
def sentencepiece(sentencepiece_folder: SentencePieceFolder) -> Tokenizer:
    return load_tokenizer(sentencepiece_folder(False))


@pytest.fixture(scope="session")
def tokenizers(byte_level: Tokenizer, byte_fallback: Tokenizer, sentencepiece: Tokenizer) -> dict[str, Tokenizer]:
    return {"byte level": byte_level, "byte fallback": byte_fallback, "sentencepiece": sentencepiece}


@pytest.fixture(scope="session", params=[False, True], ids=["keeps spaces", "removes extra spaces"])
def sentencepiece_and_library(
    request: pytest.FixtureRequest, sentencepiece_folder: SentencePieceFolder
) -> tuple[Tokenizer, SentencePieceProcessor]:
    folder = sentencepiece_folder(request.param)
    return load_tokenizer(folder), SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
