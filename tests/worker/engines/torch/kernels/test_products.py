"""Packed matrix products: near the exact ones, and the same bits for a row whatever the others are."""

import ctypes
import subprocess

import pytest
import torch

from tests.worker.engines.torch.kernels.kernel_rig import Parts
from worker.engines.torch.kernels import build
from worker.engines.torch.kernels.arena import Arena
from worker.engines.torch.kernels.library import load_library
from worker.engines.torch.kernels.structs import INT8

SHAPES = [(96, 64), (576, 1536), (3072, 576), (50, 33), (1, 7)]
COUNTS = (1, 2, 3, 7, 8, 17, 65)
# With how far a product may lie from float64, relative to the largest.
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 1e-3, INT8: 2e-2}
LESSER_CPUS = {"AVX2": "haswell", "SSE2": "x86-64"}


@pytest.fixture(scope="module")
def parts() -> Parts:
    library = load_library()
    if library is None:
        pytest.skip("no C compiler")
    return Parts(library)


@pytest.fixture(scope="module", params=LESSER_CPUS)
def lesser_parts(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Parts:
    """The library as a CPU with less than this one would have it."""
    made = tmp_path_factory.mktemp("kernels") / "kernels.so"
    flags = [flag.replace("native", LESSER_CPUS[request.param]) for flag in build.FLAGS]
    command = ["cc", *flags, *map(str, build.SOURCES), "-o", str(made)]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=build.COMPILE_TIMEOUT_S)
        subprocess.run(["grep", "-q", " avx2 ", "/proc/cpuinfo"], check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no compiler for this kind of CPU")
    return Parts(ctypes.CDLL(str(made)))


def product(
    parts: Parts, weight: torch.Tensor, x: torch.Tensor, dtype: torch.dtype, bias: torch.Tensor | None = None
) -> torch.Tensor:
    packed = parts.pack(weight, bias, dtype)
    return parts.multiply(parts.convert(x, dtype), packed)


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("has_bias", [False, True])
def test_near_the_exact_product(parts: Parts, dtype: torch.dtype, shape: tuple[int, int], has_bias: bool) -> None:
    weight, x = torch.randn(shape) * 0.05, torch.randn(40, shape[1])
    bias = torch.randn(shape[0]) if has_bias else None
    expected = x.double() @ weight.double().T + (0.0 if bias is None else bias.double())
    error = (product(parts, weight, x, dtype, bias) - expected).abs().max() / expected.abs().max()
    assert error < TOLERANCES[dtype]


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_has_the_same_bits_beside_any_others(parts: Parts, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    packed = parts.pack(torch.randn(shape) * 0.05, torch.randn(shape[0]), dtype)
    x = torch.randn(max(COUNTS), shape[1])
    expected = parts.multiply(parts.convert(x, dtype), packed)
    for count in COUNTS:
        for first in {0, (len(x) - count) // 2, len(x) - count}:
            some = parts.multiply(parts.convert(x[first : first + count].contiguous(), dtype), packed)
            assert torch.equal(some, expected[first : first + count]), (count, first)


@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_weights_are_packed_from_any_type(parts: Parts, source: torch.dtype) -> None:
    weight, x = (torch.randn(40, 48) * 0.05).to(source), torch.randn(3, 48)
    assert torch.equal(product(parts, weight, x, torch.float32), product(parts, weight.float(), x, torch.float32))


def test_int8_is_exact_for_what_8_bits_hold(parts: Parts) -> None:
    """At the ends of their range too, where some CPUs would add neighbours in too few bits."""
    weight = torch.randint(-127, 128, (48, 256)).float()
    weight[:, ::64] = 127.0  # so that whole numbers are what they are rounded to
    weight[0], weight[1] = 127.0, -127.0
    x = torch.randint(-127, 128, (5, 256)).float()
    x[:, ::64] = 127.0
    x[0], x[1] = 127.0, -127.0
    assert torch.equal(product(parts, weight, x, INT8), (x.double() @ weight.double().T).float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, INT8], ids=str)
def test_a_lesser_cpu_computes_the_same(parts: Parts, lesser_parts: Parts, dtype: torch.dtype) -> None:
    """Within what the last bit of a sum of floats may be; bfloat16 is rounded otherwise where there are no pairs."""
    weight, x = torch.randn(70, 200) * 0.05, torch.randn(11, 200)
    expected = product(parts, weight, x, dtype)
    torch.testing.assert_close(product(lesser_parts, weight, x, dtype), expected, rtol=1e-5, atol=1e-5)


def test_a_lesser_cpu_is_near_in_bfloat16(lesser_parts: Parts) -> None:
    weight, x = torch.randn(70, 201) * 0.05, torch.randn(11, 201)
    torch.testing.assert_close(
        product(lesser_parts, weight, x, torch.bfloat16), x @ weight.bfloat16().float().T, rtol=1e-4, atol=1e-4
    )


def test_the_weights_lie_side_by_side() -> None:
    arena = Arena()
    first, second = arena.take(100), arena.take(64)
    assert second.data_ptr() - first.data_ptr() == 128
    assert not first.any()
    assert len(arena.take(200 << 20)) == 200 << 20
