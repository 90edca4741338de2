import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protos.sampling_messages import SamplingParams
from worker.engines.torch.kernels.library import load_library
from worker.engines.torch.sampling.compiled_drawer import CompiledDrawer
from worker.engines.torch.sampling.drawing import Draw, Drawer, TorchDrawer
from worker.engines.torch.sampling.sampler import SampledToken, Sampler, SamplingError, SamplingRow, token_logprobs
from worker.engines.torch.sampling.seen_tokens import SeenTokens

PROBABILITIES = [0.4, 0.3, 0.15, 0.1, 0.05]
LOGITS = [math.log(p) for p in PROBABILITIES]
CHI_SQUARE_LIMIT = {1: 10.8, 2: 13.8, 3: 16.3, 4: 18.5}  # 0.999 quantiles by degrees of freedom

GREEDY = SamplingParams(temperature=0.0)


_drawers: list[Callable[[int], Drawer]] = []  # the one that is tested, for a size of vocabulary


def compiled_drawer(vocab_size: int) -> Drawer:
    library = load_library()
    if library is None:
        pytest.skip("no C compiler")
    return CompiledDrawer(library, 2, vocab_size)


@pytest.fixture(autouse=True, scope="module", params=["torch", "compiled"])
def drawer(request: pytest.FixtureRequest) -> Iterator[None]:
    _drawers.append(compiled_drawer if request.param == "compiled" else lambda vocab_size: TorchDrawer())
    yield
    _drawers.pop()


def sample(logits: torch.Tensor, rows: Sequence[SamplingRow]) -> list[SampledToken | SamplingError]:
    return Sampler(drawer=_drawers[-1](logits.shape[1])).sample(logits, rows)


def row(
    params: SamplingParams, output_ids: Sequence[int] = (), prompt_ids: Sequence[int] = (0,), sequence: int = 0
) -> SamplingRow:
    return SamplingRow(params, sequence, SeenTokens(prompt_ids), output_ids)


def choose(
    logits: Sequence[float], params: SamplingParams, output_ids: Sequence[int] = (), prompt_ids: Sequence[int] = (0,)
) -> int:
    (token,) = sample(torch.tensor([logits]), [row(params, output_ids, prompt_ids)])
    assert isinstance(token, SampledToken), token
    return token.token_id


def draws(params: SamplingParams, count: int = 2000, logits: Sequence[float] = LOGITS) -> Counter[int]:
    """Tokens chosen with the seeds 0 … count - 1."""
    rows = [row(dataclasses.replace(params, seed=seed)) for seed in range(count)]
    tokens = sample(torch.tensor([logits] * count), rows)
    return Counter(token.token_id for token in tokens if isinstance(token, SampledToken))


def expect_distribution(seen: Counter[int], probabilities: dict[int, float]) -> None:
    assert set(seen) == set(probabilities), seen
    total, mass = sum(seen.values()), sum(probabilities.values())
    expected = {token_id: total * p / mass for token_id, p in probabilities.items()}
    chi_square = sum((seen[token_id] - count) ** 2 / count for token_id, count in expected.items())
    assert chi_square < CHI_SQUARE_LIMIT[len(expected) - 1], (seen, expected)


def test_greedy_takes_the_most_likely_and_of_equals_the_first() -> None:
    assert choose([1.0, 3.0, 2.0], GREEDY) == 1
    assert choose([1.0, 3.0, 3.0], GREEDY) == 1


def test_draws_follow_the_distribution() -> None:
    expect_distribution(draws(SamplingParams()), dict(enumerate(PROBABILITIES)))


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_temperature_sharpens_and_flattens(temperature: float) -> None:
    expected = {index: p ** (1 / temperature) for index, p in enumerate(PROBABILITIES)}
    expect_distribution(draws(SamplingParams(temperature=temperature)), expected)


