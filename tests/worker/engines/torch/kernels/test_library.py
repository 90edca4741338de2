"""Compiled kernels against the same in plain torch, and against themselves in other company."""

import math

import pytest
import torch

from kvcache.layout import KvLayout
from kvcache.pool_memory import PoolMemory
from tests.worker.engines.torch.kernels.kernel_rig import Parts
from worker.engines.torch.attention import SequenceSpan
from worker.engines.torch.kernels.library import load_library
from worker.engines.torch.kernels.parts import Heads, LayerPages, Norm, Step
from worker.engines.torch.kernels.structs import INT8, NativeAttention
from worker.engines.torch.kernels.tables import step_tables

GROUP = 64  # of `kernels.h`
BLOCK_SIZE = 4
NUM_BLOCKS = 64


@pytest.fixture(scope="module")
def parts() -> Parts:
    library = load_library()
    if library is None:
        pytest.skip("no C compiler")
    return Parts(library)


def rows(num_rows: int, width: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_rows, width, generator=torch.Generator().manual_seed(seed))


def floats(taken: torch.Tensor) -> torch.Tensor:
    return taken.view(torch.float32)


def from_groups(taken: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows for an int8 product as what they stand for [rows, width], their integers, and each one's unit."""
    groups = taken.view(len(taken), -1, GROUP + 8)
    integers = groups[..., :GROUP].contiguous().view(torch.int8)
    units, offsets = (groups[..., GROUP + at : GROUP + at + 4].contiguous() for at in (0, 4))
    assert torch.equal(offsets.view(torch.int32)[..., 0], -128 * integers.int().sum(dim=-1))
    unit = units.view(torch.float32).expand(-1, -1, GROUP).flatten(1)[:, :width]
    assert not integers.flatten(1)[:, width:].any()
    values = integers.flatten(1)[:, :width].float()
    return values * unit, values, unit


@pytest.mark.parametrize("has_delta", [False, True])
def test_norm_adds_and_norms(parts: Parts, has_delta: bool) -> None:
    residual, weight = rows(5, 50), rows(1, 50, 1)[0]
    delta = rows(5, 50, 2) if has_delta else None
    grown = residual if delta is None else residual + delta
    expected = torch.nn.functional.rms_norm(grown, (50,), weight, 1e-5)
    normed = parts.norm(residual, delta, Norm(weight, 1e-5), torch.float32)
    torch.testing.assert_close(floats(normed), expected)
    torch.testing.assert_close(residual, grown)


def test_silu_times_up(parts: Parts) -> None:
    both = rows(7, 2 * 33) * 20
    gate, up = torch.split(both, 33, dim=1)
    expected = torch.nn.functional.silu(gate) * up
    torch.testing.assert_close(floats(parts.silu(both, torch.float32)), expected)


def test_int8_rows_are_rounded_group_by_group(parts: Parts) -> None:
    x = rows(6, 150) * torch.tensor([1e-6, 1.0, 30.0, 1e6, 0.0, -2.0]).unsqueeze(1)
    x[1, 3] = 1e4  # an outlier, which costs its neighbours their precision, and no others
    values, integers, unit = from_groups(parts.convert(x, INT8), 150)
    assert integers.abs().max() == 127
    assert ((x - values).abs() <= unit * (0.5 + 1e-3)).all()
    assert (unit[1, GROUP:] < 0.1).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, INT8], ids=str)
def test_what_is_no_number_stays_none_in_its_row_alone(parts: Parts, bad: float, dtype: torch.dtype) -> None:
    x = rows(3, 70)
    x[1, 7] = bad
    normed = parts.norm(x, None, Norm(torch.ones(70), 1e-5), dtype)
    whole = from_groups(normed, 70)[0] if dtype is INT8 else floats(normed)
    assert not whole[1].isfinite().all()
    assert whole[0].isfinite().all() and whole[2].isfinite().all()


