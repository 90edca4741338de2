"""R2: workers that do not reach each other are kept apart, and tried again."""

from master.routing.pair_health import MAX_PAUSE_S, MIN_PAUSE_S, PairHealth

PAIR = ("prefill-0", "decode-0")


def test_one_failure_marks_the_pair_and_no_other() -> None:
    health = PairHealth()
    assert health.fail(PAIR, 0.0)
    assert not health.may_try(PAIR, 0.0)
    assert health.may_try(("prefill-0", "decode-1"), 0.0)
    assert health.may_try(("prefill-1", "decode-0"), 0.0)
    assert health.marked == [PAIR]


def test_one_request_tries_after_the_pause() -> None:
    health = PairHealth()
    health.fail(PAIR, 0.0)
    assert health.may_try(PAIR, MIN_PAUSE_S)
    health.try_once(PAIR, MIN_PAUSE_S)
    assert not health.may_try(PAIR, MIN_PAUSE_S)
    assert health.may_try(PAIR, 2 * MIN_PAUSE_S), "what is never heard of again blocks nothing"


def test_a_transfer_heals_it() -> None:
    health = PairHealth()
    health.fail(PAIR, 0.0)
    health.try_once(PAIR, MIN_PAUSE_S)
    assert health.succeed(PAIR)
    assert health.may_try(PAIR, MIN_PAUSE_S) and health.marked == []
    assert not health.succeed(PAIR), "nothing changes for a pair that is fine"


def test_the_pause_grows_with_every_try_that_fails() -> None:
    health, now_s, pause_s = PairHealth(), 0.0, MIN_PAUSE_S
    health.fail(PAIR, now_s)
    for _ in range(8):
        assert not health.may_try(PAIR, now_s + pause_s - 0.01)
        now_s += pause_s
        assert health.may_try(PAIR, now_s)
        health.try_once(PAIR, now_s)
        assert not health.fail(PAIR, now_s), "it is said once"
        pause_s = min(pause_s * 2, MAX_PAUSE_S)


def test_what_was_under_way_does_not_lengthen_the_pause() -> None:
    health = PairHealth()
    for _ in range(9):
        health.fail(PAIR, 0.5)
    assert health.may_try(PAIR, 0.5 + MIN_PAUSE_S)


def test_a_worker_that_is_gone_takes_its_marks_with_it() -> None:
    health = PairHealth()
    health.fail(PAIR, 0.0)
    health.fail(("prefill-1", "decode-1"), 0.0)
    health.forget("decode-0")
    assert health.marked == [("prefill-1", "decode-1")]
