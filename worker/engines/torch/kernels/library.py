"""The functions of `kernels.h` as Python calls on tensors. They release the GIL."""

import ctypes
import functools
import logging
import weakref
from typing import Any

import torch

from worker.engines.torch.kernels.arena import Arena
from worker.engines.torch.kernels.build import CannotBuild, library_file
from worker.engines.torch.kernels.parts import LayerPages, Network, Product, Step
from worker.engines.torch.kernels.structs import NativeProduct, type_number

logger = logging.getLogger(__name__)

MAX_HEAD_DIM = 256
MAX_TILE = 64  # rows of queries, of all heads of a tile


class Team:
    """`num_threads` threads, the caller among them; fewer where the system gives no more. They end with the object."""

    def __init__(self, library: ctypes.CDLL, num_threads: int) -> None:
        self.pointer: int | None = declared(library.new_team, "L", ctypes.c_void_p)(num_threads)
        if self.pointer is None:
            raise MemoryError
        # Not at the end of the process, which may leave a step half done.
        weakref.finalize(self, declared(library.end_team, "p"), self.pointer).atexit = False


class Kernels:
    """What one network computes with: one call at a time."""

    def __init__(self, library: ctypes.CDLL, num_threads: int) -> None:
        self._team = Team(library, num_threads)
        self._packed_bytes = declared(library.packed_bytes, "p", ctypes.c_size_t)
        self._scratch_bytes = declared(library.scratch_bytes, "pL", ctypes.c_size_t)
        self._pack_weights = declared(library.pack_weights, "ppLp")
        self._run_network = declared(library.run_network, "ppppppLpp")

    def pack(self, weight: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype, memory: Arena) -> Product:
        """`weight` [outputs, inputs] and `bias` [outputs] of a floating type, as a product with weights of `dtype`."""
        weight = weight.detach().contiguous()
        outputs, inputs = weight.shape
        shape = NativeProduct(None, None, type_number(dtype), outputs, inputs)
        packed = memory.take(self._packed_bytes(ctypes.byref(shape)))
        shape.packed = packed.data_ptr()
        self._pack_weights(self._team.pointer, weight.data_ptr(), type_number(weight.dtype), ctypes.byref(shape))
        own_bias = None if bias is None else bias.detach().to(torch.float32, copy=True)
        return Product(dtype, outputs, inputs, packed, own_bias)

    def run(
        self, network: Network, step: Step, pages: LayerPages, residual: torch.Tensor, kept: torch.Tensor
    ) -> torch.Tensor:
        """`residual` float32 [rows, width], the embedded tokens, is overwritten. `kept` int64: different rows.

        -> logits float32 [len(kept), vocabulary] of the rows `kept`.
        """
        scratch = network.scratch(self._scratch_bytes(ctypes.byref(network.native), step.num_rows))
        logits = torch.empty(len(kept), network.head.outputs)
        self._run_network(
            self._team.pointer,
            ctypes.byref(network.native),
            ctypes.byref(pages.native),
            ctypes.byref(step.native),
            residual.data_ptr(),
            kept.data_ptr(),
            len(kept),
            logits.data_ptr(),
            scratch.data_ptr(),
        )
        return logits


def load_kernels(num_threads: int) -> Kernels | None:
    """None, and one line of log, where they can't be compiled."""
    library = load_library()
    return None if library is None else Kernels(library, num_threads)


@functools.cache
def load_library() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(str(library_file()))
    except (CannotBuild, OSError) as error:
        logger.warning("slower without compiled kernels: %s", error)
        return None


_LETTERS: "dict[str, type[ctypes._SimpleCData[Any]]]" = {"p": ctypes.c_void_p, "L": ctypes.c_long}


def declared(
    function: "ctypes._NamedFuncPointer", arguments: str, result: "type[ctypes._SimpleCData[Any]] | None" = None
) -> "ctypes._NamedFuncPointer":
    """`function` with a letter for each argument: a pointer, or a long."""
    function.argtypes = [_LETTERS[letter] for letter in arguments]
    function.restype = result
    return function
