"""Tells rounding from a wrong answer: whether two answers part at a near tie, where either token may come."""

from collections.abc import Sequence
from pathlib import Path

import torch

from protos.sampling_messages import SamplingParams
from tests.faults.load import Difference
from tests.worker.engines.torch.reference import Reference
from worker.engines.torch.sampling.sampler import SampledToken, Sampler, SamplingRow
from worker.engines.torch.sampling.seen_tokens import SeenTokens

TOLERANCE = 1e-4  # between two logits computed alone: what the shape of a batch may move them by
SHARES_OF_TOLERANCE = tuple(2.0**-n for n in range(10))  # too large a step would jump over a token


class NearTies:
    """Judges with the model as plain transformers run it, alone."""

    def __init__(self, model: Path) -> None:
        self._reference = Reference(model)

    def explains(self, difference: Difference) -> bool:
        """Whether every sequence that differs parts from what was expected at a near tie."""
        question = difference.question
        pairs = enumerate(zip(question.expected, difference.got, strict=True))
        return all(
            self._is_near_tie(difference, sequence, expected, got)
            for sequence, (expected, got) in pairs
            if expected != got
        )

    def _is_near_tie(self, difference: Difference, sequence: int, expected: Sequence[int], got: Sequence[int]) -> bool:
        place = next((n for n, pair in enumerate(zip(expected, got, strict=False)) if pair[0] != pair[1]), None)
        if place is None:
            return False  # one is cut short: that is no rounding
        asked = difference.question.asked
        logits = self._reference.logits((*asked.prompt, *expected[:place]))[-1]
        temperature, seed = asked.options.get("temperature"), asked.options.get("seed")
        assert temperature is not None, "the questions say how they are sampled"
        params = SamplingParams(temperature=temperature, seed=seed or 0)
        row = SamplingRow(params, sequence, SeenTokens(asked.prompt), tuple(expected[:place]))
        wanted, other = expected[place], got[place]
        return _can_choose(logits, row, wanted, other) and _can_choose(logits, row, other, wanted)


def _can_choose(logits: torch.Tensor, row: SamplingRow, favoured: int, other: int) -> bool:
    """Whether rounding of some size within the tolerance makes `favoured` come and not `other`.

    A seeded draw falls between tokens in the order of their ids, so every id up to the lower of the two is moved
    against all that follow: that is what moves their boundary farthest.
    """
    lower = min(favoured, other)
    sign = 1.0 if favoured == lower else -1.0
    for share in SHARES_OF_TOLERANCE:
        moved = logits.clone()
        moved[: lower + 1] += sign * share * TOLERANCE / 2
        moved[lower + 1 :] -= sign * share * TOLERANCE / 2
        (token,) = Sampler().sample(moved.unsqueeze(0), [row])
        if isinstance(token, SampledToken) and token.token_id == favoured:
            return True
    return False
