"""Loads a local folder in Hugging Face layout, of any decoder-only architecture that transformers has."""

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig
from transformers.utils import logging as transformers_logging

from kvcache.layout import KvLayout
from protos.served_model import ServedModel
from worker.engines.torch.attention import ATTENTION_NAME
from worker.engines.torch.weights_digest import weights_digest

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class ModelError(ValueError):
    """The folder holds no model that can be served; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    model: torch.nn.Module
    served: ServedModel
    vocab_size: int
    max_context: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    eos_ids: tuple[int, ...]  # that its generation config names

    def layout(self, block_size: int) -> KvLayout:
        return KvLayout(self.num_layers, block_size, self.num_kv_heads, self.head_dim, self.dtype, self.served.identity)


def load_model(folder: Path, device: torch.device, dtype_name: str) -> LoadedModel:
    """`dtype_name` is a torch dtype's name, or "auto": float32 on a CPU, the checkpoint's own elsewhere.

    Raises ModelError.
    """
    if not folder.is_dir():
        raise ModelError(f"no such folder: {folder}")
    if not (folder / "config.json").is_file():
        raise ModelError(f"no config.json in {folder}: not a model in Hugging Face layout")
    transformers_logging.disable_progress_bar()
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
        dtype = _dtype(dtype_name, device, config.dtype)
        model, loading = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            attn_implementation=ATTENTION_NAME,
            local_files_only=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"cannot load {folder}: {str(error).splitlines()[0]}") from error
    if missing := sorted(loading["missing_keys"]):  # transformers makes them up, differently on every worker
        raise ModelError(f"{folder} lacks {len(missing)} weights, {missing[0]} among them")
    model.to(device).eval().requires_grad_(False)
    heads = config.num_attention_heads
    return LoadedModel(
        model=model,
        served=_served(folder, config, dtype),
        vocab_size=model.get_output_embeddings().weight.shape[0],
        max_context=config.max_position_embeddings,
        num_layers=config.num_hidden_layers,
        num_kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        dtype=dtype,
        eos_ids=_eos_ids(model.generation_config.eos_token_id),
    )


def _served(folder: Path, config: PretrainedConfig, dtype: torch.dtype) -> ServedModel:
    quantization = getattr(config, "quantization_config", None) or {}
    return ServedModel(
        name=config.model_type,
        weights_digest=weights_digest(folder),
        dtype=str(dtype).removeprefix("torch."),
        quantization=quantization.get("quant_method"),
    )


def _eos_ids(declared: int | list[int] | None) -> tuple[int, ...]:
    if declared is None:
        return ()
    return (declared,) if isinstance(declared, int) else tuple(declared)


def _dtype(name: str, device: torch.device, checkpoint: torch.dtype | None) -> torch.dtype:
    if name != "auto":
        return _DTYPES[name]
    return torch.float32 if device.type == "cpu" else checkpoint or torch.float16
