import math
from typing import Unpack

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from master.errors import ErrorKind, ServingError
from master.request import GenerationRequest, RequestOptions
from master.service import ModelCard
from master.validation import Limits, build_generation_request
from protos.sampling_messages import Grammar, GrammarKind, SamplingOptions, SamplingParams

VOCAB_SIZE = 1000
EOS_IDS = (2, 3)
CONTEXT = 100
CARD = ModelCard("demo", CONTEXT, created=1)


def encode(text: str) -> list[int]:
    return [ord(character) for character in text]


NOTHING_SET = RequestOptions()
MAX_SEED = 2**63 - 1


def asking(**options: Unpack[SamplingOptions]) -> RequestOptions:
    return RequestOptions(sampling=options)


LIMITS = Limits(CONTEXT)


def build(
    options: RequestOptions = NOTHING_SET, prompt: tuple[int, ...] = (5, 6), limits: Limits = LIMITS
) -> GenerationRequest:
    return build_generation_request(
        prompt,
        options,
        model=CARD,
        vocab_size=VOCAB_SIZE,
        eos_token_ids=EOS_IDS,
        limits=limits,
        encode=encode,
        new_id=lambda: "r1",
        now=lambda: 12.5,
        new_seed=lambda: 77,
    )


def test_what_is_unset_gets_its_default() -> None:
    assert build() == GenerationRequest(
        id="r1",
        model="demo",
        prompt_ids=(5, 6),
        sampling=SamplingParams(max_tokens=CONTEXT - 2, temperature=1.0, seed=77, stop_token_ids=EOS_IDS),
        arrived_s=12.5,
        time_limit_s=600.0,
    )


def test_everything_that_is_set_arrives() -> None:
    grammar = Grammar(GrammarKind.REGEX, "a+")
    sampling = SamplingOptions(
        n=3,
        max_tokens=9,
        min_tokens=4,
        temperature=0.0,
        top_p=0.5,
        top_k=7,
        min_p=0.25,
        presence_penalty=-2,
        frequency_penalty=2,
        repetition_penalty=1.5,
        logit_bias={7: -100, 8: 1.5},
        seed=MAX_SEED,
        logprobs=0,
        prompt_logprobs=20,
        stop=["a", "b", "a"],
        stop_token_ids=[9, 3],
        include_stop_str_in_output=True,
        skip_special_tokens=False,
        bad_words=["x"],
        priority=-100,
        cache_salt="tenant",
    )
    options = RequestOptions(sampling=sampling, grammar=grammar, time_limit_s=1.5)
    assert build(options) == GenerationRequest(
        id="r1",
        model="demo",
        prompt_ids=(5, 6),
        sampling=SamplingParams(
            max_tokens=9,
            min_tokens=4,
            temperature=0.0,
            top_p=0.5,
            top_k=7,
            min_p=0.25,
            presence_penalty=-2,
            frequency_penalty=2,
            repetition_penalty=1.5,
            logit_bias={7: -100, 8: 1.5},
            seed=MAX_SEED,
            logprobs=0,
            prompt_logprobs=20,
            stop_token_ids=(2, 3, 9),
            bad_words_ids=((ord("x"),), (ord(" "), ord("x"))),
            grammar=grammar,
        ),
        arrived_s=12.5,
        time_limit_s=1.5,
        n=3,
        stop=("a", "b"),
        include_stop=True,
        skip_special_tokens=False,
        priority=-100,
        cache_salt="tenant",
    )


NAN, INFINITY = math.nan, math.inf


