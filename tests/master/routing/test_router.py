"""Pure functions: which worker gets what."""

from dataclasses import replace

import pytest

from master.routing.router import missing_route, pick_decode, pick_first, pick_last_resort
from master.routing.views import PromptView, WorkerView
from protos.block_hash import extend_chain, root_hash
from protos.session_messages import Role, Stage

PROMPT = tuple(range(20))


def worker(name: str, role: Role, **changes: object) -> WorkerView:
    view = WorkerView(
        name=name,
        role=role,
        model="tiny",
        layout_fingerprint=b"layout",
        block_size=4,
        queued_prefill_tokens=0,
        running_sequences=0,
        available_blocks=100,
        num_blocks=100,
        max_context=1000,
        prefill_tokens_per_s=0.0,
        cached_blocks=frozenset(),
    )
    return replace(view, **changes)  # type: ignore[arg-type]


def prompt(max_total_tokens: int = 40) -> PromptView:
    return PromptView(PROMPT, max_total_tokens, "")


def cached(num_blocks: int) -> frozenset[bytes]:
    chain: list[bytes] = []
    extend_chain(chain, root_hash("tiny", ""), PROMPT, len(PROMPT), 4)
    return frozenset(chain[:num_blocks])


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


def test_prefill_goes_where_the_first_token_comes_soonest() -> None:
    busy = worker("a", Role.MIX, queued_prefill_tokens=500)
    slow = worker("b", Role.MIX, queued_prefill_tokens=400, prefill_tokens_per_s=100.0)
    fast = worker("c", Role.MIX, queued_prefill_tokens=500, prefill_tokens_per_s=100_000.0)
    idle = worker("d", Role.MIX)
    assert pick_first([slow, fast], prompt(), ()).worker == fast  # type: ignore[union-attr]
    assert pick_first([busy, idle], prompt(), ()).worker == idle  # type: ignore[union-attr]


def test_a_new_worker_gets_work_though_its_speed_is_not_known() -> None:
    known = worker("a", Role.MIX, queued_prefill_tokens=1, prefill_tokens_per_s=100_000.0)
    new = worker("b", Role.MIX)
    assert pick_first([known, new], prompt(), ()).worker == new  # type: ignore[union-attr]


def test_prefill_goes_where_the_prompt_is_cached() -> None:
    cold, warm = worker("a", Role.PREFILL), worker("b", Role.PREFILL, cached_blocks=cached(3))
    assert pick_first([cold, warm, DECODE], prompt(), ()).worker == warm  # type: ignore[union-attr]


def test_decode_goes_to_the_least_loaded_that_has_room() -> None:
    full = worker("a", Role.DECODE, available_blocks=1)
    busy = worker("b", Role.DECODE, running_sequences=9)
    assert pick_decode([full, busy, PREFILL], PREFILL, prompt(), ()) == busy
    assert pick_decode([full, PREFILL], PREFILL, prompt(), ()) == full


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
    small = worker("small", Role.PREFILL, num_blocks=5)
    assert pick_first([small, DECODE], prompt(200), ()).worker == small  # type: ignore[union-attr]


def test_the_last_resort_is_any_role() -> None:
    route = pick_last_resort([PREFILL], prompt(), ())
    assert route is not None
    assert (route.worker, route.stage) == (PREFILL, Stage.WHOLE)
    assert pick_last_resort([DECODE, PREFILL], prompt(), {"decode-0"}).worker == PREFILL  # type: ignore[union-attr]
    assert pick_last_resort([], prompt(), ()) is None
    assert pick_last_resort([worker("small", Role.DECODE, num_blocks=2)], prompt(), ()) is None
