"""Chooses tokens from logits: a pure function of the logits, the parameters and the tokens so far.

Order, as in vLLM where it fixes one: penalties, logit_bias, minimum length and bad words, ids without text, grammar,
temperature, min_p, top_k, top_p, draw. Log-probabilities reported are the model's own, before all of that.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from protos.sampling_messages import SamplingParams, TokenLogprobs
from protos.session_messages import ErrorCode
from worker.engines.torch.randomness import uniform
from worker.engines.torch.textless import Textless

_FIRST_SORTED = 1024  # tokens; a nucleus is nearly always smaller, and sorting a vocabulary is slow


class SamplingError(RuntimeError):
    """The model's logits hold no usable distribution."""

    code = ErrorCode.INTERNAL


class NothingToChoose(SamplingError):
    """Every token is forbidden, by what the request asks for."""

    code = ErrorCode.INVALID_ARGUMENT


class Restriction(Protocol):
    """What may come next, such as a grammar."""

    def restrict(self, logits: torch.Tensor, output_ids: Sequence[int]) -> None:
        """Set what may not come next to -inf in `logits` float32 [vocabulary]. Raises SamplingError."""


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """One token to choose. `output_ids` are those before it; their number is its position."""

    params: SamplingParams
    sequence: int
    prompt_ids: Sequence[int]
    output_ids: Sequence[int]
    grammar: Restriction | None = None


@dataclass(frozen=True, slots=True)
class SampledToken:
    token_id: int
    logprobs: TokenLogprobs | None


def sample(
    logits: torch.Tensor, rows: Sequence[SamplingRow], textless: Textless | None = None
) -> list[SampledToken | SamplingError]:
    """`logits` float32 [len(rows), vocabulary]; row i is for `rows[i]`. A row's error is its own."""
    peaks, best = logits.max(dim=-1)
    return [
        _sample_row(logits[index], row, peak, token_id, textless)
        for index, (row, peak, token_id) in enumerate(zip(rows, peaks.tolist(), best.tolist(), strict=True))
    ]


def _sample_row(
    logits: torch.Tensor, row: SamplingRow, peak: float, best: int, textless: Textless | None
) -> SampledToken | SamplingError:
    if not math.isfinite(peak):
        return SamplingError(f"the model's largest logit is {peak}")
    try:
        is_best = _is_plain_greedy(row) and (textless is None or best not in textless)
        token_id = best if is_best else _choose(logits, row, textless)
    except SamplingError as error:
        return error
    wanted = row.params.logprobs
    return SampledToken(token_id, None if wanted is None else token_logprobs(logits, token_id, wanted))


def token_logprobs(logits: torch.Tensor, token_id: int, num_top: int) -> TokenLogprobs:
    """The log-probabilities of `token_id` and the `num_top` most likely tokens under `logits` float32 [vocabulary]."""
    logprobs = torch.log_softmax(logits, dim=-1)
    chosen = logprobs[token_id]
    top: tuple[tuple[int, float], ...] = ()
    if num_top > 0:
        values, ids = logprobs.topk(min(num_top, logprobs.shape[-1]))
        top = tuple(zip(ids.tolist(), values.tolist(), strict=True))
    rank = int((logprobs > chosen).sum()) + 1
    return TokenLogprobs(token_id, float(chosen), rank, top)


def _is_plain_greedy(row: SamplingRow) -> bool:
    params = row.params
    return (
        params.temperature == 0.0
        and row.grammar is None
        and params.presence_penalty == params.frequency_penalty == 0.0
        and params.repetition_penalty == 1.0
        and not params.logit_bias
        and not params.bad_words_ids
        and len(row.output_ids) >= params.min_tokens
    )


