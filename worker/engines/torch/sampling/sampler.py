"""Chooses tokens from logits: a pure function of the logits, the parameters and the tokens so far.

Order, as in vLLM where it fixes one: penalties, logit_bias, minimum length and bad words, ids without text, grammar,
temperature, min_p, top_k, top_p, draw. Log-probabilities reported are the model's own, before all of that.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from protos.sampling_messages import SamplingParams, TokenLogprobs
from protos.session_messages import ErrorCode
from worker.engines.torch.sampling.drawing import Draw, Drawer, TorchDrawer
from worker.engines.torch.sampling.randomness import uniform
from worker.engines.torch.sampling.seen_tokens import SeenTokens
from worker.engines.torch.textless import Textless


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
    seen: SeenTokens  # the sequence's own
    output_ids: Sequence[int]
    grammar: Restriction | None = None


@dataclass(frozen=True, slots=True)
class SampledToken:
    token_id: int
    logprobs: TokenLogprobs | None


class Sampler:
    def __init__(self, textless: Textless | None = None, drawer: Drawer | None = None) -> None:
        self._textless = textless
        self._drawer: Drawer = drawer or TorchDrawer()

    def sample(self, logits: torch.Tensor, rows: Sequence[SamplingRow]) -> list[SampledToken | SamplingError]:
        """`logits` float32 [len(rows), vocabulary]; row i is for `rows[i]`. A row's error is its own."""
        peaks, best = (found.tolist() for found in logits.max(dim=-1))
        chosen: list[int | SamplingError | Draw] = [
            self._choose(logits[index], row, peaks[index], best[index]) for index, row in enumerate(rows)
        ]
        drawn = iter(self._drawer.draw([choice for choice in chosen if isinstance(choice, Draw)]))
        tokens = [next(drawn) if isinstance(choice, Draw) else choice for choice in chosen]
        return [_told(logits[index], row, tokens[index]) for index, row in enumerate(rows)]

    def _choose(self, logits: torch.Tensor, row: SamplingRow, peak: float, best: int) -> int | SamplingError | Draw:
        if not math.isfinite(peak):
            return SamplingError(f"the model's largest logit is {peak}")
        if _is_plain_greedy(row) and (self._textless is None or best not in self._textless):
            return best
        try:
            return self._prepared(logits.clone(), row)
        except SamplingError as error:
            return error

    def _prepared(self, logits: torch.Tensor, row: SamplingRow) -> Draw:
        _penalise(logits, row)
        _forbid(logits, row)
        if self._textless is not None:
            self._textless.forbid(logits)
        if row.grammar is not None:
            row.grammar.restrict(logits, row.output_ids)
        params = row.params
        u = uniform(params.seed, row.sequence, len(row.output_ids))
        return Draw(logits, u, params.temperature, params.min_p, params.top_k, params.top_p)


def _told(logits: torch.Tensor, row: SamplingRow, token: int | SamplingError | None) -> SampledToken | SamplingError:
    if token is None:
        return NothingToChoose("no token is left to choose from")
    if isinstance(token, SamplingError):
        return token
    wanted = row.params.logprobs
    return SampledToken(token, None if wanted is None else token_logprobs(logits, token, wanted))


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


def _penalise(logits: torch.Tensor, row: SamplingRow) -> None:
    params = row.params
    if params.repetition_penalty != 1.0:
        seen = torch.from_numpy(row.seen.ids(row.output_ids)).to(logits.device)
        values = logits[seen]
        penalty = params.repetition_penalty
        logits[seen] = torch.where(values > 0, values / penalty, values * penalty)
    if row.output_ids and (params.presence_penalty or params.frequency_penalty):
        ids, times = (torch.from_numpy(found).to(logits.device) for found in row.seen.output_counts(row.output_ids))
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
