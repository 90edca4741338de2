"""Compiled kernels against the same in plain torch, and against themselves in other company."""

import math

import pytest
import torch

from kvcache.layout import KvLayout
from kvcache.pool_memory import PoolMemory
from worker.engines.torch.attention import SequenceSpan
from worker.engines.torch.kernels.library import Heads, Kernels, LayerPages, load_kernels
from worker.engines.torch.kernels.rows import RowForm, Rows
from worker.engines.torch.kernels.tables import step_tables

PLAIN = RowForm(torch.float32)
BLOCK_SIZE = 4
NUM_BLOCKS = 64


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    found = load_kernels()
    if found is None:
        pytest.skip("no C compiler")
    return found


def rows(num_rows: int, width: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_rows, width, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("delta_type", [None, torch.float32, torch.bfloat16])
def test_norm_adds_and_norms(kernels: Kernels, delta_type: torch.dtype | None) -> None:
    residual, weight = rows(5, 48), rows(1, 48, 1)[0]
    delta = None if delta_type is None else rows(5, 48, 2).to(delta_type)
    grown = residual if delta is None else residual + delta.float()
    expected = torch.nn.functional.rms_norm(grown, (48,), weight, 1e-5)
    normed = kernels.norm(residual, None if delta is None else Rows(delta), weight, 1e-5, PLAIN)
    torch.testing.assert_close(normed.data, expected)
    torch.testing.assert_close(residual, grown)


def test_silu_times_up_of_scaled_rows(kernels: Kernels) -> None:
    both, scale = rows(7, 2 * 33) * 20, torch.rand(7) + 0.5
    gate, up = torch.split(both * scale.unsqueeze(1), 33, dim=1)
    expected = torch.nn.functional.silu(gate) * up
    torch.testing.assert_close(kernels.silu(Rows(both, scale), PLAIN).data, expected)


@pytest.mark.parametrize("limit", [127, 63])
def test_scaled_rows_are_whole_numbers_within_the_limit(kernels: Kernels, limit: int) -> None:
    x = rows(6, 50) * torch.tensor([1e-6, 1.0, 30.0, 1e6, 0.0, -2.0]).unsqueeze(1)
    floats = kernels.convert(x, RowForm(torch.float32, limit))
    integers = kernels.convert(x, RowForm(torch.uint8, limit))
    assert floats.data.abs().max() == limit
    assert torch.equal(floats.data, floats.data.round())
    assert torch.equal(integers.data.float() - limit - 1, floats.data)
    assert floats.scale is not None and integers.scale is not None and torch.equal(floats.scale, integers.scale)
    steps = (x - floats.plain()).abs() / floats.scale.unsqueeze(1)
    assert steps.max() <= 0.5 + 1e-3


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("form", [PLAIN, RowForm(torch.uint8, 127), RowForm(torch.float32, 127)])
def test_what_is_no_number_stays_none_in_its_row_alone(kernels: Kernels, bad: float, form: RowForm) -> None:
    x = rows(3, 40)
    x[1, 7] = bad
    normed = kernels.norm(x, None, torch.ones(40), 1e-5, form)
    whole = normed.data.float() if normed.scale is None else normed.data.float() * normed.scale.unsqueeze(1)
    assert not whole[1].isfinite().all()
    assert whole[0].isfinite().all() and whole[2].isfinite().all()


class Attention:
    """Random keys and values of some sequences, in the pool and beside it."""

    def __init__(self, kernels: Kernels, head_dim: int, dtype: torch.dtype, lengths: list[int]) -> None:
        layout = KvLayout(2, BLOCK_SIZE, 2, head_dim, dtype, "model")
        self.heads = Heads(6, 2, head_dim, None, None, 0.0)
        self._kernels = kernels
        self._memory = PoolMemory(layout, NUM_BLOCKS)
        self._memory.tensor.fill_(math.nan)  # what nobody wrote is not read
        self.pages = LayerPages(self._memory, 1)
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
        self, parts: list[tuple[int, int, int]], queries: list[torch.Tensor], window: int | None = None, tile: int = 16
    ) -> list[torch.Tensor]:
        """`parts`: (sequence, first position, stop), with `queries` [stop - first, 6, head_dim]."""
        spans, start = [], 0
        for sequence, first, stop in parts:
            table = self.tables[sequence][: -(-stop // BLOCK_SIZE)]
            spans.append(SequenceSpan(start, stop - first, stop, table))
            start += stop - first
        tables = step_tables(spans, self._memory.layout, tile)
        out = self._kernels.attend(torch.cat(queries), self.heads, self.pages, tables, scale=0.3, window=window)
        return list(torch.split(out, [stop - first for _, first, stop in parts]))

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
def test_attention_is_that_of_torch(kernels: Kernels, dtype: torch.dtype, head_dim: int, window: int | None) -> None:
    attention = Attention(kernels, head_dim, dtype, [50, 1, 33, 90])
    parts = [(0, 20, 50), (1, 0, 1), (2, 32, 33), (3, 0, 90)]
    queries = [rows(stop - first, 6 * head_dim, stop).view(-1, 6, head_dim) for _, first, stop in parts]
    for part, asked, seen in zip(parts, queries, attention.run(parts, queries, window), strict=True):
        torch.testing.assert_close(seen, attention.expected(*part, asked, window))


@pytest.mark.parametrize("window", [None, 7])
def test_attention_has_the_same_bits_in_every_company_and_cut(kernels: Kernels, window: int | None) -> None:
    attention = Attention(kernels, 64, torch.float32, [70, 40])
    queries, others = rows(70, 6 * 64).view(70, 6, 64), rows(40, 6 * 64, 1).view(40, 6, 64)
    (whole,) = attention.run([(0, 0, 70)], [queries], window)
    for tile in (1, 3, 16):
        _, beside = attention.run([(1, 0, 40), (0, 0, 70)], [others, queries], window, tile)
        assert torch.equal(beside, whole)
    for first, stop in ((0, 13), (13, 14), (14, 70), (69, 70)):
        (part,) = attention.run([(0, first, stop)], [queries[first:stop]], window)
        assert torch.equal(part, whole[first:stop])
