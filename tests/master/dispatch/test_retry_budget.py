"""How often what failed may be tried again."""

from master.dispatch.retry_budget import MAX_FAILURES, MAX_FAILURES_IN_A_ROW, Failures, RetryBudget

BURST = 10


def spend_all(budget: RetryBudget) -> int:
    spent = 0
    while budget.try_spend():
        spent += 1
    return spent


def test_a_burst_is_free_and_then_it_is_over() -> None:
    budget = RetryBudget(0.1, BURST)
    assert spend_all(budget) == BURST
    assert not budget.try_spend()


def test_a_tenth_of_the_traffic_may_be_tried_again() -> None:
    budget = RetryBudget(0.1, BURST)
    spend_all(budget)
    for _ in range(45):
        budget.count_request()
    assert spend_all(budget) == 4


def test_a_quiet_time_saves_up_no_more_than_a_burst() -> None:
    budget = RetryBudget(0.1, BURST)
    for _ in range(10_000):
        budget.count_request()
    assert spend_all(budget) == BURST


def test_failures_in_a_row_end_a_request() -> None:
    failures = Failures()
    for _ in range(MAX_FAILURES_IN_A_ROW - 1):
        failures = failures.another(has_progressed=False)
        assert failures.may_try_again
    assert not failures.another(has_progressed=False).may_try_again


def test_progress_begins_a_new_row_but_not_for_ever() -> None:
    failures = Failures()
    for _ in range(MAX_FAILURES - 1):
        failures = failures.another(has_progressed=True)
        assert failures.may_try_again
    assert not failures.another(has_progressed=True).may_try_again
