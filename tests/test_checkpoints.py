from pathlib import Path

import pytest
import sentencepiece
import torch
import transformers
from tokenizers import Tokenizer

from tests.checkpoints import (
    CORPUS,
    LONGEST_SEQUENCE,
    VOCABULARY_SIZE,
    Family,
    make_checkpoint,
    make_sentencepiece_checkpoint,
)

NUM_TOKENS = 32
# float32 on different batch shapes moves logits by about 1e-5
SMALLEST_GAP = 1e-3


def files_of(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def greedy(folder: Path, prompt: list[int]) -> tuple[list[int], list[float]]:
    """The new tokens, and for each how far its logit lies above the second."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    output = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=NUM_TOKENS,
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=True,
    )
    best_two = [logits[0].topk(2).values for logits in output.logits]
    return output.sequences[0, len(prompt) :].tolist(), [float(first - second) for first, second in best_two]


@pytest.fixture(scope="module", params=Family, ids=lambda family: family.value)
def family(request: pytest.FixtureRequest) -> Family:
    assert isinstance(request.param, Family)
    return request.param


@pytest.fixture(scope="module")
def folder(family: Family, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp(family.value), family, seed=0)


def test_greedy_output_is_varied_and_decided(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    for prompt in ("Hello", "The answer is", "你好 🙂"):
        tokens, gaps = greedy(folder, tokenizer.encode(prompt).ids)
        assert len(tokens) == NUM_TOKENS
        assert len(set(tokens)) >= 8
        assert min(gaps) > SMALLEST_GAP


def test_the_model_is_of_its_family(folder: Path, family: Family) -> None:
    config = transformers.AutoConfig.from_pretrained(folder)
    assert config.model_type == family.value
    assert config.num_key_value_heads == 2
    assert config.max_position_embeddings == LONGEST_SEQUENCE
    assert (config.vocab_size, config.eos_token_id) == (VOCABULARY_SIZE, 2)


def test_both_readers_of_the_tokenizer_agree(folder: Path) -> None:
    by_transformers = transformers.AutoTokenizer.from_pretrained(folder)
    by_tokenizers = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert len(by_transformers) == by_tokenizers.get_vocab_size() == VOCABULARY_SIZE
    for text in [*CORPUS, "I'm 12345,  e\u0301\r\n\n\tx\x00"]:
        assert by_transformers(text).input_ids == by_tokenizers.encode(text).ids


def test_every_text_survives_the_tokenizer(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    text = "".join(chr(code) for code in range(0x180)) + "你好🙂\U0010ffff"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_the_chat_template_renders(folder: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert prompt == "<s>[system]\nBe brief.\n[user]\nHi\n[assistant]\n"


def test_a_seed_gives_the_same_bytes_and_another_seed_other_weights(
    folder: Path, family: Family, tmp_path: Path
) -> None:
    assert files_of(make_checkpoint(tmp_path / "same", family, seed=0)) == files_of(folder)
    other = files_of(make_checkpoint(tmp_path / "other", family, seed=1))
    assert [name for name, data in files_of(folder).items() if other[name] != data] == ["model.safetensors"]


def test_a_sentencepiece_checkpoint_generates_and_its_tokenizer_keeps_text(tmp_path: Path) -> None:
    folder = make_sentencepiece_checkpoint(tmp_path / "model", seed=0)
    tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    assert (tokenizer.bos_id(), tokenizer.eos_id()) == (1, 2)
    text = "Hello  world, 你好🙂, é"
    prompt = tokenizer.encode(text)
    assert tokenizer.decode(prompt) == text
    assert any(tokenizer.is_byte(token) for token in prompt)

    tokens, gaps = greedy(folder, [tokenizer.bos_id(), *prompt])
    assert max(tokens) < tokenizer.vocab_size()
    assert len(set(tokens)) >= 8
    assert min(gaps) > SMALLEST_GAP
    assert files_of(make_sentencepiece_checkpoint(tmp_path / "again", seed=0)) == files_of(folder)
