"""Rows of a step (one a token) as they go from one part of a layer to the next."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Rows:
    """`data` [rows, width]; with `scale` float32 [rows], row i stands for scale[i] * data[i]."""

    data: torch.Tensor
    scale: torch.Tensor | None = None

    @property
    def scale_pointer(self) -> int | None:
        return None if self.scale is None else self.scale.data_ptr()

    def plain(self) -> torch.Tensor:
        """Float32 [rows, width]."""
        data = self.data.float()
        return data if self.scale is None else data * self.scale.unsqueeze(1)


@dataclass(frozen=True, slots=True)
class RowForm:
    """How a matrix product wants its input.

    With a `limit` each row is divided so that its largest magnitude becomes that, and rounded to whole numbers; as
    uint8 zero is at `limit` + 1.
    """

    dtype: torch.dtype
    limit: int | None = None

    @property
    def is_plain(self) -> bool:
        return self.dtype is torch.float32 and self.limit is None

    def empty(self, num_rows: int, width: int) -> Rows:
        scale = None if self.limit is None else torch.empty(num_rows)
        return Rows(torch.empty(num_rows, width, dtype=self.dtype), scale)
