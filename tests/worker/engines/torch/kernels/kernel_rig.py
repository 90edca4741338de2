"""The parts of a step one by one, each computed by one thread."""

import ctypes
from typing import Any

import torch

from worker.engines.torch.kernels.arena import Arena
from worker.engines.torch.kernels.library import Kernels
from worker.engines.torch.kernels.parts import Heads, LayerPages, Norm, Product, Step
from worker.engines.torch.kernels.structs import NativeAttention, type_number


class _Member(ctypes.Structure):
    _fields_ = (("team", ctypes.c_void_p), ("index", ctypes.c_long))


class Parts:
    """Rows are float32 [rows, width]; those for a product are bytes, in the form of its type."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._kernels = Kernels(library, 1)
        self._me = _Member(self._kernels._team.pointer, 0)
        library.row_bytes.restype = ctypes.c_size_t

    def pack(self, weight: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype) -> Product:
        return self._kernels.pack(weight, bias, dtype, Arena())

    def convert(self, rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        out = self._taken(rows.shape, dtype)
        self._call("convert_rows", rows, out, type_number(dtype), *rows.shape)
        return out

    def norm(self, residual: torch.Tensor, delta: torch.Tensor | None, norm: Norm, dtype: torch.dtype) -> torch.Tensor:
        out = self._taken(residual.shape, dtype)
        self._call("norm_rows", residual, delta, norm.native, out, type_number(dtype), *residual.shape)
        return out

    def silu(self, gate_up: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        num_rows, both = gate_up.shape
        out = self._taken((num_rows, both // 2), dtype)
        self._call("silu_rows", gate_up, out, type_number(dtype), num_rows, both // 2)
        return out

    def multiply(self, taken: torch.Tensor, product: Product) -> torch.Tensor:
        out = torch.empty(len(taken), product.outputs)
        self._call("multiply_rows", taken, product.native, out, len(taken))
        return out

    def rope(self, qkv: torch.Tensor, heads: Heads, step: Step, pages: LayerPages, layer: int) -> torch.Tensor:
        queries = torch.empty(len(qkv), heads.num_heads, heads.head_dim)
        self._call("rope_rows", qkv, heads.native, step.native, queries, pages.native[layer])
        return queries

    def attend(
        self, queries: torch.Tensor, heads: Heads, step: Step, pages: LayerPages, layer: int, how: NativeAttention
    ) -> torch.Tensor:
        out = torch.full_like(queries, torch.nan)
        self._call("attend_rows", queries, heads.native, how, step.native, pages.native[layer], out)
        self._library.meet(ctypes.byref(self._me))
        return out

    def _taken(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        num_rows, width = shape
        size = self._library.row_bytes(ctypes.c_long(type_number(dtype)), ctypes.c_long(width))
        return torch.empty(num_rows, size, dtype=torch.uint8)

    def _call(self, name: str, *arguments: object) -> None:
        getattr(self._library, name)(ctypes.byref(self._me), *map(_passed, arguments))


def _passed(argument: object) -> Any:
    if isinstance(argument, torch.Tensor):
        return ctypes.c_void_p(argument.data_ptr())
    if isinstance(argument, ctypes.Structure):
        return ctypes.byref(argument)
    return ctypes.c_long(argument) if isinstance(argument, int) else argument
