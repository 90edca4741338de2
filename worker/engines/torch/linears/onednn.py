"""Float32 and bfloat16 by oneDNN, on weights laid out once for its kernels."""

import torch

from worker.engines.torch.kernels.rows import RowForm, Rows

TYPICAL_ROWS = 16  # that the layout is chosen for


class OneDnnLinear:
    """Where the CPU has bfloat16 products (AVX512-BF16, AMX) bfloat16 is about twice as fast as float32."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """`weight` [out, in] and `bias` [out], float32 or bfloat16."""
        self.out_features = weight.shape[0]
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, TYPICAL_ROWS)
        self._bias = bias
        self._form = RowForm(weight.dtype)

    @staticmethod
    def takes(dtype: torch.dtype) -> bool:
        if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]  # torch's
            return False
        return dtype is torch.float32 or (
            dtype is torch.bfloat16 and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
        )

    def form(self, num_rows: int) -> RowForm:
        return self._form

    def __call__(self, rows: Rows) -> Rows:
        return Rows(torch.ops.mkldnn._linear_pointwise(rows.data, self._packed, self._bias, "none", [], ""))
