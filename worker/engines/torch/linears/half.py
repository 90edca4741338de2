"""16-bit weights under float32 activations, by FBGEMM."""

import torch

from worker.engines.torch.kernels.rows import RowForm, Rows


class HalfLinear:
    """Half the memory read of float32, which is what a decode step waits for; products and sums are float32."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """`weight` [out, in] of any type that float16 can hold."""
        self.out_features = weight.shape[0]
        self._packed = torch.ops.quantized.linear_prepack_fp16(weight.float(), None if bias is None else bias.float())

    @staticmethod
    def is_available() -> bool:
        return "fbgemm" in torch.backends.quantized.supported_engines

    def form(self, num_rows: int) -> RowForm:
        return RowForm(torch.float32)

    def __call__(self, rows: Rows) -> Rows:
        return Rows(torch.ops.quantized.linear_dynamic_fp16(rows.data, self._packed))