@pytest.mark.parametrize(
    ("field", "values", "allowed"),
    [
        ("n", [0, -1, 129, 10**5000], "1 … 128"),
        ("max_tokens", [0, -1, -(10**5000)], "at least 1"),
        ("min_tokens", [-1], "at least 0"),
        ("min_tokens", [99, 10**5000], "max_tokens is only 98"),
        ("temperature", [-1, -0.001, NAN, 1e308, INFINITY, 2.001], "0 … 2"),
        ("top_p", [0, -1, 1.001, NAN], "more than 0 and at most 1"),
        ("top_k", [-5, -2, 2**31], "-1 … 2^31-1"),
        ("min_p", [-0.1, 1.1, NAN], "0 … 1"),
        ("presence_penalty", [9, -2.1, NAN], "-2 … 2"),
        ("frequency_penalty", [9, -2.1, NAN], "-2 … 2"),
        ("repetition_penalty", [0, -1, 2.1, NAN, INFINITY], "more than 0 and at most 2"),
        ("logit_bias", [{VOCAB_SIZE: 1}, {-1: 1}], f"0 … {VOCAB_SIZE - 1}"),
        ("logit_bias", [{1: 101}, {1: -101}, {1: NAN}], "-100 … 100"),
        ("logit_bias", [dict.fromkeys(range(1025), 0.0)], "1024"),
        ("seed", [-(2**63) - 1, 2**63], "-2^63 … 2^63-1"),
        ("logprobs", [-1, 21], "0 … 20"),
        ("prompt_logprobs", [-1, 21], "0 … 20"),
        ("stop", [[""], ["a", ""], ["x" * 1025]], "1 … 1024"),
        ("stop", [[str(number) for number in range(17)]], "at most 16"),
        ("stop_token_ids", [[VOCAB_SIZE], [-1]], f"0 … {VOCAB_SIZE - 1}"),
        ("stop_token_ids", [[1] * 1025], "1024"),
        ("bad_words", [[""], ["x" * 1025]], "1 … 1024"),
        ("bad_words", [["  "]], "blanks"),
        ("bad_words", [["x"] * 1025], "1024"),
        ("priority", [101, -101], "-100 … 100"),
        ("cache_salt", ["x" * 257], "256"),
    ],
)
def test_a_value_out_of_range_is_refused_naming_field_and_range(field: str, values: list[object], allowed: str) -> None:
    for value in values:
        with pytest.raises(ServingError) as refused:
            build(RequestOptions(sampling=msgspec.convert({field: value}, SamplingOptions)))
        error = refused.value
        assert (error.kind, error.field, error.code) == (ErrorKind.INVALID_REQUEST, field, None)
        assert error.message.startswith(field) and allowed in error.message
        assert len(error.message) < 300


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("n", [1, 128]),
        ("temperature", [0, 2]),
        ("top_p", [1e-9, 1]),
        ("min_p", [0, 1]),
        ("repetition_penalty", [0.01, 2]),
        ("seed", [-(2**63), 0, MAX_SEED]),
        ("logprobs", [0, 20]),
        ("priority", [-100, 100]),
        ("cache_salt", ["", "x" * 256]),
        ("stop", [["x" * 1024], [str(number) for number in range(16)]]),
        ("stop_token_ids", [[0, VOCAB_SIZE - 1]]),
        ("logit_bias", [{0: -100, VOCAB_SIZE - 1: 100}, {}]),
        ("min_tokens", [0, CONTEXT - 2]),
        ("max_tokens", [1, CONTEXT - 2]),
    ],
)
def test_the_ends_of_a_range_belong_to_it(field: str, values: list[object]) -> None:
    for value in values:
        build(RequestOptions(sampling=msgspec.convert({field: value}, SamplingOptions)))


@pytest.mark.parametrize("asked", [0, -1.0, math.nan])
def test_a_time_limit_that_is_none_is_refused(asked: float) -> None:
    with pytest.raises(ServingError, match="time_limit_s is"):
        build(RequestOptions(time_limit_s=asked))


def test_stops_and_bad_words_are_bounded_in_all() -> None:
    """C1: what a request may cost the master does not grow with how many texts there may be."""
    for field, most in (("stop", 4), ("bad_words", 16)):
        build(RequestOptions(sampling=msgspec.convert({field: ["x" * 1024] * most}, SamplingOptions)))
        with pytest.raises(ServingError, match=f"{field} has {most * 1024 + 1} characters in all") as refused:
            options = RequestOptions(sampling=msgspec.convert({field: ["x" * 1024] * most + ["x"]}, SamplingOptions))
            build(options)
        assert refused.value.field == field


def test_a_temperature_too_small_to_divide_by_is_greedy() -> None:
    assert build(asking(temperature=1e-300)).sampling.temperature == 0
    assert build(asking(temperature=0.001)).sampling.temperature == 0.001


def test_ignore_eos_leaves_the_stop_token_ids_of_the_client() -> None:
    assert build(asking(ignore_eos=True, stop_token_ids=[9])).sampling.stop_token_ids == (9,)


def test_bad_words_that_a_tokenizer_spells_one_way_are_listed_once() -> None:
    assert build(asking(bad_words=["x", " x"])).sampling.bad_words_ids == ((120,), (32, 120))


def test_seeds_differ_when_unset() -> None:
    def seed() -> int:
        return build_generation_request(
            (1,),
            RequestOptions(),
            model=CARD,
            vocab_size=VOCAB_SIZE,
            eos_token_ids=EOS_IDS,
            limits=Limits(CONTEXT),
            encode=encode,
            new_id=lambda: "r",
            now=lambda: 0.0,
        ).sampling.seed

    assert seed() != seed()


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ((), "prompt is empty; it must have at least one token"),
        ((1, -1), "prompt[1] is token id -1; ids must be 0 … 999"),
        ((VOCAB_SIZE,), "prompt[0] is token id 1000; ids must be 0 … 999"),
    ],
)
def test_a_prompt_must_be_ids_of_the_vocabulary(prompt: tuple[int, ...], message: str) -> None:
    with pytest.raises(ServingError) as refused:
        build(prompt=prompt)
    assert (refused.value.field, refused.value.message, refused.value.code) == ("prompt", message, None)


def test_more_sequences_than_any_worker_runs_are_refused() -> None:
    """R14: before anything is computed, naming n."""
    limits = Limits(CONTEXT, max_worker_sequences=4)
    assert build(asking(n=4), limits=limits).n == 4
    with pytest.raises(ServingError) as refused:
        build(asking(n=5), limits=limits)
    assert (refused.value.kind, refused.value.field) == (ErrorKind.INVALID_REQUEST, "n")
    assert "at most 4" in refused.value.message


