"""How many tokens of prompts fit beside decodes: R11."""

import pytest

from worker.engines.torch.step_ceiling import LEAST_TOKENS, StepCeiling, TimeBudget

DECODES_S, TOKEN_S, CONTEXT_S = 0.05, 0.001, 0.000_002


def step_s(num_tokens: int, num_before: int, *, with_decodes: bool = True) -> float:
    """On a machine without noise."""
    mean_before = num_before + num_tokens / 2
    return DECODES_S * with_decodes + num_tokens * (TOKEN_S + mean_before * CONTEXT_S)


def taught(max_step_s: float, *steps: tuple[int, int]) -> StepCeiling:
    ceiling = StepCeiling(max_step_s)
    ceiling.learn_decodes(DECODES_S)
    for num_tokens, num_before in steps:
        ceiling.learn_prompts(num_tokens, num_before + num_tokens / 2, step_s(num_tokens, num_before))
    return ceiling


def test_nothing_is_known_before_the_first_prompt() -> None:
    assert StepCeiling(10.0).budget().room(0) == LEAST_TOKENS


@pytest.mark.parametrize("num_before", [0, 500, 5_000])
def test_a_step_takes_what_the_ceiling_says_however_long_the_context(num_before: int) -> None:
    num_tokens = taught(0.3, (200, 0), (200, 200), (100, 4_000)).budget().room(num_before)
    assert step_s(num_tokens, num_before) == pytest.approx(0.3, rel=0.05)  # a token there takes 0.01 s


def test_a_chunk_becomes_smaller_as_its_prompt_goes_on() -> None:
    ceiling = taught(0.3, (200, 0))
    num_before, slowest_s, sizes = 0, 0.0, []
    while num_before < 5_000:
        num_tokens = ceiling.budget().room(num_before)
        duration_s = step_s(num_tokens, num_before)
        ceiling.learn_prompts(num_tokens, num_before + num_tokens / 2, duration_s)
        num_before += num_tokens
        slowest_s = max(slowest_s, duration_s)
        sizes.append(num_tokens)
    assert slowest_s < 1.5 * 0.3  # of the second chunk, before what stands before a token was seen to cost anything
    assert sizes[-1] < sizes[0] / 5


def test_decodes_that_take_all_the_time_leave_the_least() -> None:
    budget = taught(DECODES_S / 2, (200, 0), (100, 4_000)).budget()
    assert budget.room(0) == budget.room(8_000) == LEAST_TOKENS
    budget.spend(0, LEAST_TOKENS - 1)
    assert budget.room(0) == 1 and not budget.is_spent
    budget.spend(0, 1)
    assert budget.room(0) == 0 and budget.is_spent


def test_what_is_spent_is_no_longer_there() -> None:
    budget = TimeBudget(1.0, TOKEN_S, CONTEXT_S)
    budget.spend(0, budget.room(0) // 2)
    budget.spend(3_000, budget.room(3_000))
    assert budget.room(0) <= 7 and budget.room(3_000) <= 1  # not a whole token there, a few here


def test_one_length_of_prompts_is_taken_as_proportional() -> None:
    num_tokens = taught(0.3, *[(200, 0)] * 10).budget().room(0)
    assert num_tokens == int((0.3 - DECODES_S) / (TOKEN_S + 100 * CONTEXT_S))


def test_a_slow_first_step_is_forgotten() -> None:
    ceiling = taught(0.3)
    ceiling.learn_prompts(LEAST_TOKENS, LEAST_TOKENS / 2, 5.0)
    num_before = LEAST_TOKENS
    for _ in range(200):
        num_tokens = ceiling.budget().room(num_before)
        ceiling.learn_prompts(num_tokens, num_before + num_tokens / 2, step_s(num_tokens, num_before))
        num_before = (num_before + num_tokens) % 2_000
    assert step_s(ceiling.budget().room(0), 0) == pytest.approx(0.3, rel=0.25)


def test_decodes_that_were_slow_once_do_not_hold_up_the_prompt_after_them() -> None:
    ceiling = taught(0.3, (200, 0))
    ceiling.learn_decodes(5.0)
    for num_before in range(0, 800, 200):
        num_tokens = ceiling.budget().room(num_before)
        ceiling.learn_prompts(num_tokens, num_before + num_tokens / 2, step_s(num_tokens, num_before))
    assert step_s(ceiling.budget().room(800), 800) == pytest.approx(0.3, rel=0.25)
