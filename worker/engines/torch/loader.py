"""Loads a local folder in Hugging Face layout with transformers."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from protos.served_model import ServedModel
from serving.foreign_code import guarded
from serving.model_context import derived_context
from worker.engines.torch.attention import ATTENTION_NAME
from worker.engines.torch.loaded_model import INT8, LoadedModel, ModelError
from worker.engines.torch.paged_network import TransformersNetwork
from worker.engines.torch.weights_digest import weights_digest

AUTO = "auto"
_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
# How the weights of a text model are called within a checkpoint that has other parts, now and before transformers 5.
_TEXT_WEIGHTS = {r"^model\.language_model\.": "model.", r"^language_model\.": ""}


@dataclass(frozen=True, slots=True)
class _KvShape:
    """What one layer keeps of a token."""

    num_kv_heads: int
    head_dim: int


def load_model(
    folder: Path,
    device: torch.device,
    dtype_name: str,
    *,
    kv_dtype_name: str = AUTO,
    is_batch_invariant: bool = False,
    is_int8: bool = False,
) -> LoadedModel:
    """`dtype_name` is a torch dtype's name, or "auto": float32 on a CPU, the checkpoint's own elsewhere.

    `kv_dtype_name` alike; "auto" is the same as the weights'.

    What is loaded need not be computed rightly by this engine: `check_model` finds out. Raises ModelError.
    """
    if not folder.is_dir():
        raise ModelError(f"no such folder: {folder}")
    if not (folder / "config.json").is_file():
        raise ModelError(f"no config.json in {folder}: not a model in Hugging Face layout")
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    with guarded(partial(_unloadable, folder)):
        whole: PreTrainedConfig = AutoConfig.from_pretrained(folder, local_files_only=True)
        config: PreTrainedConfig = whole.get_text_config()
    shape = _kv_shape(folder, config)
    max_context = derived_context(config.to_dict())
    if max_context is None:
        raise ModelError(f"{folder}: its config.json names no context length, such as max_position_embeddings")
    dtype = _dtype(dtype_name, device, whole.dtype)
    kv_dtype = dtype if kv_dtype_name == AUTO else _DTYPES[kv_dtype_name]
    model = _load(folder, config, dtype, device, is_part=config is not whole)
    quantization = _quantization(whole)
    if quantization is not None and getattr(model, "hf_quantizer", None) is None:
        raise ModelError(f"{folder}: its weights are quantised by {quantization}, which transformers does not know")
    if quantization is not None and is_int8:
        raise ModelError(f"{folder}: its weights are quantised already, by {quantization}")
    return LoadedModel(
        model=model,
        network=TransformersNetwork(model),
        config=config,
        served=ServedModel(
            name=config.model_type,
            weights_digest=weights_digest(folder),
            dtype=str(dtype).removeprefix("torch."),
            quantization=INT8 if is_int8 else quantization,
            is_batch_invariant=is_batch_invariant,
            kv_dtype=None if kv_dtype is dtype else str(kv_dtype).removeprefix("torch."),
        ),
        vocab_size=config.vocab_size,
        max_context=max_context,
        num_layers=config.num_hidden_layers,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        dtype=dtype,
        kv_dtype=kv_dtype,
        eos_ids=_eos_ids(model.generation_config.eos_token_id),
    )


def _load(
    folder: Path, config: PreTrainedConfig, dtype: torch.dtype, device: torch.device, is_part: bool
) -> PreTrainedModel:
    with guarded(partial(_unloadable, folder)):
        model, loading = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            attn_implementation=ATTENTION_NAME,
            local_files_only=True,
            output_loading_info=True,
            key_mapping=_TEXT_WEIGHTS if is_part else None,
        )
        loaded: PreTrainedModel = model.to(device).eval().requires_grad_(False)
    if missing := sorted(loading["missing_keys"]):  # transformers makes them up, differently on every worker
        raise ModelError(f"{folder} lacks {len(missing)} weights, {missing[0]} among them")
    return loaded


def _kv_shape(folder: Path, config: PreTrainedConfig) -> _KvShape:
    heads = getattr(config, "num_attention_heads", None)
    if not isinstance(heads, int) or heads < 1:
        raise ModelError(f"{folder}: {config.model_type} has no attention heads, so it has no KV that could be served")
    return _KvShape(
        num_kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
    )


def _quantization(config: PreTrainedConfig) -> str | None:
    settings = getattr(config, "quantization_config", None)
    if settings is None:
        return None
    method = settings.get("quant_method") if isinstance(settings, dict) else getattr(settings, "quant_method", None)
    return str(getattr(method, "value", method))


def _unloadable(folder: Path, error: Exception) -> ModelError:
    reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return ModelError(f"cannot load {folder}: {reason}")


def _eos_ids(declared: int | list[int] | None) -> tuple[int, ...]:
    if declared is None:
        return ()
    return (declared,) if isinstance(declared, int) else tuple(declared)


def _dtype(name: str, device: torch.device, checkpoint: torch.dtype | None) -> torch.dtype:
    if name != AUTO:
        return _DTYPES[name]
    return torch.float32 if device.type == "cpu" else checkpoint or torch.float16
