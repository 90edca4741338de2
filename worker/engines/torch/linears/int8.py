"""8-bit weights, one scale an output channel, under 8-bit activations, one scale a row.

Products are summed as integers, so a row's result is exact up to its own rounding and does not depend on who else is in
the batch, on the kernel or on how the work is split: that is why a scale may not be shared between rows.
"""

import warnings

import torch

from worker.engines.torch.kernels.rows import RowForm, Rows

# Without VNNI both libraries add products of two neighbours in 16 bits: 2 * 127 * 127 must fit in.
LIMIT = 127 if torch.cpu._is_vnni_supported() else 63
ZERO = LIMIT + 1  # of activations as uint8
MANY_ROWS = 32  # from here on oneDNN is the faster


class Int8Linear:
    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        """`weight` [out, in] is rounded to `quantised(weight)`."""
        self.out_features = weight.shape[0]
        self._bias = None if bias is None else bias.float()
        values, self._weight_scale = quantised(weight)
        self._zero_points = torch.zeros(len(values), dtype=torch.int32)
        self._few = _fbgemm_packed(values, self._weight_scale)
        self._many = torch.ops.onednn.qlinear_prepack(values, None)

    @staticmethod
    def is_available() -> bool:
        return "fbgemm" in torch.backends.quantized.supported_engines and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]  # torch's

    def form(self, num_rows: int) -> RowForm:
        return RowForm(torch.float32 if num_rows < MANY_ROWS else torch.uint8, LIMIT)

    def __call__(self, rows: Rows) -> Rows:
        if rows.data.dtype is torch.uint8:
            products = self._of_many(rows.data)
        else:
            products = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
                rows.data, 1.0, ZERO, self._few
            )
        if self._bias is None:
            return Rows(products, rows.scale)
        return Rows(Rows(products, rows.scale).plain() + self._bias)

    def _of_many(self, values: torch.Tensor) -> torch.Tensor:
        products: torch.Tensor = torch.ops.onednn.qlinear_pointwise(
            values,
            1.0,
            ZERO,
            self._many,
            self._weight_scale,
            self._zero_points,
            None,
            1.0,
            0,
            torch.float32,
            "none",
            [],
            "",
        )
        return products


def quantised(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`weight` [out, in] -> (int8 [out, in] within ±127, float32 [out]): their product is near it."""
    weight = weight.float()
    scale = weight.abs().amax(dim=1).clamp(min=torch.finfo(torch.float32).tiny) / 127
    return torch.round(weight / scale.unsqueeze(1)).to(torch.int8), scale


def _fbgemm_packed(values: torch.Tensor, scale: torch.Tensor) -> torch.ScriptObject:
    zeros = torch.zeros(len(values), dtype=torch.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch means to drop such tensors; the packed form stays
        weight = torch._make_per_channel_quantized_tensor(values, scale.double(), zeros, 0)
    packed: torch.ScriptObject = torch.ops.quantized.linear_prepack(weight, None)
    return packed
