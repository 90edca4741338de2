"""Draws tokens from logits that have everything in them but temperature and what is left out for being unlikely.

Order, as in vLLM: temperature, min_p, top_k, top_p, draw.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

_FIRST_SORTED = 1024  # tokens; a nucleus is nearly always smaller, and sorting a vocabulary is slow


@dataclass(frozen=True, slots=True)
class Draw:
    """One token to draw from `logits` float32 [vocabulary] by `u`, which is uniform in [0, 1).

    Temperature 0 takes the first of the largest. `top_k` 0 is no limit.
    """

    logits: torch.Tensor
    u: float
    temperature: float
    min_p: float
    top_k: int
    top_p: float


class Drawer(Protocol):
    def draw(self, draws: Sequence[Draw]) -> list[int | None]:
        """The token of each; None where no logit is finite. None depends on the others."""


class TorchDrawer:
    def draw(self, draws: Sequence[Draw]) -> list[int | None]:
        return [_token(draw) for draw in draws]


def _token(draw: Draw) -> int | None:
    peak, best = draw.logits.max(dim=-1)
    if not math.isfinite(peak):
        return None
    if draw.temperature == 0.0:
        return int(best)
    # Relative to the peak, so that no temperature overflows.
    return _drawn(torch.softmax((draw.logits.double() - peak) / draw.temperature, dim=-1), draw)


def _drawn(probs: torch.Tensor, draw: Draw) -> int:
    """Inverse transform sampling in vocabulary order: the first token whose cumulated probability exceeds `u`."""
    floor = draw.min_p * float(probs.max())
    if 0 < draw.top_k < len(probs):
        floor = max(floor, float(probs.topk(draw.top_k).values[-1]))
    # Few are left as a rule, and whatever follows costs little.
    kept_ids = (probs >= floor).nonzero()[:, 0] if floor > 0 else None
    kept = probs if kept_ids is None else probs[kept_ids]
    if draw.top_p < 1.0:
        nucleus = _nucleus(kept, draw.top_p)
        kept_ids = nucleus if kept_ids is None else kept_ids[nucleus]
        kept = kept[nucleus]
    cumulated = kept.cumsum(dim=-1)
    index = int(torch.searchsorted(cumulated, draw.u * cumulated[-1], right=True))
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