@pytest.mark.parametrize("limits", [Limits(CONTEXT), Limits(CONTEXT + 50), Limits(1000, max_worker_tokens=CONTEXT)])
@pytest.mark.parametrize("num_prompt", [CONTEXT, CONTEXT + 1])
def test_a_prompt_must_leave_room_for_a_token(limits: Limits, num_prompt: int) -> None:
    with pytest.raises(ServingError) as refused:
        build(prompt=(1,) * num_prompt, limits=limits)
    assert (refused.value.field, refused.value.code) == ("prompt", "context_length_exceeded")
    assert str(num_prompt) in refused.value.message and str(CONTEXT) in refused.value.message
    assert build(prompt=(1,) * (CONTEXT - 1), limits=limits).sampling.max_tokens == 1


@pytest.mark.parametrize(("limits", "limit"), [(Limits(60), 60), (Limits(1000), CONTEXT), (Limits(1000, 40), 40)])
def test_prompt_and_max_tokens_must_fit_together(limits: Limits, limit: int) -> None:
    """The smallest counts: the model's context, the configured one or the largest KV pool."""
    prompt = (1,) * 10
    assert build(asking(max_tokens=limit - 10), prompt, limits).sampling.max_tokens == limit - 10
    assert build(RequestOptions(), prompt, limits).sampling.max_tokens == limit - 10
    for asked in (limit - 9, 10**5000):
        with pytest.raises(ServingError) as refused:
            build(asking(max_tokens=asked), prompt, limits)
        assert (refused.value.field, refused.value.code) == ("max_tokens", "context_length_exceeded")
        assert f" {limit} tokens" in refused.value.message and "10 tokens" in refused.value.message


@pytest.mark.parametrize(("num_prompt", "max_tokens"), [(CONTEXT, None), (10, CONTEXT)])
def test_a_full_context_is_told_in_the_words_that_clients_match(num_prompt: int, max_tokens: int | None) -> None:
    """A1: litellm and others look for this sentence before they go on with another model."""
    with pytest.raises(ServingError) as refused:
        build(asking(max_tokens=max_tokens), (1,) * num_prompt)
    assert refused.value.message.startswith(f"This model's maximum context length is {CONTEXT} tokens. ")


anything = st.one_of(st.none(), st.integers(-(2**60), 2**60), st.floats())


@given(
    prompt=st.lists(st.integers(-2, VOCAB_SIZE + 1), max_size=CONTEXT + 5).map(tuple),
    fields=st.fixed_dictionaries(
        {},
        optional={
            name: anything
            for name in ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
        }
        | {
            name: st.one_of(st.none(), st.integers(-(2**70), 2**70), st.integers(-3, 150))
            for name in ("n", "max_tokens", "min_tokens", "top_k", "seed", "logprobs", "prompt_logprobs", "priority")
        }
        | {
            "stop": st.lists(st.text(max_size=5), max_size=20),
            "stop_token_ids": st.lists(st.integers(-1, VOCAB_SIZE), max_size=5),
            "logit_bias": st.dictionaries(st.integers(-1, VOCAB_SIZE), st.floats(), max_size=5),
        },
    ),
)
def test_whatever_passes_is_in_range(prompt: tuple[int, ...], fields: dict[str, object]) -> None:
    options = RequestOptions(sampling=msgspec.convert(fields, SamplingOptions))
    try:
        request = build(options, prompt)
    except ServingError as error:
        assert error.kind is ErrorKind.INVALID_REQUEST
        assert error.field == "prompt" or error.field in fields
        return
    sampling = request.sampling
    assert len(request.prompt_ids) >= 1 and len(request.prompt_ids) + sampling.max_tokens <= CONTEXT
    assert all(0 <= token_id < VOCAB_SIZE for token_id in (*request.prompt_ids, *sampling.stop_token_ids))
    assert 0 <= sampling.min_tokens <= sampling.max_tokens
    assert sampling.temperature == 0 or 1e-4 <= sampling.temperature <= 2
    assert 0 < sampling.top_p <= 1 and 0 <= sampling.min_p <= 1 and -1 <= sampling.top_k < 2**31
    assert -MAX_SEED - 1 <= sampling.seed <= MAX_SEED and 1 <= request.n <= 128
    assert all(math.isfinite(bias) for bias in sampling.logit_bias.values())
    assert all(request.stop) and len(request.stop) <= 16
    numbers = (sampling.max_tokens, sampling.min_tokens, sampling.top_k, sampling.seed, request.n, request.priority)
    assert all(type(number) is int for number in numbers)


def test_the_largest_worker_may_be_away_for_a_moment() -> None:
    """R23: what fits it is not refused; what has no limit of its own takes what is there."""
    limits = Limits(CONTEXT, max_worker_tokens=40, present_tokens=20)
    assert build(asking(max_tokens=38), limits=limits).sampling.max_tokens == 38
    assert build(limits=limits).sampling.max_tokens == 18
    with pytest.raises(ServingError):
        build(asking(max_tokens=39), limits=limits)
    assert build(prompt=(1,) * 30, limits=limits).sampling.max_tokens == 10
