"""Draws tokens in compiled code, several at once."""

import ctypes
from collections.abc import Sequence

import torch

from worker.engines.torch.kernels.library import Team, declared
from worker.engines.torch.sampling.drawing import Draw


class _NativeDraw(ctypes.Structure):
    """`struct draw` of `sampling.c`."""

    _fields_ = (
        ("logits", ctypes.c_void_p),
        ("u", ctypes.c_double),
        ("temperature", ctypes.c_float),
        ("min_p", ctypes.c_float),
        ("top_p", ctypes.c_float),
        ("top_k", ctypes.c_long),
        ("token", ctypes.c_long),
    )


class CompiledDrawer:
    def __init__(self, library: ctypes.CDLL, num_threads: int, vocab_size: int) -> None:
        self._team = Team(library, num_threads)
        self._draw_tokens = declared(library.draw_tokens, "ppLLp")
        self._weights = torch.empty(num_threads, vocab_size)

    def draw(self, draws: Sequence[Draw]) -> list[int | None]:
        """Logits are contiguous, and of the vocabulary that it was made for."""
        if not draws:
            return []
        native = (_NativeDraw * len(draws))(
            *(
                _NativeDraw(draw.logits.data_ptr(), draw.u, draw.temperature, draw.min_p, draw.top_p, draw.top_k, 0)
                for draw in draws
            )
        )
        vocab_size = self._weights.shape[1]
        self._draw_tokens(self._team.pointer, ctypes.byref(native), len(draws), vocab_size, self._weights.data_ptr())
        return [None if found.token < 0 else found.token for found in native]
