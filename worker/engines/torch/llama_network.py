"""Llama, Qwen2, Qwen3 and Mistral as a plain list of layers over compiled kernels.

Transformers' own code spends most of a decode step between the matrix products: in hundreds of small operations. Here
a layer is four products, with q, k, v and gate, up each in one, and five calls in between.

                      residual
    norm ─ qkv ─ rope, into the pool ─ attend ─ o ─ + ─ norm ─ gate, up ─ silu ─ down ─ +
"""

from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from kvcache.pool_memory import PoolMemory
from worker.engines.torch.attention import PagedStep
from worker.engines.torch.kernels.library import MAX_HEAD_DIM, MAX_TILE, Heads, Kernels, LayerPages
from worker.engines.torch.kernels.rows import Rows
from worker.engines.torch.kernels.tables import TILE, step_tables
from worker.engines.torch.linears.linear import MIN_ROWS, Linear, Pack

MODEL_TYPES = ("llama", "qwen2", "qwen3", "mistral")


@dataclass(frozen=True, slots=True)
class _Norm:
    weight: torch.Tensor  # float32 [width]
    epsilon: float


@dataclass(frozen=True, slots=True)
class _Layer:
    attention: Any  # tells the window, which checks of the model may narrow
    scaling: float
    heads: Heads
    before_attention: _Norm
    qkv: Linear
    output: Linear
    before_mlp: _Norm
    gate_up: Linear
    down: Linear


class LlamaNetwork:
    min_rows = MIN_ROWS

    def __init__(self, model: PreTrainedModel, kernels: Kernels, pack: Pack, pack_finely: Pack) -> None:
        """Copies what it needs of the model but for its embedding and ropes.

        `pack_finely` is for the products that bear the least rounding: each layer's last, and the head.
        """
        decoder: Any = model.model  # torch types what a module has as Tensor | Module
        self._kernels = kernels
        self._config = model.config
        self._embedding: torch.nn.Module = decoder.embed_tokens
        self._ropes: torch.nn.Module = decoder.rotary_emb
        self._layers = [_layer(layer, pack, pack_finely) for layer in decoder.layers]
        self._last_norm = _norm(decoder.norm)
        self._head = _packed(pack_finely, model.lm_head)
        self._max_tile = min(TILE, MAX_TILE // (self._layers[0].heads.num_heads // self._layers[0].heads.num_kv_heads))
        self._pages: dict[PoolMemory, list[LayerPages]] = {}

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
        kernels, pages = self._kernels, self._pages_of(paged.memory)
        tables = step_tables(paged.spans, paged.memory.layout, self._max_tile)
        num_rows = len(token_ids)
        residual = self._embedding(token_ids).float()
        cos, sin = (part[0].float().contiguous() for part in self._ropes(residual, positions.unsqueeze(0)))
        delta: Rows | None = None
        for layer, layer_pages in zip(self._layers, pages, strict=True):
            qkv = layer.qkv(self._normed(residual, delta, layer.before_attention, layer.qkv))
            queries = kernels.rope(qkv, layer.heads, cos, sin, layer_pages, tables)
            window = _window(layer.attention, self._config)
            seen = kernels.attend(queries, layer.heads, layer_pages, tables, scale=layer.scaling, window=window)
            delta = layer.output(kernels.convert(seen.flatten(1), layer.output.form(num_rows)))
            gate_up = layer.gate_up(self._normed(residual, delta, layer.before_mlp, layer.gate_up))
            delta = layer.down(kernels.silu(gate_up, layer.down.form(num_rows)))
        return self._logits(residual, delta, kept)

    def _logits(self, residual: torch.Tensor, delta: Rows | None, kept: torch.Tensor) -> torch.Tensor:
        if len(kept) < MIN_ROWS:
            return self._logits(residual, delta, kept.repeat(MIN_ROWS))[: len(kept)] if len(kept) else self._none()
        if delta is not None:
            delta = Rows(delta.data[kept], None if delta.scale is None else delta.scale[kept])
        return self._head(self._normed(residual[kept], delta, self._last_norm, self._head)).plain()

    def _normed(self, residual: torch.Tensor, delta: Rows | None, norm: _Norm, taker: Linear) -> Rows:
        return self._kernels.norm(residual, delta, norm.weight, norm.epsilon, taker.form(len(residual)))

    def _none(self) -> torch.Tensor:
        return torch.empty(0, self._head.out_features)

    def _pages_of(self, memory: PoolMemory) -> list[LayerPages]:
        if memory not in self._pages:
            self._pages = {memory: [LayerPages(memory, layer) for layer in range(len(self._layers))]}
        return self._pages[memory]


def _layer(layer: Any, pack: Pack, pack_finely: Pack) -> _Layer:
    attention, mlp = layer.self_attn, layer.mlp
    width = attention.head_dim
    q_norm, k_norm = (getattr(attention, name, None) for name in ("q_norm", "k_norm"))
    heads = Heads(
        num_heads=attention.q_proj.out_features // width,
        num_kv_heads=attention.k_proj.out_features // width,
        head_dim=width,
        q_norm=None if q_norm is None else _own(q_norm.weight),
        k_norm=None if k_norm is None else _own(k_norm.weight),
        epsilon=0.0 if q_norm is None else q_norm.variance_epsilon,
    )
    return _Layer(
        attention=attention,
        scaling=attention.scaling,
        heads=heads,
        before_attention=_norm(layer.input_layernorm),
        qkv=_packed(pack, attention.q_proj, attention.k_proj, attention.v_proj),
        output=_packed(pack, attention.o_proj),
        before_mlp=_norm(layer.post_attention_layernorm),
        gate_up=_packed(pack, mlp.gate_proj, mlp.up_proj),
        down=_packed(pack_finely, mlp.down_proj),
    )


def _norm(norm: Any) -> _Norm:
    return _Norm(_own(norm.weight), norm.variance_epsilon)


def _own(weight: torch.Tensor) -> torch.Tensor:
    """A float32 copy that nobody moves: kernels know it by its address."""
    return weight.detach().to(torch.float32, copy=True).contiguous()


def _packed(pack: Pack, *linears: torch.nn.Linear) -> Linear:
    """Their products side by side, as one."""
    weights: list[torch.Tensor] = [linear.weight for linear in linears]
    biases: list[torch.Tensor] = [linear.bias for linear in linears if linear.bias is not None]
    return pack(torch.cat(weights), torch.cat(biases) if biases else None)


def _window(attention: Any, config: Any) -> int | None:
    """In tokens. Mistral's attention asks the config, Qwen's notes its own; a Llama has none."""
    if config.model_type == "mistral":
        window: int | None = config.sliding_window
    else:
        window = getattr(attention, "sliding_window", None)
    return window