class Attention:
    """Random keys and values of some sequences, in the pool and beside it."""

    def __init__(self, parts: Parts, head_dim: int, dtype: torch.dtype, lengths: list[int]) -> None:
        layout = KvLayout(2, BLOCK_SIZE, 2, head_dim, dtype, "model")
        self.heads = Heads(6, 2, head_dim)
        self._parts = parts
        self._memory = PoolMemory(layout, NUM_BLOCKS)
        self._memory.tensor.fill_(math.nan)  # what nobody wrote is not read
        self.pages = LayerPages(self._memory, 2)
        self.keys, self.values, self.tables = [], [], []
        free = torch.randperm(NUM_BLOCKS, generator=torch.Generator().manual_seed(1)).tolist()
        for number, length in enumerate(lengths):
            table, free = free[: -(-length // BLOCK_SIZE)], free[-(-length // BLOCK_SIZE) :]
            keys, values = (
                rows(length, 2 * head_dim, 10 + 2 * number + part).view(length, 2, head_dim).to(dtype)
                for part in range(2)
            )
            for place in range(length):
                where = (table[place // BLOCK_SIZE], 1)
                self._memory.tensor[where][0, place % BLOCK_SIZE] = keys[place]
                self._memory.tensor[where][1, place % BLOCK_SIZE] = values[place]
            self.keys.append(keys)
            self.values.append(values)
            self.tables.append(table)

    def run(
        self, cuts: list[tuple[int, int, int]], queries: list[torch.Tensor], window: int | None = None, tile: int = 16
    ) -> list[torch.Tensor]:
        """`cuts`: (sequence, first position, stop), with `queries` [stop - first, 6, head_dim]."""
        spans, start = [], 0
        for sequence, first, stop in cuts:
            table = self.tables[sequence][: -(-stop // BLOCK_SIZE)]
            spans.append(SequenceSpan(start, stop - first, stop, table))
            start += stop - first
        tables = step_tables(spans, self._memory.layout, tile)
        nowhere = torch.zeros(start, self.heads.head_dim)
        step = Step(tables, nowhere, nowhere)
        how = NativeAttention(0.3, window or 0)
        out = self._parts.attend(torch.cat(queries), self.heads, step, self.pages, 1, how)
        return list(torch.split(out, [stop - first for _, first, stop in cuts]))

    def expected(self, sequence: int, first: int, stop: int, queries: torch.Tensor, window: int | None) -> torch.Tensor:
        keys, values = (
            kv[sequence][:stop].float().repeat_interleave(3, dim=1).transpose(0, 1) for kv in (self.keys, self.values)
        )
        places, askers = torch.arange(stop), torch.arange(first, stop).unsqueeze(1)
        mask = places <= askers
        if window is not None:
            mask &= places > askers - window
        return torch.nn.functional.scaled_dot_product_attention(
            queries.transpose(0, 1), keys, values, attn_mask=mask, scale=0.3
        ).transpose(0, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("head_dim", [64, 128, 16, 20, 80])
@pytest.mark.parametrize("window", [None, 1, 5, 24])
def test_attention_is_that_of_torch(parts: Parts, dtype: torch.dtype, head_dim: int, window: int | None) -> None:
    attention = Attention(parts, head_dim, dtype, [50, 1, 33, 90])
    cuts = [(0, 20, 50), (1, 0, 1), (2, 32, 33), (3, 0, 90)]
    queries = [rows(stop - first, 6 * head_dim, stop).view(-1, 6, head_dim) for _, first, stop in cuts]
    for cut, asked, seen in zip(cuts, queries, attention.run(cuts, queries, window), strict=True):
        torch.testing.assert_close(seen, attention.expected(*cut, asked, window))


@pytest.mark.parametrize("window", [None, 7])
def test_attention_has_the_same_bits_in_every_company_and_cut(parts: Parts, window: int | None) -> None:
    attention = Attention(parts, 64, torch.float32, [70, 40])
    queries, others = rows(70, 6 * 64).view(70, 6, 64), rows(40, 6 * 64, 1).view(40, 6, 64)
    (whole,) = attention.run([(0, 0, 70)], [queries], window)
    for tile in (1, 3, 16):
        _, beside = attention.run([(1, 0, 40), (0, 0, 70)], [others, queries], window, tile)
        assert torch.equal(beside, whole)
    for first, stop in ((0, 13), (13, 14), (14, 70), (69, 70)):
        (part,) = attention.run([(0, first, stop)], [queries[first:stop]], window)
        assert torch.equal(part, whole[first:stop])
