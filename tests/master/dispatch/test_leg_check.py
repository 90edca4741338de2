"""R39: what no engine can have computed, and what shows that one works."""

import pytest

from master.dispatch.leg_check import ImpossibleUpdate, LegCheck
from protos.sampling_messages import FinishReason, SamplingParams, TokenLogprobs
from protos.session_messages import LegUpdate, Stage, Start, TokenDelta

STOP = FinishReason.STOP


def check(stage: Stage = Stage.WHOLE, sequences: tuple[int, ...] = (0, 2)) -> LegCheck:
    """The leg begins after two tokens and may give six more."""
    start = Start(1, "req-1", stage, (10, 11, 12), SamplingParams(max_tokens=8), (1, 2), sequences)
    return LegCheck(start, vocab_size=100)


def said(*deltas: TokenDelta) -> LegUpdate:
    return LegUpdate(1, deltas=deltas)


def test_what_engines_say_is_believed() -> None:
    told = check()
    told.add(said(TokenDelta(0, 2, (99,)), TokenDelta(2, 2, (0, 1))))
    told.add(said(TokenDelta(0, 3, (5,), (TokenLogprobs(5, -1.0),)), TokenDelta(2, 4, (), (), STOP)))
    told.add(said(TokenDelta(0, 4, (1, 2, 3, 4), (), FinishReason.LENGTH)))


@pytest.mark.parametrize(
    ("update", "word"),
    [
        (said(TokenDelta(0, 2, (100,))), "token id 100"),
        (said(TokenDelta(0, 2, (-1,))), "vocabulary"),
        (said(TokenDelta(1, 2, (5,))), "sequence 1"),
        (said(TokenDelta(0, 3, (5,))), "token 3"),
        (said(TokenDelta(0, 0, (5,))), "token 0"),
        (said(TokenDelta(0, 2, tuple(range(7)))), "more than the 8"),
        (said(TokenDelta(0, 2, (5, 6), (TokenLogprobs(5, -1.0),))), "1 log-prob"),
        (said(TokenDelta(0, 2, (5,), (), STOP), TokenDelta(0, 3, (6,))), "after its end"),
        (LegUpdate(1, prompt_logprobs=tuple(TokenLogprobs(5, -1.0) for _ in range(4))), "3 tokens"),
    ],
)
def test_impossible_values_are_named(update: LegUpdate, word: str) -> None:
    with pytest.raises(ImpossibleUpdate, match=word):
        check().add(update)


def test_a_token_that_came_with_the_kv_shows_nothing() -> None:
    for stage, expected in ((Stage.PREFILL, [True, True]), (Stage.DECODE, [False, True]), (Stage.WHOLE, [False, True])):
        told, shown = check(stage), []
        for position in (2, 3):
            told.add(said(TokenDelta(0, position, (5,))))
            shown.append(told.has_generated)
        assert shown == expected


def test_a_whole_leg_that_ends_with_its_first_token_has_worked() -> None:
    told = check(sequences=(0,))
    told.add(said(TokenDelta(0, 2, (5,), (), STOP)))
    assert told.has_generated
