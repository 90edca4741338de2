"""What a decoder layer is made of, as compiled kernels read it: each part keeps the tensors that it points to."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from kvcache.pool_memory import PoolMemory
from worker.engines.torch.kernels.structs import (
    NativeAttention,
    NativeHeads,
    NativeLayer,
    NativeNetwork,
    NativeNorm,
    NativePages,
    NativeProduct,
    NativeStep,
    type_number,
)
from worker.engines.torch.kernels.tables import StepTables


class Norm:
    """An RMS norm by `weight` [width]."""

    def __init__(self, weight: torch.Tensor, epsilon: float) -> None:
        self._weight = _own(weight)
        self.native = NativeNorm(self._weight.data_ptr(), epsilon)


@dataclass(frozen=True)
class Product:
    """y = x W^T + b with weights of `dtype`, packed; `Kernels.pack` makes them.

    As int8 weights and inputs are rounded, GROUP of `kernels.h` together.
    """

    dtype: torch.dtype
    outputs: int
    inputs: int
    packed: torch.Tensor
    bias: torch.Tensor | None
    native: NativeProduct = field(init=False)

    def __post_init__(self) -> None:
        bias = None if self.bias is None else self.bias.data_ptr()
        kind = type_number(self.dtype)
        object.__setattr__(self, "native", NativeProduct(self.packed.data_ptr(), bias, kind, self.outputs, self.inputs))


class Heads:
    """The heads of one layer; `q_norm` and `k_norm` [head_dim] where the model norms them by `epsilon`."""

    def __init__(
        self,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        q_norm: torch.Tensor | None = None,
        k_norm: torch.Tensor | None = None,
        epsilon: float = 0.0,
    ) -> None:
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, head_dim
        self._norms = [None if norm is None else _own(norm) for norm in (q_norm, k_norm)]
        pointers = [None if norm is None else norm.data_ptr() for norm in self._norms]
        self.native = NativeHeads(num_heads, num_kv_heads, head_dim, *pointers, epsilon)


@dataclass(frozen=True, slots=True)
class Layer:
    before_attention: Norm
    qkv: Product
    heads: Heads
    scale: float  # of scores
    output: Product
    before_mlp: Norm
    gate_up: Product
    down: Product

    @property
    def native(self) -> NativeLayer:
        return NativeLayer(
            self.before_attention.native,
            self.before_mlp.native,
            self.qkv.native,
            self.output.native,
            self.gate_up.native,
            self.down.native,
            self.heads.native,
            NativeAttention(self.scale, 0),
        )


class Network:
    """All layers of a decoder, alike in their widths, what follows them, and room for one step at a time."""

    def __init__(self, layers: Sequence[Layer], last_norm: Norm, head: Product) -> None:
        self._keep = (layers, last_norm)
        self._layers = (NativeLayer * len(layers))(*(layer.native for layer in layers))
        self._scratch = torch.empty(0, dtype=torch.uint8)
        self.head = head
        self.native = NativeNetwork(self._layers, last_norm.native, head.native, len(layers), head.inputs)

    def see(self, windows: Sequence[int | None]) -> None:
        """`windows`: how many tokens a token sees, itself included, in each layer."""
        for layer, window in zip(self._layers, windows, strict=True):
            layer.attention.window = window or 0

    def scratch(self, num_bytes: int) -> torch.Tensor:
        """Memory of at least that size for what a step needs in between."""
        if num_bytes > len(self._scratch):
            self._scratch = torch.empty(num_bytes, dtype=torch.uint8)
        return self._scratch


class LayerPages:
    """Each layer's pages of a pool in host memory."""

    def __init__(self, memory: PoolMemory, num_layers: int) -> None:
        self._keep = [(memory.keys(layer), memory.values(layer)) for layer in range(num_layers)]
        self.native = (NativePages * num_layers)(
            *(
                NativePages(keys.data_ptr(), values.data_ptr(), type_number(keys.dtype), keys.stride(0), keys.shape[1])
                for keys, values in self._keep
            )
        )


class Step:
    """`cos`, `sin` float32 [rows, head_dim]. Rows that `tables` has no slot for are padding."""

    def __init__(self, tables: StepTables, cos: torch.Tensor, sin: torch.Tensor) -> None:
        self._keep = (tables, cos, sin)
        self.num_rows = len(cos)
        self.native = NativeStep(
            cos.data_ptr(),
            sin.data_ptr(),
            tables.tiles.ctypes.data,
            tables.blocks.ctypes.data,
            tables.slots.ctypes.data,
            len(tables.tiles),
            len(tables.slots),
            self.num_rows,
        )


def _own(weight: torch.Tensor) -> torch.Tensor:
    """A float32 copy that nobody moves: kernels know it by its address."""
    return weight.detach().to(torch.float32, copy=True).contiguous()