def _choose(raw: torch.Tensor, row: SamplingRow, textless: Textless | None) -> int:
    logits = raw.clone()
    _penalise(logits, row)
    _forbid(logits, row)
    if textless is not None:
        textless.forbid(logits)
    if row.grammar is not None:
        row.grammar.restrict(logits, row.output_ids)
    peak, best = logits.max(dim=-1)
    if not math.isfinite(peak):
        raise NothingToChoose("no token is left to choose from")
    if row.params.temperature == 0.0:
        return int(best)
    # Relative to the peak, so that no temperature overflows.
    probs = torch.softmax((logits.double() - peak) / row.params.temperature, dim=-1)
    return _draw(probs, row.params, uniform(row.params.seed, row.sequence, len(row.output_ids)))


def _penalise(logits: torch.Tensor, row: SamplingRow) -> None:
    params = row.params
    if params.repetition_penalty != 1.0:
        seen = torch.tensor(sorted({*row.prompt_ids, *row.output_ids}), dtype=torch.int64, device=logits.device)
        values = logits[seen]
        penalty = params.repetition_penalty
        logits[seen] = torch.where(values > 0, values / penalty, values * penalty)
    if row.output_ids and (params.presence_penalty or params.frequency_penalty):
        counts = Counter(row.output_ids)
        ids = torch.tensor(list(counts), device=logits.device)
        times = torch.tensor(list(counts.values()), device=logits.device, dtype=logits.dtype)
        logits[ids] -= params.presence_penalty + params.frequency_penalty * times
    for token_id, bias in params.logit_bias.items():
        logits[token_id] += bias


def _forbid(logits: torch.Tensor, row: SamplingRow) -> None:
    if len(row.output_ids) < row.params.min_tokens:
        logits[[token_id for token_id in row.params.stop_token_ids if token_id < len(logits)]] = -torch.inf
    for words in row.params.bad_words_ids:
        prefix = words[:-1]
        if not prefix or tuple(row.output_ids[-len(prefix) :]) == prefix:
            logits[words[-1]] = -torch.inf


def _draw(probs: torch.Tensor, params: SamplingParams, u: float) -> int:
    """Inverse transform sampling in vocabulary order: the first token whose cumulated probability exceeds `u`."""
    floor = params.min_p * float(probs.max())
    if 0 < params.top_k < len(probs):
        floor = max(floor, float(probs.topk(params.top_k).values[-1]))
    # Few are left as a rule, and whatever follows costs little.
    kept_ids = (probs >= floor).nonzero()[:, 0] if floor > 0 else None
    kept = probs if kept_ids is None else probs[kept_ids]
    if params.top_p < 1.0:
        nucleus = _nucleus(kept, params.top_p)
        kept_ids = nucleus if kept_ids is None else kept_ids[nucleus]
        kept = kept[nucleus]
    cumulated = kept.cumsum(dim=-1)
    index = int(torch.searchsorted(cumulated, u * cumulated[-1], right=True))
    if index == len(kept):
        index = int(kept.nonzero()[-1])  # rounding pushed u * total up to the total
    return index if kept_ids is None else int(kept_ids[index])


def _nucleus(probs: torch.Tensor, top_p: float) -> torch.Tensor:
    """Indexes, ascending, of the smallest set of mass >= `top_p` (Holtzman et al. 2020); of equals the first."""
    wanted = top_p * probs.sum()
    num_sorted = min(_FIRST_SORTED, len(probs))
    while True:
        ordered = probs.topk(num_sorted).values
        before = ordered.cumsum(dim=-1) - ordered
        if num_sorted == len(probs) or before[-1] >= wanted:
            break
        num_sorted = min(num_sorted * 8, len(probs))
    num_kept = int((before < wanted).sum())
    smallest = ordered[num_kept - 1]
    kept = (probs >= smallest).nonzero()[:, 0]
    num_surplus = len(kept) - num_kept
    if num_surplus > 0:
        last_equals = (probs[kept] == smallest).nonzero()[-num_surplus:, 0]
        is_kept = torch.ones(len(kept), dtype=torch.bool, device=kept.device)
        is_kept[last_equals] = False
        kept = kept[is_kept]
    return kept
