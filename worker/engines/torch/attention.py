"""Attention over the paged pool, called by the models of transformers through its attention interface.

A step's sequences are flattened into one row of tokens, without padding. Keys and values of the step's tokens are
first written into their blocks; then each sequence attends over its own blocks. What a step needs travels to here
as the keyword argument `paged` of the model's forward.
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from kvcache.pool_memory import PoolMemory

ATTENTION_NAME = "pdserve_paged"


@dataclass(frozen=True, slots=True)
class SequenceSpan:
    """Where one sequence lies in the flattened step, and where its KV lies in the pool."""

    start: int
    num_tokens: int
    context_len: int  # tokens with KV after this step's are written
    blocks: Sequence[int]  # ceil(context_len / block_size)

    def rows(self) -> Iterator["SequenceSpan"]:
        """Each token as a span of its own, with what it may see."""
        first = self.context_len - self.num_tokens
        for row in range(self.num_tokens):
            yield SequenceSpan(self.start + row, 1, first + row + 1, self.blocks)


@dataclass(frozen=True)
class PagedStep:
    """One step's view of the pool. Spans follow each other from the first row.

    Rows of the step beyond them are padding: they leave no KV and attend to nothing.
    """

    memory: PoolMemory
    spans: tuple[SequenceSpan, ...]
    is_row_by_row: bool = False  # each token attends by itself, in a shape that only its place in its sequence decides

    @functools.cached_property
    def tables(self) -> tuple[torch.Tensor, ...]:
        """The blocks of each span, int64 on the pool's device."""
        return tuple(torch.tensor(span.blocks, dtype=torch.int64, device=self.memory.device) for span in self.spans)

    @functools.cached_property
    def slots(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(block, offset in it) where each token's KV is written, int64 [num_tokens]."""
        size = self.memory.layout.block_size
        blocks, offsets = [], []
        for span, table in zip(self.spans, self.tables, strict=True):
            places = torch.arange(span.context_len - span.num_tokens, span.context_len, device=self.memory.device)
            blocks.append(table[places // size])
            offsets.append(places % size)
        return torch.cat(blocks), torch.cat(offsets)


@dataclass(frozen=True, slots=True)
class _Scoring:
    """How a layer weighs what its tokens see."""

    scaling: float
    sliding_window: int | None  # tokens, itself included
    softcap: float | None  # scores are bent to stay below it
    sinks: torch.Tensor | None  # [heads], scores of nothing that attention may go to


def paged_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    paged: PagedStep | None = None,
    **kwargs: object,
) -> tuple[torch.Tensor, None]:
    """`query` [1, heads, T, head_dim], `key` and `value` [1, kv_heads, T, head_dim] -> ([1, T, heads, head_dim], None).

    `s_aux` [heads] are attention sinks. Raises ValueError for a model whose attention has something this does not
    compute.
    """
    if paged is None:
        raise ValueError("the model does not pass on what paged attention needs")
    if attention_mask is not None:
        raise ValueError("the model makes an attention mask of its own")
    if kwargs.get("position_bias") is not None:
        raise ValueError("the model's attention uses position_bias")
    width = paged.memory.layout.head_dim
    if key.shape[3] != width or value.shape[3] != width:
        raise ValueError(
            f"keys are {key.shape[3]} wide, values {value.shape[3]}: it keeps only what is {width} for both"
        )
    layer: int = module.layer_idx  # type: ignore[assignment]  # torch types every attribute as Tensor | Module
    keys, values = paged.memory.keys(layer), paged.memory.values(layer)
    num_tokens = len(paged.slots[0])
    keys.index_put_(paged.slots, key[0, :, :num_tokens].transpose(0, 1).to(keys.dtype))
    values.index_put_(paged.slots, value[0, :, :num_tokens].transpose(0, 1).to(values.dtype))
    scoring = _Scoring(scaling, sliding_window, softcap, s_aux)
    output = torch.zeros_like(query[0].transpose(0, 1))  # [T, heads, head_dim]
    for whole, table in zip(paged.spans, paged.tables, strict=True):
        seen_keys, seen_values = (_gather(pages, table, whole.context_len).to(query.dtype) for pages in (keys, values))
        for span in whole.rows() if paged.is_row_by_row else (whole,):
            rows, seen = slice(span.start, span.start + span.num_tokens), slice(span.context_len)
            attended = _attend(query[:, :, rows], seen_keys[:, :, seen], seen_values[:, :, seen], span, scoring)
            output[rows] = attended[0].transpose(0, 1)
    return output.unsqueeze(0), None


def _attend(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, span: SequenceSpan, scoring: _Scoring
) -> torch.Tensor:
    """[1, heads, num_tokens, head_dim], as `query`; `keys` and `values` [1, kv_heads, context_len, head_dim]."""
    mask = _mask(span, scoring.sliding_window, query.device)
    is_causal = mask is None and span.num_tokens > 1
    if scoring.softcap is None and scoring.sinks is None:
        return scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, is_causal=is_causal, scale=scoring.scaling, enable_gqa=True
        )
    groups = query.shape[1] // keys.shape[1]
    scores = query @ keys.repeat_interleave(groups, dim=1).transpose(2, 3) * scoring.scaling
    if scoring.softcap is not None:
        scores = torch.tanh(scores / scoring.softcap) * scoring.softcap
    if is_causal:
        mask = torch.ones(scores.shape[2:], dtype=torch.bool, device=scores.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    if scoring.sinks is not None:  # a sink takes its share of a head's attention, and gives nothing for it
        sinks = scoring.sinks.view(1, -1, 1, 1).expand(-1, -1, scores.shape[2], 1)
        scores = torch.cat([scores, sinks], dim=-1)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(values.dtype)[..., : keys.shape[2]]
    return weights @ values.repeat_interleave(groups, dim=1)


def _gather(pages: torch.Tensor, table: torch.Tensor, context_len: int) -> torch.Tensor:
    """`pages` [num_blocks, block_size, kv_heads, head_dim] -> the sequence's [1, kv_heads, context_len, head_dim]."""
    flat = pages.index_select(0, table).flatten(0, 1)[:context_len]
    return flat.transpose(0, 1).unsqueeze(0)


def _mask(span: SequenceSpan, sliding_window: int | None, device: torch.device) -> torch.Tensor | None:
    """bool [num_tokens, context_len], True where a token may look; None where SDPA needs none."""
    is_whole = span.num_tokens == span.context_len
    if sliding_window is None and (span.num_tokens == 1 or is_whole):
        return None
    first = span.context_len - span.num_tokens
    rows = torch.arange(first, span.context_len, device=device).unsqueeze(1)
    columns = torch.arange(span.context_len, device=device).unsqueeze(0)
    mask = columns <= rows
    if sliding_window is not None:
        mask &= columns > rows - sliding_window
    return mask


ALL_ATTENTION_FUNCTIONS.register(ATTENTION_NAME, paged_attention)