@pytest.mark.parametrize("temperature", [1e-4, 1e-300, 5e-324])
def test_hardly_any_temperature_is_greedy(temperature: float) -> None:
    assert draws(SamplingParams(temperature=temperature), 50) == {0: 50}


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        (SamplingParams(top_k=2), 2),
        (SamplingParams(top_k=-1), 5),
        (SamplingParams(top_k=100), 5),
        (SamplingParams(top_p=0.69), 2),
        (SamplingParams(top_p=0.71), 3),
        (SamplingParams(top_p=1e-9), 1),
        (SamplingParams(min_p=0.3), 3),
        (SamplingParams(min_p=1.0), 1),
        (SamplingParams(top_k=4, top_p=0.7), 2),  # of the four, which are 0.95 together
        (SamplingParams(min_p=0.2, top_k=3), 3),
    ],
)
def test_unlikely_tokens_are_left_out(params: SamplingParams, kept: int) -> None:
    seen = draws(params, 1000)
    if kept == 1:
        assert set(seen) == {0}
    else:
        expect_distribution(seen, dict(enumerate(PROBABILITIES[:kept])))


def test_of_equals_at_the_edge_of_the_nucleus_the_first_stay() -> None:
    assert set(draws(SamplingParams(top_p=0.5), 200, [0.0] * 4)) == {0, 1}
    assert set(draws(SamplingParams(top_p=0.6), 200, [0.0, 0.0, 5.0, 0.0])) == {2}


def test_a_nucleus_larger_than_what_is_sorted_first() -> None:
    seen = draws(SamplingParams(top_p=0.9), 100, [0.0] * 5000)
    assert max(seen) < 4500 and len(seen) > 90


def test_presence_and_frequency_penalties_count_the_output() -> None:
    logits = [2.0, 1.5, 0.0]
    presence, frequency = (
        SamplingParams(temperature=0.0, presence_penalty=1.0),
        SamplingParams(temperature=0.0, frequency_penalty=0.3),
    )
    assert choose(logits, presence) == choose(logits, frequency) == 0
    assert choose(logits, presence, output_ids=[0]) == 1
    assert choose(logits, presence, output_ids=[0, 0, 1]) == 0
    assert choose(logits, frequency, output_ids=[0]) == 0
    assert choose(logits, frequency, output_ids=[0, 0]) == 1
    assert choose(logits, presence, prompt_ids=[0]) == 0  # the prompt does not count
    favoured = SamplingParams(temperature=0.0, presence_penalty=-2.0)
    assert choose(logits, favoured, output_ids=[1]) == 1


def test_repetition_penalty_counts_prompt_and_output() -> None:
    params = SamplingParams(temperature=0.0, repetition_penalty=2.0)
    assert choose([2.0, 1.5], params, prompt_ids=[1]) == 0
    assert choose([2.0, 1.5], params, prompt_ids=[0]) == 1
    assert choose([2.0, 1.5], params, prompt_ids=[1], output_ids=[0]) == 0
    assert choose([-2.0, -1.5], params, prompt_ids=[1, 1]) == 0  # negative ones are multiplied
    assert choose([2.0, 1.5], SamplingParams(temperature=0.0, repetition_penalty=0.5), prompt_ids=[1]) == 1


def test_logit_bias() -> None:
    assert choose(LOGITS, SamplingParams(temperature=0.0, logit_bias={4: 100.0})) == 4
    seen = draws(SamplingParams(logit_bias={0: -100.0, 1: math.log(2)}), 1000)
    expect_distribution(seen, {1: 0.6, 2: 0.15, 3: 0.1, 4: 0.05})


def test_min_tokens_holds_the_end_back() -> None:
    params = SamplingParams(temperature=0.0, min_tokens=2, stop_token_ids=(0, 3, 10**6))
    assert choose(LOGITS, params) == choose(LOGITS, params, output_ids=[1]) == 1
    assert choose(LOGITS, params, output_ids=[1, 1]) == 0
    assert choose(LOGITS, SamplingParams(temperature=0.0, min_tokens=2)) == 0


