"""Tiny random checkpoints of many architectures, to find out which of them this engine computes rightly."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
import transformers

from tests.checkpoints import WEIGHT_SCALE

VOCABULARY_SIZE = 128
MAX_CONTEXT = 256
_SHAPE: dict[str, object] = {
    "vocab_size": VOCABULARY_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": MAX_CONTEXT,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "dtype": "float32",
}


@dataclass(frozen=True, slots=True)
class Architecture:
    """`settings` are what its config needs besides a small shape, or in place of a part; None leaves a part out."""

    name: str
    model_type: str
    settings: Mapping[str, object] = field(default_factory=dict)


def _all(*model_types: str, **settings: object) -> list[Architecture]:
    return [Architecture(model_type, model_type, settings) for model_type in model_types]


def _rope(kind: str, **settings: object) -> dict[str, object]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **settings}}


_LONG_ROPE: dict[str, object] = {
    **_rope("longrope", factor=4.0, short_factor=[1.0] * 4, long_factor=[4.0] * 4, original_max_position_embeddings=64),
    "original_max_position_embeddings": 64,
}
_LLAMA3_ROPE = _rope(
    "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64
)
_YARN = _rope("yarn", factor=4.0, original_max_position_embeddings=64)
_EXPERTS: dict[str, object] = {
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
}
_LATENT: dict[str, object] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 6,
    "n_group": 1,
    "topk_group": 1,
    "n_routed_experts": 4,
}
LONG_ROPE = Architecture("phi3 longrope", "phi3", _LONG_ROPE)
DYNAMIC_ROPE = Architecture("llama dynamic", "llama", _rope("dynamic", factor=2.0))

EQUAL = [
    *_all("llama", "qwen3", "gemma", "gemma2", "gemma3_text", "vaultgemma", "phi", "phi3", "gpt_bigcode", "starcoder2"),
    *_all("cohere", "cohere2", "olmo", "olmo2", "olmo3", "granite", "glm", "glm4", "smollm3", "exaone4", "ernie4_5"),
    *_all("hunyuan_v1_dense", "seed_oss", "apertus", "arcee", "helium", "bitnet", "nanochat"),
    *_all("gpt2", "opt", "gpt_neox", "biogpt", "persimmon", num_key_value_heads=None),
    *_all("gptj", num_key_value_heads=None, head_dim=None, rotary_dim=4),
    *_all("qwen2_moe", "qwen3_moe", "mixtral", "olmoe", "gpt_oss", "granitemoe", "phimoe", **_EXPERTS),
    *_all("ernie4_5_moe", "glm4_moe", "hunyuan_v1_moe", "flex_olmo", **_EXPERTS),
    Architecture("llama biased", "llama", {"attention_bias": True, "mlp_bias": True}),
    Architecture("llama tied", "llama", {"tie_word_embeddings": True}),
    Architecture("llama linear", "llama", _rope("linear", factor=2.0)),
    Architecture("llama llama3", "llama", _LLAMA3_ROPE),
    Architecture("llama unused window", "llama", {"sliding_window": 40}),
    Architecture("qwen2 yarn", "qwen2", _YARN),
    Architecture("qwen2 sliding", "qwen2", {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1}),
    Architecture("mistral sliding", "mistral", {"sliding_window": 20}),
    Architecture("gemma2 sliding", "gemma2", {"sliding_window": 20, "attn_logit_softcapping": 2.0}),
    Architecture("gpt_oss sliding", "gpt_oss", {"sliding_window": 20, **_EXPERTS}),
    Architecture("phi3 sliding", "phi3", {"sliding_window": 20}),
]

# With a part of the reason.
REFUSED = [
    *(
        (architecture, "in chunks differs")
        for architecture in _all("xglm", "jamba", "minimax", "qwen3_next", "diffllama")
    ),
    (Architecture("lfm2", "lfm2", {"layer_types": ["conv", "full_attention"]}), "in chunks differs"),
    (Architecture("llama4", "llama4_text", {"attention_chunk_size": 20, **_EXPERTS}), "differs"),
    *((architecture, "mask of its own") for architecture in _all("doge")),
    *((architecture, "does not pass on") for architecture in _all("stablelm", "nemotron")),
    *(
        (architecture, "keys are 12 wide, values 6")
        for architecture in _all("deepseek_v2", "deepseek_v3", head_dim=None, **_LATENT, **_EXPERTS)
    ),
    *(
        (architecture, "names no context length")
        for architecture in _all("bloom", "mamba", "rwkv", max_position_embeddings=None)
    ),
    *((architecture, "can't be served") for architecture in _all("mpt", max_position_embeddings=None)),
    (LONG_ROPE, r"--max_context=64\) differs"),
    (DYNAMIC_ROPE, r"--max_context=256\) differs"),
]


def make_model(folder: Path, architecture: Architecture) -> Path:
    """Fills `folder` with config and weights; -> folder."""
    torch.manual_seed(0)  # some modules draw weights of their own
    settings = {name: value for name, value in {**_SHAPE, **architecture.settings}.items() if value is not None}
    config = transformers.AutoConfig.for_model(architecture.model_type, **settings)
    model = transformers.AutoModelForCausalLM.from_config(config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.1 * noise if "norm" in name and name.endswith("weight") else WEIGHT_SCALE * noise)
    model.save_pretrained(folder)
    return folder
