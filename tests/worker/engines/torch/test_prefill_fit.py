"""The line through the steps: R17."""

import pytest

from worker.engines.torch.prefill_fit import PrefillFit

STEP_S, TOKEN_S = 0.004, 0.0001


def fitted(*sizes: int) -> PrefillFit:
    fit = PrefillFit()
    for size in sizes:
        fit.add(size, STEP_S + size * TOKEN_S)
    return fit


def test_nothing_is_known_before_the_first_step() -> None:
    assert PrefillFit().speed() is None


def test_steps_of_different_sizes_give_both_figures() -> None:
    speed = fitted(512, 512, 100, 256, 8).speed()
    assert speed is not None
    assert speed.step_s == pytest.approx(STEP_S)
    assert speed.token_s == pytest.approx(TOKEN_S)


def test_cache_hits_do_not_make_a_worker_look_slow() -> None:
    """R17: thirty of them after a few prompts that were computed."""
    speed = fitted(512, 512, 512, 300, *[8] * 30).speed()
    assert speed is not None
    assert speed.token_s == pytest.approx(TOKEN_S)
    assert speed.step_s + 16_000 * speed.token_s == pytest.approx(STEP_S + 16_000 * TOKEN_S)


@pytest.mark.parametrize("size", [1, 512])
def test_steps_of_one_size_are_taken_as_proportional(size: int) -> None:
    speed = fitted(*[size] * 40).speed()
    assert speed is not None
    assert speed.step_s == 0.0
    assert speed.token_s == pytest.approx(STEP_S / size + TOKEN_S)


def test_a_slope_that_makes_no_sense_is_not_believed() -> None:
    fit = PrefillFit()
    fit.add(10, 1.0)  # the first step of a process
    fit.add(512, 0.1)
    speed = fit.speed()
    assert speed is not None and speed.step_s == 0.0 and speed.token_s > 0.0


def test_the_latest_steps_count() -> None:
    fit = fitted(*[512, 256] * 50)
    for size in [512, 256] * 400:
        fit.add(size, size * 3 * TOKEN_S)
    speed = fit.speed()
    assert speed is not None and speed.token_s == pytest.approx(3 * TOKEN_S, rel=0.01)
