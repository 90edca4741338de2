"""A matrix product with weights that a library has packed for this CPU."""

from collections.abc import Callable
from typing import Protocol

import torch

from worker.engines.torch.kernels.rows import RowForm, Rows

MIN_ROWS = 2  # some libraries compute a single row in another order than the same row beside others


class Linear(Protocol):
    """y = x W^T + b. From MIN_ROWS rows on, a row's bits do not depend on the others."""

    out_features: int

    def form(self, num_rows: int) -> RowForm:
        """How `num_rows` rows must come."""

    def __call__(self, rows: Rows) -> Rows: ...


Pack = Callable[[torch.Tensor, torch.Tensor | None], Linear]  # weight [out, in], bias [out] or None


class PlainLinear:
    """torch's own product: what the others are held against."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """`weight` [out, in] and `bias` [out] are kept as they are."""
        self.out_features = weight.shape[0]
        self._weight, self._bias = weight, bias
        self._form = RowForm(weight.dtype)

    def form(self, num_rows: int) -> RowForm:
        return self._form

    def __call__(self, rows: Rows) -> Rows:
        return Rows(torch.nn.functional.linear(rows.data, self._weight, self._bias))
