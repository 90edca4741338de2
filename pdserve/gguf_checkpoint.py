"""Writes a Llama model from a GGUF file as a Hugging Face folder, every weight the exact float32 value of the GGUF."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, PreTrainedTokenizerFast

from pdserve.gguf_reader import Floats, GgufError, GgufFile, Scalar

CONTROL_TOKEN = 3

BLOCK_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
MODEL_TENSORS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def write_checkpoint(gguf: Path, folder: Path) -> None:
    """Fills the empty `folder` with config.json, generation_config.json, model.safetensors (float32) and the tokenizer.

    Raises GgufError if the file holds anything but a Llama with SmolLM's tokenizer.
    """
    with GgufFile(gguf) as source:
        header = _Header(source)
        config = _config(header)
        config.save_pretrained(folder)
        _generation_config(header).save_pretrained(folder)
        _tokenizer(header).save_pretrained(folder, save_jinja_files=False)
        save_file(dict(_weights(source, config)), folder / "model.safetensors", metadata={"format": "pt"})


@dataclass(frozen=True)
class _Header:
    source: GgufFile

    def number(self, key: str) -> int:
        value = self._entry(key)
        if not isinstance(value, int):
            raise GgufError(f"{key}: a whole number expected, got {value!r}")
        return value

    def fraction(self, key: str) -> float:
        value = self._entry(key)
        if not isinstance(value, float):
            raise GgufError(f"{key}: a float expected, got {value!r}")
        # stored as float32: the shortest decimal that means the same float32 is what the model's authors wrote
        return float(str(np.float32(value)))

    def text(self, key: str, expected: str | None = None) -> str:
        value = self._entry(key)
        if not isinstance(value, str) or expected not in (None, value):
            raise GgufError(f"{key}: {expected or 'a text'} expected, got {value!r}")
        return value

    def items(self, key: str) -> Sequence[Scalar]:
        value = self._entry(key)
        if not isinstance(value, list):
            raise GgufError(f"{key}: an array expected, got {value!r}")
        return value

    def _entry(self, key: str) -> Scalar | list[Scalar]:
        if key not in self.source.metadata:
            raise GgufError(f"{key} is missing")
        return self.source.metadata[key]


def _config(header: _Header) -> LlamaConfig:
    header.text("general.architecture", expected="llama")
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=len(header.items("tokenizer.ggml.tokens")),
        hidden_size=header.number("llama.embedding_length"),
        intermediate_size=header.number("llama.feed_forward_length"),
        num_hidden_layers=header.number("llama.block_count"),
        num_attention_heads=header.number("llama.attention.head_count"),
        num_key_value_heads=header.number("llama.attention.head_count_kv"),
        max_position_embeddings=header.number("llama.context_length"),
        rms_norm_eps=header.fraction("llama.attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": header.fraction("llama.rope.freq_base")},
        tie_word_embeddings="output.weight" not in header.source.tensors,
        bos_token_id=header.number("tokenizer.ggml.bos_token_id"),
        eos_token_id=header.number("tokenizer.ggml.eos_token_id"),
        pad_token_id=header.number("tokenizer.ggml.padding_token_id"),
        dtype="float32",
    )


def _generation_config(header: _Header) -> GenerationConfig:
    return GenerationConfig(
        bos_token_id=header.number("tokenizer.ggml.bos_token_id"),
        eos_token_id=header.number("tokenizer.ggml.eos_token_id"),
        pad_token_id=header.number("tokenizer.ggml.padding_token_id"),
    )


def _tokenizer(header: _Header) -> PreTrainedTokenizerFast:
    header.text("tokenizer.ggml.model", expected="gpt2")
    header.text("tokenizer.ggml.pre", expected="smollm")
    tokens = [str(token) for token in header.items("tokenizer.ggml.tokens")]
    merges = [_pair(str(merge)) for merge in header.items("tokenizer.ggml.merges")]
    kinds = header.items("tokenizer.ggml.token_type")

    tokenizer = Tokenizer(models.BPE({token: id for id, token in enumerate(tokens)}, merges))
    # what llama.cpp means by the pre-tokenizer "smollm": each digit alone, then GPT-2's pattern
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind == CONTROL_TOKEN
        ]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=tokens[header.number("tokenizer.ggml.bos_token_id")],
        eos_token=tokens[header.number("tokenizer.ggml.eos_token_id")],
        pad_token=tokens[header.number("tokenizer.ggml.padding_token_id")],
        unk_token=tokens[header.number("tokenizer.ggml.unknown_token_id")],
        chat_template=header.text("tokenizer.chat_template"),
        model_max_length=header.number("llama.context_length"),
        clean_up_tokenization_spaces=False,
    )


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _weights(source: GgufFile, config: LlamaConfig) -> Iterator[tuple[str, Floats]]:
    num_heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for name in source.tensors:
        values = source.tensor(name)
        match name.split("."):
            case ["blk", layer, part, "weight"] if part in BLOCK_TENSORS:
                if part in num_heads:
                    values = _split_halves(values, num_heads[part])
                yield f"model.layers.{layer}.{BLOCK_TENSORS[part]}.weight", values
            case [part, "weight"] if part in MODEL_TENSORS:
                yield f"{MODEL_TENSORS[part]}.weight", values
            case _:
                raise GgufError(f"{name}: a Llama has no such tensor")


def _split_halves(weight: Floats, num_heads: int) -> Floats:
    """Undoes the row order llama.cpp gives to q and k, where the two halves that RoPE rotates together are interleaved.

    weight: [num_heads * head_dim, width], as is the result.
    """
    pairs = weight.reshape(num_heads, -1, 2, weight.shape[1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(weight.shape)
