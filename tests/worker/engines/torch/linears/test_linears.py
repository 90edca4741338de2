"""Packed matrix products: near torch's own, and the same bits for a row whatever the others are."""

import os
import subprocess
import sys

import pytest
import torch

from worker.engines.torch.kernels.library import load_kernels
from worker.engines.torch.kernels.rows import RowForm, Rows
from worker.engines.torch.linears.half import HalfLinear
from worker.engines.torch.linears.int8 import MANY_ROWS, NAMES, REDUCED, Int8Linear, activation_limit, quantised
from worker.engines.torch.linears.linear import MIN_ROWS, Linear, Pack
from worker.engines.torch.linears.onednn import OneDnnLinear
from worker.engines.torch.linears.packing import fastest_packing

SHAPES = [(96, 64), (576, 1536), (3072, 576)]
COUNTS = (MIN_ROWS, 3, 8, 17, MANY_ROWS - 1, MANY_ROWS, 65, 200)


def rows_for(linear: Linear, x: torch.Tensor) -> Rows:
    form = linear.form(len(x))
    if form.limit is None:
        return Rows(x.to(form.dtype))
    kernels = load_kernels()
    if kernels is None:
        pytest.skip("no C compiler")
    return kernels.convert(x.contiguous(), form)


def packings() -> list[tuple[Pack, torch.dtype, float]]:
    """With how far they may lie from float64, relative to the largest."""
    found: list[tuple[Pack, torch.dtype, float]] = []
    if OneDnnLinear.takes(torch.float32):
        found.append((OneDnnLinear, torch.float32, 1e-5))
    if OneDnnLinear.takes(torch.bfloat16):
        found.append((OneDnnLinear, torch.bfloat16, 2e-2))
    if HalfLinear.is_available():
        found.append((HalfLinear, torch.float16, 1e-3))
    if Int8Linear.is_available():
        found.append((Int8Linear, torch.float32, 3e-2))
    return found


@pytest.mark.parametrize(("pack", "dtype", "tolerance"), packings(), ids=str)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("has_bias", [False, True])
def test_near_the_exact_product(
    pack: Pack, dtype: torch.dtype, tolerance: float, shape: tuple[int, int], has_bias: bool
) -> None:
    weight, x = torch.randn(shape) * 0.05, torch.randn(40, shape[1])
    bias = torch.randn(shape[0]) if has_bias else None
    linear = pack(weight.to(dtype), None if bias is None else bias.to(dtype))
    expected = x.double() @ weight.double().T + (0.0 if bias is None else bias.double())
    assert linear.out_features == shape[0]
    for count in (MIN_ROWS, 40):
        error = (linear(rows_for(linear, x[:count])).plain() - expected[:count]).abs().max() / expected.abs().max()
        assert error < tolerance


@pytest.mark.parametrize(("pack", "dtype", "tolerance"), packings(), ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_has_the_same_bits_beside_any_others(
    pack: Pack, dtype: torch.dtype, tolerance: float, shape: tuple[int, int]
) -> None:
    linear, x = pack((torch.randn(shape) * 0.05).to(dtype), None), torch.randn(max(COUNTS), shape[1])
    expected = linear(rows_for(linear, x)).plain()
    for count in COUNTS:
        for first in {0, (len(x) - count) // 2, len(x) - count}:
            products = linear(rows_for(linear, x[first : first + count])).plain()
            assert torch.equal(products, expected[first : first + count]), (count, first)


@pytest.mark.parametrize("limit", sorted({activation_limit(), REDUCED}))
def test_int8_is_the_product_of_the_integers(limit: int) -> None:
    """At the ends of their range too, where libraries may add neighbours in too few bits."""
    if not Int8Linear.is_available():
        pytest.skip("no library for it")
    weight = torch.randn(64, 512)
    weight[:32] = torch.where(torch.rand(32, 512) < 0.5, -1.0, 1.0)
    weight[0] = 1.0
    linear = Int8Linear(weight, None, limit)
    integers, scale = quantised(weight)
    for count in (MIN_ROWS, MANY_ROWS):
        values = torch.full((count, 512), float(limit))
        values[1] = -limit
        form = linear.form(count)
        data = values if form.dtype is torch.float32 else (values + limit + 1).to(torch.uint8)
        products = linear(Rows(data, torch.ones(count))).data
        expected = values.double() @ integers.double().T * scale.double()
        torch.testing.assert_close(products.double(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "held_back",
    [{"ONEDNN_MAX_CPU_ISA": "AVX2", "FBGEMM_ENABLE_INSTRUCTIONS": "AVX2"}, {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}],
    ids=["AVX2", "oneDNN without VNNI"],
)
def test_int8_never_overflows_where_a_library_may_not_use_all_of_the_cpu(held_back: dict[str, str]) -> None:
    """What it then rounds to is another model: such a worker shares no KV with others."""
    if not Int8Linear.is_available():
        pytest.skip("no library for it")
    module = "worker.engines.torch.linears.int8"
    code = f"from {module} import *; from {module} import _is_exact; print(activation_limit(), _is_exact(REDUCED))"
    told = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | held_back, check=True, capture_output=True, text=True
    ).stdout
    assert told.split() == [str(REDUCED), "True"]
    assert len(set(NAMES.values())) == len(NAMES)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_fastest_is_chosen_and_computes(dtype: torch.dtype) -> None:
    weight = (torch.randn(256, 128) * 0.05).to(dtype)
    linear = fastest_packing(dtype, weight)(weight, None)
    x = torch.randn(5, 128)
    expected = x @ weight.float().T
    form: RowForm = linear.form(5)
    torch.testing.assert_close(linear(Rows(x.to(form.dtype))).plain(), expected, rtol=0.05, atol=0.05)
