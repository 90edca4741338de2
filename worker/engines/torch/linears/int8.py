"""8-bit weights, one scale an output channel, under 8-bit activations, one scale a row.

Products are summed as integers, so a row's result is exact up to its own rounding and does not depend on who else is in
the batch, on the kernel or on how the work is split: that is why a scale may not be shared between rows.
"""

import functools
import warnings

import torch

from worker.engines.torch.kernels.rows import RowForm, Rows

FULL, REDUCED = 127, 63  # the largest magnitude of an activation
# As a served model's quantization: workers that round otherwise are another model to each other.
NAMES = {FULL: "int8", REDUCED: "int8-7bit"}
MANY_ROWS = 32  # from here on oneDNN is the faster
_PROBED_WIDTH = 512


class Int8Linear:
    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, limit: int | None = None) -> None:
        """`weight` [out, in] is rounded to `quantised(weight)`; `limit` is by default `activation_limit()`."""
        self.out_features = weight.shape[0]
        self._limit = activation_limit() if limit is None else limit
        self._bias = None if bias is None else bias.float()
        values, self._weight_scale = quantised(weight)
        self._zero_points = torch.zeros(len(values), dtype=torch.int32)
        self._few = _fbgemm_packed(values, self._weight_scale)
        self._many = torch.ops.onednn.qlinear_prepack(values, None)

    @staticmethod
    def is_available() -> bool:
        return "fbgemm" in torch.backends.quantized.supported_engines and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]  # torch's

    def form(self, num_rows: int) -> RowForm:
        return RowForm(torch.float32 if num_rows < MANY_ROWS else torch.uint8, self._limit)

    def __call__(self, rows: Rows) -> Rows:
        if rows.data.dtype is torch.uint8:
            products = self._of_many(rows.data)
        else:
            products = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(
                rows.data, 1.0, self._zero, self._few
            )
        if self._bias is None:
            return Rows(products, rows.scale)
        return Rows(Rows(products, rows.scale).plain() + self._bias)

    @property
    def _zero(self) -> int:
        """Of activations as uint8."""
        return self._limit + 1

    def _of_many(self, values: torch.Tensor) -> torch.Tensor:
        products: torch.Tensor = torch.ops.onednn.qlinear_pointwise(
            values,
            1.0,
            self._zero,
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


@functools.cache
def activation_limit() -> int:
    """FULL where both libraries add all of it rightly, as they are set up in this process.

    Without VNNI they add two products in 16 bits, which 2 * 127 * 255 overflows and 2 * 127 * 127 does not.
    The CPU alone does not tell: ONEDNN_MAX_CPU_ISA or FBGEMM_ENABLE_INSTRUCTIONS may keep a library from what it has.
    """
    return FULL if torch.cpu._is_vnni_supported() and _is_exact(FULL) else REDUCED


def _is_exact(limit: int) -> bool:
    """At the ends of the range of weights and activations."""
    weight = torch.ones(64, _PROBED_WIDTH)
    weight[32:, ::2] = -1.0
    linear = Int8Linear(weight, None, limit)
    for num_rows in (2, MANY_ROWS):
        values = torch.full((num_rows, _PROBED_WIDTH), float(limit))
        values[1::2] = -limit
        if linear.form(num_rows).dtype is torch.uint8:
            rows = Rows((values + limit + 1).to(torch.uint8))
        else:
            rows = Rows(values)
        if not torch.allclose(linear(rows).data, values @ weight.T, rtol=1e-5, atol=1e-3):
            return False
    return True


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