def test_bad_words_never_complete() -> None:
    params = SamplingParams(temperature=0.0, bad_words_ids=((0,), (2, 3, 1)))
    assert choose(LOGITS, params) == 1
    assert choose(LOGITS, params, output_ids=[2, 3]) == 2
    assert choose(LOGITS, params, output_ids=[2, 3, 4]) == 1
    assert choose(LOGITS, params, output_ids=[3]) == 1
    assert choose(LOGITS, SamplingParams(temperature=0.0, bad_words_ids=((0, 0),)), prompt_ids=[0]) == 0


@pytest.mark.parametrize("params", [GREEDY, SamplingParams()])
def test_when_nothing_is_left_it_is_an_error_and_no_token(params: SamplingParams) -> None:
    forbidding = dataclasses.replace(params, bad_words_ids=((0,), (1,)))
    (token,) = sample(torch.tensor([[1.0, 2.0]]), [row(forbidding)])
    assert isinstance(token, SamplingError)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("params", [GREEDY, SamplingParams(), SamplingParams(top_p=0.5, logprobs=2)])
def test_a_broken_row_is_its_own_error(value: float, params: SamplingParams) -> None:
    logits = torch.tensor([LOGITS, LOGITS, LOGITS])
    logits[1] = torch.tensor([value] * 5 if value < 0 else [0.0, value, 0.0, 0.0, 0.0])
    before, broken, after = sample(logits, [row(params)] * 3)
    assert isinstance(broken, SamplingError)
    assert before == after == sample(logits[:1], [row(params)])[0]


def test_logprobs_are_the_models_own() -> None:
    params = SamplingParams(temperature=0.0, logit_bias={3: 100.0}, logprobs=2)
    (token,) = sample(torch.tensor([LOGITS]), [row(params)])
    assert isinstance(token, SampledToken) and token.logprobs is not None
    assert (token.token_id, token.logprobs.token_id, token.logprobs.rank) == (3, 3, 4)
    assert token.logprobs.logprob == pytest.approx(LOGITS[3], abs=1e-6)
    assert [token_id for token_id, _ in token.logprobs.top] == [0, 1]
    assert [value for _, value in token.logprobs.top] == pytest.approx(LOGITS[:2], abs=1e-6)


def test_logprobs_only_when_asked_for_and_no_more_than_there_are() -> None:
    (silent,) = sample(torch.tensor([LOGITS]), [row(GREEDY)])
    assert isinstance(silent, SampledToken) and silent.logprobs is None
    assert token_logprobs(torch.tensor(LOGITS), 1, 0).top == ()
    assert len(token_logprobs(torch.tensor(LOGITS), 1, 20).top) == 5
    assert token_logprobs(torch.tensor([1.0, 1.0, 2.0]), 1, 0).rank == 2  # equals share a rank


@st.composite
def any_params(draw: st.DrawFn) -> SamplingParams:
    return SamplingParams(
        temperature=draw(st.sampled_from([0.0, 0.3, 1.0, 1.9])),
        top_p=draw(st.floats(0.01, 1.0)),
        top_k=draw(st.integers(-1, 12)),
        min_p=draw(st.sampled_from([0.0, 0.1, 0.9])),
        presence_penalty=draw(st.floats(-2, 2)),
        frequency_penalty=draw(st.floats(-2, 2)),
        repetition_penalty=draw(st.floats(0.1, 2)),
        logit_bias=draw(st.dictionaries(st.integers(0, 7), st.floats(-100, 100), max_size=2)),
        min_tokens=draw(st.integers(0, 3)),
        seed=draw(st.integers(0, 2**63)),
        logprobs=draw(st.sampled_from([None, 0, 3])),
        stop_token_ids=draw(st.sampled_from([(), (2,)])),
        bad_words_ids=draw(st.sampled_from([(), ((1,), (3, 4))])),
    )


@st.composite
def any_row(draw: st.DrawFn) -> tuple[list[float], SamplingRow]:
    logits = draw(st.lists(st.floats(-20, 20, width=16), min_size=8, max_size=8))
    ids = st.lists(st.integers(0, 7), max_size=6)
    return logits, row(draw(any_params()), draw(ids), draw(ids), draw(st.integers(0, 3)))


