import itertools
import math
import subprocess
import sys

from hypothesis import given
from hypothesis import strategies as st

from worker.engines.torch.sampling.randomness import uniform

SEEDS = st.integers(0, 2**64 - 1)
INDEXES = st.integers(0, 2**32 - 1)


@given(SEEDS, INDEXES, INDEXES)
def test_a_number_is_below_one_and_always_the_same(seed: int, sequence: int, position: int) -> None:
    number = uniform(seed, sequence, position)
    assert 0.0 <= number < 1.0
    assert number == uniform(seed, sequence, position)
    assert (number * 2**53).is_integer()


def test_the_numbers_are_those_of_every_version() -> None:
    """A change here would change what seeded requests answer, and what a resumed one continues with."""
    assert [uniform(*place) for place in ((0, 0, 0), (7, 0, 0), (7, 1, 0), (7, 0, 1))] == [
        0.31057982366616577,
        0.45414584552711756,
        0.10488999815437139,
        0.1198917796111143,
    ]


@given(SEEDS, st.integers(0, 127), INDEXES)
def test_sample_i_of_a_seed_is_the_first_sample_of_the_ith_next_seed(seed: int, sequence: int, position: int) -> None:
    assert uniform(seed, sequence, position) == uniform((seed + sequence) % 2**64, 0, position)


def test_a_negative_seed_counts_modulo_two_to_the_64() -> None:
    assert uniform(-1, 0, 3) == uniform(2**64 - 1, 0, 3)
    assert uniform(-(2**63), 2, 0) == uniform(2**63, 2, 0)


def test_another_process_draws_the_same() -> None:
    program = "from worker.engines.torch.sampling.randomness import uniform; print(uniform(2**63, 5, 1000).hex())"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True)
    assert answer.stdout.strip() == uniform(2**63, 5, 1000).hex()


def test_places_next_to_each_other_are_independent() -> None:
    places = list(itertools.product(range(0, 400, 20), range(20), range(20)))
    numbers = [uniform(*place) for place in places]
    assert len(set(numbers)) == len(numbers)
    count, num_bins = len(numbers), 20
    bins = [0] * num_bins
    for number in numbers:
        bins[int(number * num_bins)] += 1
    expected = count / num_bins
    chi_square = sum((seen - expected) ** 2 / expected for seen in bins)
    assert chi_square < 43.8  # 0.999 quantile for 19 degrees of freedom
    mean = sum(numbers) / count
    for neighbour in ((1, 0, 0), (0, 1, 0), (0, 0, 1)):
        shifted = [uniform(*(a + b for a, b in zip(place, neighbour, strict=True))) for place in places]
        covariance = sum((a - mean) * (b - mean) for a, b in zip(numbers, shifted, strict=True)) / count
        assert abs(covariance * 12) < 4 / math.sqrt(count)
