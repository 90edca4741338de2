"""R1: a worker whose engine fails is left alone until one leg through it has generated."""

from master.routing.circuit import (
    FAILURES_IN_A_ROW,
    MAX_PAUSE_S,
    MIN_PAUSE_S,
    RELAPSE_S,
    WINDOW_S,
    Circuit,
    CircuitState,
)

CLOSED, HALF_OPEN, OPEN = CircuitState.CLOSED, CircuitState.HALF_OPEN, CircuitState.OPEN


def opened(now_s: float = 0.0) -> Circuit:
    circuit = Circuit()
    for _ in range(FAILURES_IN_A_ROW):
        circuit.fail(now_s)
    return circuit


def test_failures_in_a_row_open_it_however_slowly_they_come() -> None:
    circuit = Circuit()
    for number in range(FAILURES_IN_A_ROW - 1):
        circuit.fail(number * 100.0)
    assert (circuit.state, circuit.may_ask(1000.0)) == (CLOSED, True)
    circuit.fail(1000.0)
    assert (circuit.state, circuit.may_ask(1000.0)) == (OPEN, False)


def test_a_large_share_opens_it_though_others_succeed() -> None:
    circuit = Circuit()
    for number in range(4):
        circuit.succeed(number)
    circuit.fail(4.0)
    circuit.succeed(4.5)
    circuit.fail(5.0)
    assert circuit.state is CLOSED
    circuit.succeed(5.5)
    circuit.fail(6.0)  # three of nine
    assert circuit.state is OPEN


def test_a_small_share_never_does() -> None:
    circuit = Circuit()
    for number in range(100):
        for part in range(4):
            circuit.succeed(number + part / 10)
        circuit.fail(number + 0.9)
    assert circuit.state is CLOSED


def test_what_is_long_past_does_not_count() -> None:
    circuit = Circuit()
    circuit.fail(0.0)
    circuit.fail(1.0)
    circuit.succeed(2.0)
    circuit.fail(2.0 + WINDOW_S)
    assert circuit.state is CLOSED


def test_single_probes_go_through_after_the_pause() -> None:
    circuit = opened()
    assert circuit.next_probe_s(0.0) == MIN_PAUSE_S
    assert not circuit.may_ask(MIN_PAUSE_S - 0.01)
    assert circuit.may_ask(MIN_PAUSE_S)
    circuit.ask(MIN_PAUSE_S)
    assert (circuit.state, circuit.may_ask(MIN_PAUSE_S)) == (HALF_OPEN, False)
    assert circuit.may_ask(2 * MIN_PAUSE_S), "a probe that is never heard of again blocks nothing"


def test_only_a_token_closes_it() -> None:
    circuit = opened()
    circuit.succeed(0.5)  # begun before it opened
    assert circuit.state is OPEN
    circuit.ask(1.0)
    circuit.succeed(1.5)
    assert (circuit.state, circuit.may_ask(1.5)) == (CLOSED, True)
    circuit.fail(1.6)
    assert circuit.state is CLOSED, "it begins with a clean slate"


def test_failed_probes_lengthen_the_pause_up_to_a_limit() -> None:
    circuit, now_s, pauses = opened(), 0.0, []
    for _ in range(6):
        probe_s = circuit.next_probe_s(now_s)
        assert probe_s is not None
        pauses.append(probe_s - now_s)
        now_s = probe_s
        circuit.ask(now_s)
        circuit.fail(now_s)
        assert circuit.state is OPEN
    assert pauses == [1.0, 2.0, 4.0, 8.0, MAX_PAUSE_S, MAX_PAUSE_S]


def test_failures_of_what_was_under_way_do_not() -> None:
    circuit = opened()
    for _ in range(20):
        circuit.fail(0.1)
    assert circuit.next_probe_s(0.1) == MIN_PAUSE_S


def test_a_relapse_goes_on_with_the_pause_it_had() -> None:
    for closed_for_s, pause_s in ((1.0, 2 * MIN_PAUSE_S), (RELAPSE_S, MIN_PAUSE_S)):
        circuit = opened()
        circuit.ask(1.0)
        circuit.succeed(1.0)
        now_s = 1.0 + closed_for_s
        for _ in range(FAILURES_IN_A_ROW):
            circuit.fail(now_s)
        assert circuit.next_probe_s(now_s) == now_s + pause_s