@given(st.lists(any_row(), min_size=1, max_size=5))
@settings(max_examples=100, deadline=None)
def test_who_else_is_in_the_batch_changes_nothing(
    rows: list[tuple[list[float], SamplingRow]],
) -> None:
    alone = [sample(torch.tensor([logits]), [one])[0] for logits, one in rows]
    together = sample(torch.tensor([logits for logits, _ in rows]), [one for _, one in rows])
    backwards = sample(torch.tensor([logits for logits, _ in reversed(rows)]), [one for _, one in reversed(rows)])
    assert alone == together == backwards[::-1]


@given(any_row())
@settings(max_examples=200, deadline=None)
def test_a_token_is_among_those_that_the_definition_leaves(case: tuple[list[float], SamplingRow]) -> None:
    """The candidates worked out slowly and plainly, with a little tolerance at every edge."""
    logits, one = case
    params, output_ids = one.params, list(one.output_ids)
    adjusted = list(logits)
    for token_id in one.seen.ids(output_ids).tolist():
        value = adjusted[token_id]
        adjusted[token_id] = value / params.repetition_penalty if value > 0 else value * params.repetition_penalty
    for token_id, count in Counter(output_ids).items():
        adjusted[token_id] -= params.presence_penalty + params.frequency_penalty * count
    for token_id, bias in params.logit_bias.items():
        adjusted[token_id] += bias
    forbidden = set(params.stop_token_ids) if len(output_ids) < params.min_tokens else set()
    forbidden |= {word[-1] for word in params.bad_words_ids if not word[:-1] or output_ids[-1:] == list(word[:-1])}
    allowed = [token_id for token_id in range(8) if token_id not in forbidden]
    (token,) = sample(torch.tensor([logits]), [one])
    assert isinstance(token, SampledToken) and token.token_id in allowed
    peak = max(adjusted[token_id] for token_id in allowed)
    if params.temperature == 0.0:
        assert adjusted[token.token_id] == pytest.approx(peak, abs=1e-4)
        return
    weights = {i: math.exp((adjusted[i] - peak) / params.temperature) for i in allowed}
    ranked = sorted(allowed, key=lambda i: -weights[i])
    if 0 < params.top_k < 8:
        ranked = [i for i in ranked if weights[i] >= weights[ranked[min(params.top_k, len(ranked)) - 1]] * (1 - 1e-4)]
    ranked = [i for i in ranked if weights[i] >= params.min_p * (1 - 1e-4)]
    mass = sum(weights[i] for i in ranked)
    nucleus: list[int] = []
    before = 0.0
    for i in ranked:
        if before < params.top_p * mass * (1 + 1e-4) or not nucleus:
            nucleus.append(i)
        before += weights[i]
    assert any(weights[token.token_id] >= weights[i] * (1 - 1e-4) for i in nucleus), (token, nucleus, weights)


def test_the_penalties_of_a_growing_output_are_those_of_the_whole() -> None:
    seen, output_ids = SeenTokens(range(100)), []
    for token_id in [5, 5, 300, 7, *range(200, 400), 300]:
        output_ids.append(token_id)
        assert sorted(seen.ids(output_ids)) == sorted({*range(100), *output_ids})
        ids, times = seen.output_counts(output_ids)
        assert dict(zip(ids.tolist(), times.tolist(), strict=True)) == Counter(output_ids)


@given(st.integers(0, 2**32), st.integers(0, 300), st.floats(0.01, 1.0), st.sampled_from([0.0, 0.01, 0.5]))
@settings(max_examples=100, deadline=None)
def test_both_ways_of_drawing_choose_alike(seed: int, top_k: int, top_p: float, min_p: float) -> None:
    """Unless the number drawn, or the edge of a nucleus, lies within rounding of where tokens meet."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(20, 700, generator=generator) * 3
    draws = [Draw(one, float(torch.rand(1, generator=generator)), 0.7, min_p, top_k, top_p) for one in logits]
    compiled, plain = compiled_drawer(700).draw(draws), TorchDrawer().draw(draws)
    assert sum(ours != theirs for ours, theirs in zip(compiled, plain, strict=True)) <= 1
