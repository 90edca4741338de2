import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protos.sampling_messages import SamplingParams, TokenLogprobs
from protos.session_messages import Stage, Start
from worker.engines.compute_engine import FirstToken, HandOffError, Run
from worker.legs.hand_off import check_record, make_record

VOCAB_SIZE = 512
START = Start(1, "r", Stage.PREFILL, (5, 6, 7), SamplingParams(), output_ids=(8,), sequences=(0, 2))
FIRST_TOKENS = [
    FirstToken(0, 11, TokenLogprobs(11, -0.1, 1, ((11, -0.1), (3, -2.75)))),
    FirstToken(2, 12, None),
]


def run(start: Start = START, model: str = "model") -> Run:
    return Run.of(start, 1, model, 0.0)


RECORD = make_record(run(), FIRST_TOKENS)


def test_what_prefill_chose_arrives_as_it_was() -> None:
    decoding = run(dataclasses.replace(START, stage=Stage.DECODE, leg=77, request_id="other"))
    assert check_record(RECORD, decoding, VOCAB_SIZE).first_tokens == tuple(FIRST_TOKENS)


@pytest.mark.parametrize(
    ("other", "model"),
    [
        (dataclasses.replace(START, prompt_ids=(5, 6, 9)), "model"),
        (dataclasses.replace(START, prompt_ids=(5, 6)), "model"),
        (dataclasses.replace(START, output_ids=(9,)), "model"),
        (dataclasses.replace(START, output_ids=()), "model"),
        (dataclasses.replace(START, cache_salt="salt"), "model"),
        (START, "another"),
    ],
)
def test_kv_of_other_tokens_is_refused(other: Start, model: str) -> None:
    with pytest.raises(HandOffError, match="other tokens"):
        check_record(RECORD, run(other, model), VOCAB_SIZE)


@pytest.mark.parametrize("sequences", [(0,), (0, 1), (2, 0), (0, 2, 3)])
def test_first_tokens_of_other_sequences_are_refused(sequences: tuple[int, ...]) -> None:
    with pytest.raises(HandOffError, match="sequences"):
        check_record(RECORD, run(dataclasses.replace(START, sequences=sequences)), VOCAB_SIZE)


@pytest.mark.parametrize("token_id", [-1, VOCAB_SIZE, 2**40])
def test_a_first_token_that_is_none_is_refused(token_id: int) -> None:
    record = make_record(run(), [FIRST_TOKENS[0], FirstToken(2, token_id, None)])
    with pytest.raises(HandOffError, match=str(token_id)):
        check_record(record, run(), VOCAB_SIZE)


def test_a_split_between_prompt_and_output_does_not_matter() -> None:
    """A resumed leg's KV is that of all its tokens, whoever emitted them."""
    whole = dataclasses.replace(START, prompt_ids=(5, 6, 7, 8), output_ids=())
    check_record(RECORD, run(whole), VOCAB_SIZE)


@given(st.binary(max_size=200))
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(HandOffError):
        check_record(data, run(), VOCAB_SIZE)


@given(st.integers(0, len(RECORD) - 1), st.integers(1, 255))
@settings(max_examples=300)
def test_a_damaged_record_is_refused_or_says_something_sensible(position: int, flip: int) -> None:
    damaged = bytearray(RECORD)
    damaged[position] ^= flip
    try:
        record = check_record(bytes(damaged), run(), VOCAB_SIZE)
    except HandOffError:
        return
    assert all(0 <= token.token_id < VOCAB_SIZE for token in record.first_tokens)
    assert tuple(token.sequence for token in record.first_tokens) == START.sequences


@given(st.integers(0, len(RECORD) - 1))
def test_a_cut_record_is_refused(length: int) -> None:
    with pytest.raises(HandOffError):
        check_record(RECORD[:length], run(), VOCAB_SIZE)
