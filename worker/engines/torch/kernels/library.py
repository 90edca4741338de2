"""The functions of `kernels.c` as Python calls on tensors. They release the GIL and use torch's own threads."""

import ctypes
import functools
import logging
from dataclasses import dataclass
from typing import Any

import torch

from kvcache.pool_memory import PoolMemory
from worker.engines.torch.kernels.build import CannotBuild, library_file
from worker.engines.torch.kernels.rows import RowForm, Rows
from worker.engines.torch.kernels.tables import StepTables

logger = logging.getLogger(__name__)

MAX_HEAD_DIM = 256
MAX_TILE = 64  # rows of queries, of all heads of a tile
_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.uint8: 3}


class _Heads(ctypes.Structure):
    _fields_ = (
        ("num_heads", ctypes.c_long),
        ("num_kv_heads", ctypes.c_long),
        ("head_dim", ctypes.c_long),
        ("q_norm", ctypes.c_void_p),
        ("k_norm", ctypes.c_void_p),
        ("epsilon", ctypes.c_float),
    )


class _Pages(ctypes.Structure):
    _fields_ = (
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("type", ctypes.c_long),
        ("block_stride", ctypes.c_long),
        ("block_size", ctypes.c_long),
    )


class _Form(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("scale", ctypes.c_void_p),
        ("type", ctypes.c_long),
        ("limit", ctypes.c_long),
    )


class _Attention(ctypes.Structure):
    _fields_ = (("scale", ctypes.c_float), ("window", ctypes.c_long))


@dataclass(frozen=True)
class Heads:
    """The heads of one layer; `q_norm` and `k_norm` float32 [head_dim] where the model norms them by `epsilon`."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    epsilon: float

    @functools.cached_property
    def native(self) -> _Heads:
        norms = (self.q_norm, self.k_norm)
        pointers = [None if norm is None else norm.data_ptr() for norm in norms]
        return _Heads(self.num_heads, self.num_kv_heads, self.head_dim, *pointers, self.epsilon)


class Kernels:
    def __init__(self, library: ctypes.CDLL) -> None:
        self._norm_rows = _function(library.norm_rows, "ppippfpLLi")
        self._convert_rows = _function(library.convert_rows, "ppLLi")
        self._silu_rows = _function(library.silu_rows, "pippLLi")
        self._rope_rows = _function(library.rope_rows, "pipppppppipLLi")
        self._attend_rows = _function(library.attend_rows, "pLppppppi")

    def norm(
        self, residual: torch.Tensor, delta: Rows | None, weight: torch.Tensor, epsilon: float, form: RowForm
    ) -> Rows:
        """`residual` float32 [rows, width] grows by `delta`; -> its RMS norm times `weight`, in `form`."""
        out = form.empty(*residual.shape)
        self._norm_rows(
            residual.data_ptr(),
            None if delta is None else delta.data.data_ptr(),
            0 if delta is None else _TYPES[delta.data.dtype],
            None if delta is None else delta.scale_pointer,
            weight.data_ptr(),
            epsilon,
            _form(out, form),
            *residual.shape,
            torch.get_num_threads(),
        )
        return out

    def convert(self, rows: torch.Tensor, form: RowForm) -> Rows:
        """Float32 [rows, width] in another form."""
        if form.is_plain:
            return Rows(rows)
        out = form.empty(*rows.shape)
        self._convert_rows(rows.data_ptr(), _form(out, form), *rows.shape, torch.get_num_threads())
        return out

    def silu(self, gate_up: Rows, form: RowForm) -> Rows:
        """silu(gate) * up of [rows, gate | up] -> [rows, width] in `form`."""
        num_rows, both = gate_up.data.shape
        out = form.empty(num_rows, both // 2)
        self._silu_rows(
            gate_up.data.data_ptr(),
            _TYPES[gate_up.data.dtype],
            gate_up.scale_pointer,
            _form(out, form),
            num_rows,
            both // 2,
            torch.get_num_threads(),
        )
        return out

    def rope(
        self, qkv: Rows, heads: Heads, cos: torch.Tensor, sin: torch.Tensor, pages: "LayerPages", tables: StepTables
    ) -> torch.Tensor:
        """[rows, q | k | v] -> queries float32 [rows, num_heads, head_dim]; keys and values go into the pool.

        `cos`, `sin` float32 [rows, head_dim]. Rows beyond `tables.slots` are padding.
        """
        num_rows = qkv.data.shape[0]
        queries = torch.empty(num_rows, heads.num_heads, heads.head_dim)
        self._rope_rows(
            qkv.data.data_ptr(),
            _TYPES[qkv.data.dtype],
            qkv.scale_pointer,
            ctypes.byref(heads.native),
            cos.data_ptr(),
            sin.data_ptr(),
            queries.data_ptr(),
            pages.keys_pointer,
            pages.values_pointer,
            pages.kind,
            tables.slots.ctypes.data,
            len(tables.slots),
            num_rows,
            torch.get_num_threads(),
        )
        return queries

    def attend(
        self,
        queries: torch.Tensor,
        heads: Heads,
        pages: "LayerPages",
        tables: StepTables,
        *,
        scale: float,
        window: int | None,
    ) -> torch.Tensor:
        """`queries` float32 [rows, num_heads, head_dim] -> alike; padding rows are 0.

        `window` in tokens, itself included.
        """
        out = torch.empty_like(queries)
        num_tokens = len(tables.slots)
        if num_tokens < len(out):
            out[num_tokens:] = 0.0
        self._attend_rows(
            tables.tiles.ctypes.data,
            len(tables.tiles),
            queries.data_ptr(),
            ctypes.byref(pages.native),
            tables.blocks.ctypes.data,
            ctypes.byref(heads.native),
            ctypes.byref(_Attention(scale, window or 0)),
            out.data_ptr(),
            torch.get_num_threads(),
        )
        return out


class LayerPages:
    """One layer's pages of a pool in host memory."""

    def __init__(self, memory: PoolMemory, layer: int) -> None:
        keys, values = memory.keys(layer), memory.values(layer)
        self._keep = (keys, values)
        self.kind = _TYPES[keys.dtype]
        self.keys_pointer = keys.data_ptr()
        self.values_pointer = values.data_ptr()
        self.native = _Pages(self.keys_pointer, self.values_pointer, self.kind, keys.stride(0), keys.shape[1])


@functools.cache
def load_kernels() -> Kernels | None:
    """None, and one line of log, where they can't be compiled."""
    try:
        return Kernels(ctypes.CDLL(str(library_file())))
    except (CannotBuild, OSError) as error:
        logger.warning("slower without compiled kernels: %s", error)
        return None


def _form(out: Rows, form: RowForm) -> object:
    """The `struct form` that writes `out`."""
    return ctypes.byref(_Form(out.data.data_ptr(), out.scale_pointer, _TYPES[form.dtype], form.limit or 0))


_LETTERS: "dict[str, type[ctypes._SimpleCData[Any]]]" = {
    "p": ctypes.c_void_p,
    "i": ctypes.c_int,
    "L": ctypes.c_long,
    "f": ctypes.c_float,
}


def _function(function: "ctypes._NamedFuncPointer", arguments: str) -> "ctypes._NamedFuncPointer":
    function.argtypes = [_LETTERS[letter] for letter in arguments]
    function.restype = None
    return function
