"""Pure functions: which worker gets what."""

from dataclasses import replace

import pytest

from master.routing.router import (
    largest_room,
    missing_route,
    most_sequences,
    pick_decode,
    pick_first,
    pick_last_resort,
)
from master.routing.views import PromptView, WorkerView
from protos.session_messages import Role, Stage

PROMPT = tuple(range(20))


def worker(name: str, role: Role, **changes: object) -> WorkerView:
    view = WorkerView(
        name=name,
        role=role,
        model="tiny",
        transfer_protocol=1,
        layout_fingerprint=b"layout",
        block_size=4,
        num_blocks=100,
        max_context=1000,
        max_num_seqs=64,
        queued_requests=0,
        queued_prefill_tokens=0,
        running_sequences=0,
        available_blocks=100,
        prefill_speed=None,
        cached_blocks=frozenset(),
        last_used=0,
    )
    return replace(view, **changes)  # type: ignore[arg-type]


def prompt(max_total_tokens: int = 40, num_sequences: int = 1) -> PromptView:
    return PromptView(PROMPT, max_total_tokens, "", num_sequences)


PREFILL, DECODE = worker("prefill-0", Role.PREFILL), worker("decode-0", Role.DECODE)
MIX, DEFAULT = worker("mix-0", Role.MIX), worker("default-0", Role.DEFAULT)


@pytest.mark.parametrize(
    ("workers", "expected"),
    [
        ([PREFILL, DECODE], ("prefill-0", Stage.PREFILL)),
        ([PREFILL, MIX], ("mix-0", Stage.WHOLE)),
        ([MIX], ("mix-0", Stage.WHOLE)),
        ([DEFAULT], ("default-0", Stage.WHOLE)),
        ([DECODE, DEFAULT], ("default-0", Stage.WHOLE)),
        ([PREFILL], None),
        ([DECODE], None),
        ([PREFILL, DEFAULT], ("default-0", Stage.WHOLE)),
        ([], None),
    ],
)
def test_the_role_says_who_may_begin(workers: list[WorkerView], expected: tuple[str, Stage] | None) -> None:
    route = pick_first(workers, prompt(), ())
    assert (None if route is None else (route.worker.name, route.stage)) == expected
    assert (missing_route(workers) is None) == (expected is not None)


@pytest.mark.parametrize(
    ("workers", "word"),
    [([], "no worker"), ([PREFILL], "DECODE or MIX"), ([DECODE], "PREFILL, MIX or DEFAULT")],
)
def test_a_missing_route_is_named(workers: list[WorkerView], word: str) -> None:
    reason = missing_route(workers)
    assert reason is not None
    assert word in reason


def test_another_layout_cannot_take_over() -> None:
    stranger = replace(DECODE, layout_fingerprint=b"another")
    assert pick_first([PREFILL, stranger], prompt(), ()) is None
    assert pick_decode([PREFILL, stranger], PREFILL, prompt(), ()) is None
    assert pick_decode([PREFILL, stranger, MIX], PREFILL, prompt(), ()) == MIX


def test_decode_goes_to_a_mix_worker_only_without_a_decode_worker() -> None:
    busy = replace(DECODE, running_sequences=50)
    assert pick_decode([MIX, busy], PREFILL, prompt(), ()) == busy
    assert pick_decode([MIX], PREFILL, prompt(), ()) == MIX


def test_a_worker_never_takes_over_from_itself() -> None:
    assert pick_decode([MIX], MIX, prompt(), ()) is None


def test_an_unwanted_worker_never_decodes() -> None:
    other = replace(DECODE, name="decode-1", running_sequences=99)
    assert pick_decode([DECODE, other], PREFILL, prompt(), {"decode-0"}) == other
    assert pick_decode([DECODE], PREFILL, prompt(), {"decode-0"}) is None


def test_a_worker_that_failed_is_the_last_choice_for_the_prompt() -> None:
    other = worker("mix-1", Role.MIX, queued_prefill_tokens=10_000)
    assert pick_first([MIX, other], prompt(), {"mix-0"}).worker == other  # type: ignore[union-attr]
    assert pick_first([MIX], prompt(), {"mix-0"}).worker == MIX  # type: ignore[union-attr]


def test_a_request_that_fits_nowhere_has_no_route() -> None:
    small = worker("small", Role.MIX, num_blocks=9)  # 36 tokens
    assert pick_first([small], prompt(37), ()) is not None  # the last token needs no KV
    assert pick_first([small], prompt(38), ()) is None
    assert pick_first([MIX], prompt(1001), ()) is None


def test_a_prefill_worker_holds_only_the_prompt() -> None:
    small = worker("small", Role.PREFILL, num_blocks=5, max_context=21)
    assert pick_first([small, DECODE], prompt(200), ()).worker == small  # type: ignore[union-attr]


@pytest.mark.parametrize("limit", [{"max_context": 39}, {"num_blocks": 9}, {"max_num_seqs": 2}])
def test_only_workers_that_are_large_enough_are_asked(limit: dict[str, int]) -> None:
    """R8, R14: limits are each worker's own, and a small one takes what fits it."""
    wanted = prompt(40, num_sequences=3)
    for role in (Role.MIX, Role.DEFAULT):
        small, large = worker("a", role, **limit), worker("b", role, running_sequences=60)
        assert pick_first([small, large], wanted, ()).worker == large  # type: ignore[union-attr]
        assert pick_first([small], wanted, ()) is None
        assert pick_first([small], prompt(30), ()) is not None
    small, large = worker("a", Role.DECODE, **limit), worker("b", Role.DECODE, running_sequences=60)
    assert pick_decode([small, large], PREFILL, wanted, ()) == large
    assert pick_first([PREFILL, small], wanted, ()) is None, "nobody could take over"
    assert pick_last_resort([small], wanted, ()) is None


def test_the_limits_of_a_cluster_are_those_of_its_largest_workers() -> None:
    """R8"""
    long = worker("long", Role.MIX, max_context=5000, num_blocks=50, max_num_seqs=4)
    wide = worker("wide", Role.DECODE, max_context=300, num_blocks=1000, max_num_seqs=16)
    prefill = worker("prefill", Role.PREFILL, max_context=9000, num_blocks=9000, max_num_seqs=99)
    assert largest_room([long, prefill]) == 201
    assert largest_room([long, wide, prefill]) == 300
    assert most_sequences([long, wide, prefill]) == 16
    assert largest_room([prefill]) is most_sequences([]) is None


def test_the_last_resort_is_any_role() -> None:
    route = pick_last_resort([PREFILL], prompt(), ())
    assert route is not None
    assert (route.worker, route.stage) == (PREFILL, Stage.WHOLE)
    assert pick_last_resort([DECODE, PREFILL], prompt(), {"decode-0"}).worker == PREFILL  # type: ignore[union-attr]
    assert pick_last_resort([], prompt(), ()) is None
    assert pick_last_resort([worker("small", Role.DECODE, num_blocks=2)], prompt(), ()) is None
