"""Tiny random checkpoints in Hugging Face layout, the same bytes for the same seed, for tests that need a real model.

Their output is gibberish but lively: the weights are large, so that greedy tokens vary and rarely tie.
"""

import io
import json
from enum import Enum
from pathlib import Path

import sentencepiece
import torch
import transformers
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

VOCABULARY_SIZE = 512
SENTENCEPIECE_VOCABULARY_SIZE = 640
WEIGHT_SCALE = 0.3
LONGEST_SEQUENCE = 2048
SPECIAL_TOKENS = ["<unk>", "<s>", "</s>"]
UNKNOWN, BEGIN, END = range(3)

CORPUS = [
    "The prefill worker computes the prompt, and the decode worker streams the answer.",
    "A block holds the keys and values of sixteen tokens; the table says where it lies.",
    "Le serveur répond à chaque requête, même quand un ouvrier s'arrête brusquement.",
    "Der Schlüssel bleibt gültig, bis die Frist abläuft: größer, schöner, öfter.",
    "El niño preguntó cuántas páginas quedaban libres en el año pasado.",
    "Модель отвечает на вопросы, память освобождается сразу после передачи.",
    "模型先处理提示。然后逐个生成词语。你好。世界。",
    "モデルはプロンプトを読み、答えを一つずつ返します。",
    "모델은 질문을 읽고 대답을 만듭니다.",
    "النموذج يقرأ السؤال ثم يكتب الجواب.",
    "def step(batch): return [sample(row) for row in batch]  # 0123456789",
    'emoji 🙂🚀🎉, e + ́ = é, tabs\tand\nlines, {"json": [1, 2.5, null]}',
]

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ '[' + message['role'] + ']\\n' + message['content'] + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '[assistant]\\n' }}{% endif %}"
)


# transformers gives every Qwen2 tokenizer this pattern and NFC, whatever its tokenizer.json says
QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class Family(Enum):
    LLAMA = "llama"
    MISTRAL = "mistral"
    QWEN2 = "qwen2"
    QWEN3 = "qwen3"


NUM_LAYERS = {Family.LLAMA: 2, Family.MISTRAL: 2, Family.QWEN2: 3, Family.QWEN3: 3}


def make_checkpoint(folder: Path, family: Family, seed: int) -> Path:
    """Fills `folder` with a float32 model (width 64, 4 heads, 2 KV heads) and a byte-level BPE tokenizer; -> folder."""
    _write_model(folder, family, seed, VOCABULARY_SIZE)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=_byte_level_bpe(family),
        unk_token=SPECIAL_TOKENS[UNKNOWN],
        bos_token=SPECIAL_TOKENS[BEGIN],
        eos_token=SPECIAL_TOKENS[END],
        chat_template=CHAT_TEMPLATE,
        model_max_length=LONGEST_SEQUENCE,
        pad_token=SPECIAL_TOKENS[END],
        clean_up_tokenization_spaces=False,
    ).save_pretrained(folder, save_jinja_files=False)
    return folder


def make_sentencepiece_checkpoint(folder: Path, seed: int) -> Path:
    """Fills `folder` with a Llama whose tokenizer is sentencepiece's tokenizer.model, with byte fallback; -> folder."""
    _write_model(folder, Family.LLAMA, seed, SENTENCEPIECE_VOCABULARY_SIZE)
    (folder / "tokenizer.model").write_bytes(_sentencepiece_bpe())
    tokenizer_config = {
        "tokenizer_class": "LlamaTokenizer",
        "unk_token": SPECIAL_TOKENS[UNKNOWN],
        "bos_token": SPECIAL_TOKENS[BEGIN],
        "eos_token": SPECIAL_TOKENS[END],
        "add_bos_token": True,
        "add_eos_token": False,
        "legacy": False,
        "chat_template": CHAT_TEMPLATE,
        "model_max_length": LONGEST_SEQUENCE,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    return folder


def _write_model(folder: Path, family: Family, seed: int, vocabulary_size: int) -> None:
    config = transformers.AutoConfig.for_model(
        family.value,
        vocab_size=vocabulary_size,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=NUM_LAYERS[family],
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=LONGEST_SEQUENCE,
        sliding_window=None,
        tie_word_embeddings=False,
        bos_token_id=BEGIN,
        eos_token_id=END,
        pad_token_id=END,
        dtype="float32",
    )
    model = transformers.AutoModelForCausalLM.from_config(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            # norm weights lie around one; no weight keeps a value that hides whether it is used
            parameter.copy_(1 + 0.1 * noise if name.endswith("norm.weight") else WEIGHT_SCALE * noise)
        # a special token, above all the end, comes up seldom but can
        model.lm_head.weight[: len(SPECIAL_TOKENS)] *= 0.5
    model.save_pretrained(folder)


def _byte_level_bpe(family: Family) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    if family in (Family.QWEN2, Family.QWEN3):
        tokenizer.normalizer = normalizers.NFC()
        split = pre_tokenizers.Split(Regex(QWEN_PATTERN), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    assert tokenizer.get_vocab_size() == VOCABULARY_SIZE
    return tokenizer


def _sentencepiece_bpe() -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS),
        model_writer=model,
        model_type="bpe",
        vocab_size=SENTENCEPIECE_VOCABULARY_SIZE,
        byte_fallback=True,
        # rare characters are left to the bytes
        character_coverage=0.98,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        unk_id=UNKNOWN,
        bos_id=BEGIN,
        eos_id=END,
        pad_id=-1,
        num_threads=1,
        minloglevel=2,
    )
    return model.getvalue()
