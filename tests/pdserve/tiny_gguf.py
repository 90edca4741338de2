"""Writes GGUF files, among them a one-layer Llama of a few kilobytes."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import pre_tokenizers

F32, Q4_0, Q4_1, Q8_0 = 0, 2, 3, 8
WIDTH, NUM_HEADS, NUM_KV_HEADS, INNER = 32, 4, 2, 64
HEAD_DIM = WIDTH // NUM_HEADS
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "Ġa"]

Entry = int | float | bool | str | Sequence[int] | Sequence[str]


@dataclass(frozen=True)
class Stored:
    """A tensor as it stands in the file; `shape` is outermost dimension first."""

    kind: int
    shape: tuple[int, ...]
    data: bytes


def write_gguf(path: Path, metadata: Mapping[str, Entry], tensors: Mapping[str, Stored]) -> None:
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, value in metadata.items():
        header += _string(key) + _entry(value)
    data = b""
    for name, tensor in tensors.items():
        data += bytes(-len(data) % 32)
        header += _string(name) + struct.pack("<I", len(tensor.shape))
        header += b"".join(struct.pack("<Q", size) for size in reversed(tensor.shape))
        header += struct.pack("<IQ", tensor.kind, len(data))
        data += tensor.data
    path.write_bytes(header + bytes(-len(header) % 32) + data)


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _entry(value: Entry) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + _string(value)
    if value and isinstance(value[0], str):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(_string(str(item)) for item in value)
    return struct.pack("<IIQ", 9, 5, len(value)) + b"".join(struct.pack("<i", item) for item in value)


def stored_f32(values: NDArray[np.float32]) -> Stored:
    return Stored(F32, values.shape, values.astype("<f4").tobytes())


def tiny_metadata() -> dict[str, Entry]:
    return {
        "general.architecture": "llama",
        "llama.block_count": 1,
        "llama.context_length": 64,
        "llama.embedding_length": WIDTH,
        "llama.feed_forward_length": INNER,
        "llama.attention.head_count": NUM_HEADS,
        "llama.attention.head_count_kv": NUM_KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [3, 3, 3] + [1] * (len(TOKENS) - 3),
        "tokenizer.ggml.merges": ["Ġ a"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.chat_template": "{% for m in messages %}{{ m['content'] }}{% endfor %}",
    }


def tiny_weights() -> dict[str, NDArray[np.float32]]:
    """What the tensors of the tiny GGUF hold, by their names there."""
    shapes = {
        "token_embd": (len(TOKENS), WIDTH),
        "blk.0.attn_norm": (WIDTH,),
        "blk.0.attn_q": (WIDTH, WIDTH),
        "blk.0.attn_k": (NUM_KV_HEADS * HEAD_DIM, WIDTH),
        "blk.0.attn_v": (NUM_KV_HEADS * HEAD_DIM, WIDTH),
        "blk.0.attn_output": (WIDTH, WIDTH),
        "blk.0.ffn_norm": (WIDTH,),
        "blk.0.ffn_gate": (INNER, WIDTH),
        "blk.0.ffn_up": (INNER, WIDTH),
        "blk.0.ffn_down": (WIDTH, INNER),
        "output_norm": (WIDTH,),
    }
    generator = np.random.default_rng(0)
    return {f"{name}.weight": generator.standard_normal(shape, np.float32) for name, shape in shapes.items()}
