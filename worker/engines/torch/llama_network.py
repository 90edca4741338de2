"""Llama, Qwen2, Qwen3 and Mistral as one call of compiled kernels.

Transformers' own code spends most of a decode step between the matrix products, in hundreds of small operations, each
of which has to get hold of Python's lock again. Here a step is one call; a layer is four products, with q, k, v and
gate, up each in one.

                      residual
    norm ─ qkv ─ rope, into the pool ─ attend ─ o ─ + ─ norm ─ gate, up ─ silu ─ down ─ +
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel

from kvcache.pool_memory import PoolMemory
from worker.engines.torch.attention import PagedStep
from worker.engines.torch.kernels.arena import Arena
from worker.engines.torch.kernels.library import MAX_HEAD_DIM, MAX_TILE, Kernels
from worker.engines.torch.kernels.parts import Heads, Layer, LayerPages, Network, Norm, Product, Step
from worker.engines.torch.kernels.tables import TILE, step_tables

MODEL_TYPES = ("llama", "qwen2", "qwen3", "mistral")


class LlamaNetwork:
    def __init__(self, model: PreTrainedModel, kernels: Kernels, dtype: torch.dtype) -> None:
        """Copies what it needs of the model but for its embedding and ropes. Products have weights of `dtype`."""
        decoder: Any = model.model  # torch types what a module has as Tensor | Module
        self._kernels = kernels
        self._config = model.config
        self._embedding: torch.nn.Module = decoder.embed_tokens
        self._ropes: torch.nn.Module = decoder.rotary_emb
        self._attentions = [layer.self_attn for layer in decoder.layers]  # they tell windows, which checks may narrow
        pack = partial(_packed, kernels, Arena(), dtype)
        layers = [_layer(layer, pack) for layer in decoder.layers]
        self._network = Network(layers, _norm(decoder.norm), pack(model.lm_head))
        self._max_tile = min(TILE, MAX_TILE // (layers[0].heads.num_heads // layers[0].heads.num_kv_heads))
        self._pages: dict[PoolMemory, LayerPages] = {}

    @staticmethod
    def takes(model: PreTrainedModel) -> bool:
        """Whether the model is one of these, with nothing that is not computed here."""
        config = model.config
        if config.model_type not in MODEL_TYPES or model.device.type != "cpu" or config.hidden_act != "silu":
            return False
        if getattr(model, "hf_quantizer", None) is not None:
            return False
        decoder: Any = model.model
        attention = decoder.layers[0].self_attn
        group = config.num_attention_heads // config.num_key_value_heads
        width = decoder.rotary_emb.inv_freq.shape[0] * 2
        return bool(attention.head_dim == width <= MAX_HEAD_DIM and group <= MAX_TILE)

    def logits(
        self, token_ids: torch.Tensor, positions: torch.Tensor, kept: torch.Tensor, paged: PagedStep
    ) -> torch.Tensor:
        residual = self._embedding(token_ids).float()
        cos, sin = (part[0].float().contiguous() for part in self._ropes(residual, positions.unsqueeze(0)))
        step = Step(step_tables(paged.spans, paged.memory.layout, self._max_tile), cos, sin)
        self._network.see([_window(attention, self._config) for attention in self._attentions])
        return self._kernels.run(self._network, step, self._pages_of(paged.memory), residual, kept)

    def _pages_of(self, memory: PoolMemory) -> LayerPages:
        if memory not in self._pages:
            self._pages = {memory: LayerPages(memory, len(self._attentions))}
        return self._pages[memory]


def _layer(layer: Any, pack: Callable[..., Product]) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp
    width = attention.head_dim
    q_norm, k_norm = (getattr(attention, name, None) for name in ("q_norm", "k_norm"))
    heads = Heads(
        num_heads=attention.q_proj.out_features // width,
        num_kv_heads=attention.k_proj.out_features // width,
        head_dim=width,
        q_norm=None if q_norm is None else q_norm.weight,
        k_norm=None if k_norm is None else k_norm.weight,
        epsilon=0.0 if q_norm is None else q_norm.variance_epsilon,
    )
    return Layer(
        before_attention=_norm(layer.input_layernorm),
        qkv=pack(attention.q_proj, attention.k_proj, attention.v_proj),
        heads=heads,
        scale=attention.scaling,
        output=pack(attention.o_proj),
        before_mlp=_norm(layer.post_attention_layernorm),
        gate_up=pack(mlp.gate_proj, mlp.up_proj),
        down=pack(mlp.down_proj),
    )


def _norm(norm: Any) -> Norm:
    return Norm(norm.weight, norm.variance_epsilon)


def _packed(kernels: Kernels, memory: Arena, dtype: torch.dtype, *linears: torch.nn.Linear) -> Product:
    """Their products side by side, as one."""
    weights: list[torch.Tensor] = [linear.weight for linear in linears]
    biases: list[torch.Tensor] = [linear.bias for linear in linears if linear.bias is not None]
    return kernels.pack(torch.cat(weights), torch.cat(biases) if biases else None, dtype, memory)


def _window(attention: Any, config: Any) -> int | None:
    """In tokens. Mistral's attention asks the config, Qwen's notes its own; a Llama has none."""
    if config.model_type == "mistral":
        window: int | None = config.sliding_window
    else:
        window = getattr(attention, "sliding_window", None)
    return window
