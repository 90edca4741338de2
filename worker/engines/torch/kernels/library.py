"""The functions of `kernels.h` as Python calls on tensors. They release the GIL and use torch's own threads."""

import ctypes
import functools
import logging
from typing import Any

import torch

from worker.engines.torch.kernels.arena import Arena
from worker.engines.torch.kernels.build import CannotBuild, library_file
from worker.engines.torch.kernels.parts import Heads, LayerPages, Layers, Norm, Product, Step
from worker.engines.torch.kernels.structs import NativeAttention, NativeProduct, type_number

logger = logging.getLogger(__name__)

MAX_HEAD_DIM = 256
MAX_TILE = 64  # rows of queries, of all heads of a tile


class Kernels:
    """Rows are float32 [rows, width]; those for a product are bytes, `row_bytes` each, in the form of its type."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._row_bytes = _function(library.row_bytes, "LL", ctypes.c_size_t)
        self._packed_bytes = _function(library.packed_bytes, "p", ctypes.c_size_t)
        self._scratch_bytes = _function(library.scratch_bytes, "pL", ctypes.c_size_t)
        self._pack_weights = _function(library.pack_weights, "pLpi")
        self._norm_rows = _function(library.norm_rows, "ppppLLLi")
        self._convert_rows = _function(library.convert_rows, "ppLLLi")
        self._silu_rows = _function(library.silu_rows, "ppLLLi")
        self._rope_rows = _function(library.rope_rows, "ppppp")
        self._attend_rows = _function(library.attend_rows, "pppppp")
        self._multiply_rows = _function(library.multiply_rows, "pppLi")
        self._run_layers = _function(library.run_layers, "pLpppLp")

    def pack(self, weight: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype, memory: Arena) -> Product:
        """`weight` [outputs, inputs] and `bias` [outputs] of a floating type, as a product with weights of `dtype`."""
        weight = weight.detach().contiguous()
        outputs, inputs = weight.shape
        shape = NativeProduct(None, None, type_number(dtype), outputs, inputs)
        packed = memory.take(self._packed_bytes(ctypes.byref(shape)))
        shape.packed = packed.data_ptr()
        self._pack_weights(weight.data_ptr(), type_number(weight.dtype), ctypes.byref(shape), torch.get_num_threads())
        own_bias = None if bias is None else bias.detach().to(torch.float32, copy=True)
        return Product(dtype, outputs, inputs, packed, own_bias)

    def convert(self, rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """-> rows for a product of `dtype`."""
        out = self._taken(rows.shape, dtype)
        self._convert_rows(rows.data_ptr(), out.data_ptr(), type_number(dtype), *rows.shape, torch.get_num_threads())
        return out

    def norm(self, residual: torch.Tensor, delta: torch.Tensor | None, norm: Norm, dtype: torch.dtype) -> torch.Tensor:
        """`residual` grows by `delta` -> it, normed, as rows for a product of `dtype`."""
        out = self._taken(residual.shape, dtype)
        self._norm_rows(
            residual.data_ptr(),
            None if delta is None else delta.data_ptr(),
            ctypes.byref(norm.native),
            out.data_ptr(),
            type_number(dtype),
            *residual.shape,
            torch.get_num_threads(),
        )
        return out

    def silu(self, gate_up: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """silu(gate) * up of rows [gate | up], as rows for a product of `dtype`."""
        num_rows, both = gate_up.shape
        out = self._taken((num_rows, both // 2), dtype)
        kind = type_number(dtype)
        self._silu_rows(gate_up.data_ptr(), out.data_ptr(), kind, num_rows, both // 2, torch.get_num_threads())
        return out

    def multiply(self, taken: torch.Tensor, product: Product) -> torch.Tensor:
        """`taken` as others here give rows for it -> float32 [rows, outputs]."""
        out = torch.empty(len(taken), product.outputs)
        native = ctypes.byref(product.native)
        self._multiply_rows(taken.data_ptr(), native, out.data_ptr(), len(taken), torch.get_num_threads())
        return out

    def rope(self, qkv: torch.Tensor, heads: Heads, step: Step, pages: LayerPages, layer: int) -> torch.Tensor:
        """Rows [q | k | v] -> queries float32 [rows, num_heads, head_dim]; keys and values go into the pages."""
        queries = torch.empty(len(qkv), heads.num_heads, heads.head_dim)
        self._rope_rows(
            qkv.data_ptr(),
            ctypes.byref(heads.native),
            ctypes.byref(step.native),
            queries.data_ptr(),
            ctypes.byref(pages.native[layer]),
        )
        return queries

    def attend(
        self,
        queries: torch.Tensor,
        heads: Heads,
        step: Step,
        pages: LayerPages,
        layer: int,
        *,
        scale: float,
        window: int | None,
    ) -> torch.Tensor:
        """`queries` float32 [rows, num_heads, head_dim] -> alike; padding rows are 0.

        `window` in tokens, itself included.
        """
        out = torch.empty_like(queries)
        self._attend_rows(
            queries.data_ptr(),
            ctypes.byref(heads.native),
            ctypes.byref(NativeAttention(scale, window or 0)),
            ctypes.byref(step.native),
            ctypes.byref(pages.native[layer]),
            out.data_ptr(),
        )
        return out

    def run_layers(self, layers: Layers, step: Step, pages: LayerPages, residual: torch.Tensor) -> None:
        """`residual`: the embedded tokens, and afterwards what the last norm takes."""
        scratch = layers.scratch(self._scratch_bytes(ctypes.byref(layers.native), step.num_rows))
        self._run_layers(
            ctypes.byref(layers.native),
            len(layers.native),
            ctypes.byref(pages.native),
            ctypes.byref(step.native),
            residual.data_ptr(),
            residual.shape[1],
            scratch.data_ptr(),
        )

    def _taken(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        num_rows, width = shape
        return torch.empty(num_rows, self._row_bytes(type_number(dtype), width), dtype=torch.uint8)


@functools.cache
def load_kernels() -> Kernels | None:
    """None, and one line of log, where they can't be compiled."""
    try:
        return Kernels(ctypes.CDLL(str(library_file())))
    except (CannotBuild, OSError) as error:
        logger.warning("slower without compiled kernels: %s", error)
        return None


_LETTERS: "dict[str, type[ctypes._SimpleCData[Any]]]" = {"p": ctypes.c_void_p, "i": ctypes.c_int, "L": ctypes.c_long}


def _function(
    function: "ctypes._NamedFuncPointer", arguments: str, result: "type[ctypes._SimpleCData[Any]] | None" = None
) -> "ctypes._NamedFuncPointer":
    function.argtypes = [_LETTERS[letter] for letter in arguments]
    function.restype = result
    return function
