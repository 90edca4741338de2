from itertools import pairwise

import pytest

from client.errors import DeadlineExceeded, InvalidRequest, Overloaded, PdserveError, TooLarge, Unavailable
from client.retries import RetryPolicy

POLICY = RetryPolicy(max_attempts=10, first_wait_s=0.5, longest_wait_s=4.0)


@pytest.mark.parametrize("error", [InvalidRequest("x"), TooLarge("x"), DeadlineExceeded("x"), PdserveError("x")])
def test_what_will_not_change_is_not_tried_again(error: PdserveError) -> None:
    assert POLICY.wait_s(1, error) is None


@pytest.mark.parametrize("error", [Overloaded("x"), Unavailable("x")])
def test_waits_grow_to_a_bound_and_end(error: PdserveError) -> None:
    waits = [POLICY.wait_s(attempts, error) for attempts in range(1, 11)]
    assert waits[0] == 0.5
    assert waits[-1] is None
    assert waits[-2] == 4.0
    known = [wait for wait in waits if wait is not None]
    assert all(earlier <= later <= 4.0 for earlier, later in pairwise(known))


def test_the_server_may_ask_for_more_time_but_not_for_less() -> None:
    assert POLICY.wait_s(1, Overloaded("x", retry_after_s=9)) == 9
    assert POLICY.wait_s(2, Overloaded("x", retry_after_s=0)) == 1.0
