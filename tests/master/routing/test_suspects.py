"""R5: a request that kills its workers is found at the second one, and nobody else is taken for it."""

from master.routing.suspects import CLEARED_TOKENS, ISOLATION_S, Suspects


def test_the_second_loss_under_a_suspect_ends_it() -> None:
    suspects = Suspects()
    assert not suspects.lost("req-1", began_s=0.0, now_s=1.0, num_tokens=5)
    assert suspects.lost("req-1", began_s=1.1, now_s=2.0, num_tokens=5)


def test_new_tokens_clear_it() -> None:
    suspects = Suspects()
    for number in range(10):
        assert not suspects.lost("req-1", began_s=float(number), now_s=number + 0.5, num_tokens=number * 10)
        assert not suspects.progressed("req-1", number * 10 + CLEARED_TOKENS - 1)
        assert suspects.progressed("req-1", number * 10 + CLEARED_TOKENS)
        assert not suspects.progressed("req-1", number * 10 + CLEARED_TOKENS), "once"
    assert len(suspects) == 0


def test_two_workers_lost_at_once_are_one_loss() -> None:
    suspects = Suspects()
    assert not suspects.lost("req-1", began_s=0.0, now_s=5.0, num_tokens=0)
    assert not suspects.lost("req-1", began_s=1.0, now_s=5.2, num_tokens=0), "sequences that stood apart"


def test_suspects_keep_apart() -> None:
    suspects = Suspects()
    for name in ("req-1", "req-2"):
        suspects.lost(name, 0.0, 1.0, 0)
    suspects.begin("req-1", "mix-0")
    suspects.begin("req-3", "mix-1")  # nobody suspects it
    assert set(suspects.to_avoid("req-2", 2.0)) == {"mix-0"}
    assert set(suspects.to_avoid("req-1", 2.0)) == set()
    assert suspects.end("req-1", "mix-0")
    assert set(suspects.to_avoid("req-2", 2.0)) == set()
    assert not suspects.end("req-1", "mix-0"), "harmless twice"


def test_a_cleared_suspect_gives_way() -> None:
    suspects = Suspects()
    suspects.lost("req-1", 0.0, 1.0, 0)
    suspects.begin("req-1", "mix-0")
    assert suspects.clear("req-1")
    assert set(suspects.to_avoid("req-2", 2.0)) == set()
    assert not suspects.end("req-1", "mix-0")


def test_the_wait_for_a_place_is_bounded() -> None:
    suspects = Suspects()
    assert suspects.isolated_until_s("req-1") is None
    suspects.lost("req-1", 0.0, 7.0, 0)
    assert suspects.isolated_until_s("req-1") == 7.0 + ISOLATION_S
    suspects.lost("req-2", 0.0, 7.0, 0)
    suspects.begin("req-2", "mix-0")
    assert set(suspects.to_avoid("req-1", 6.9 + ISOLATION_S)) == {"mix-0"}
    assert set(suspects.to_avoid("req-1", 7.0 + ISOLATION_S)) == set()
