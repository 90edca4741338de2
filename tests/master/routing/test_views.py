"""What the router is told of prompts and workers."""

import pytest

from master.routing.views import PromptView, WorkerView
from protos.block_hash import extend_chain, root_hash
from protos.session_messages import Role


def worker(block_size: int = 4, model: str = "tiny", cached: tuple[bytes, ...] = ()) -> WorkerView:
    return WorkerView(
        name="mix-0",
        role=Role.MIX,
        model=model,
        transfer_protocol=1,
        layout_fingerprint=b"layout",
        block_size=block_size,
        num_blocks=10,
        max_context=1000,
        max_num_seqs=8,
        queued_requests=0,
        queued_prefill_tokens=0,
        running_sequences=0,
        available_blocks=10,
        prefill_speed=None,
        cached_blocks=frozenset(cached),
        last_used=0,
    )


def chain(num_tokens: int, block_size: int = 4, model: str = "tiny", salt: str = "") -> tuple[bytes, ...]:
    hashes: list[bytes] = []
    extend_chain(hashes, root_hash(model, salt), range(num_tokens), num_tokens, block_size)
    return tuple(hashes)


@pytest.mark.parametrize(("num_tokens", "blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2)])
def test_blocks_hold_tokens_rounded_up(num_tokens: int, blocks: int) -> None:
    assert worker().blocks_for(num_tokens) == blocks


@pytest.mark.parametrize(("num_tokens", "expected"), [(1, 0), (3, 0), (4, 3), (5, 4), (8, 7), (11, 8)])
def test_the_last_token_is_never_cached(num_tokens: int, expected: int) -> None:
    prompt = PromptView(range(num_tokens), 100, "")
    assert prompt.cached_tokens(worker(cached=chain(100))) == expected


def test_only_a_prefix_counts() -> None:
    hashes = chain(12)
    prompt = PromptView(range(13), 100, "")
    assert prompt.cached_tokens(worker(cached=(hashes[0], hashes[2]))) == 4
    assert prompt.cached_tokens(worker(cached=hashes[1:])) == 0


def test_another_salt_model_or_block_size_is_another_prompt() -> None:
    prompt = PromptView(range(20), 100, "salt")
    assert prompt.cached_tokens(worker(cached=chain(20))) == 0
    assert prompt.cached_tokens(worker(cached=chain(20, salt="salt"))) == 19
    assert prompt.cached_tokens(worker(model="other", cached=chain(20, salt="salt"))) == 0
    assert prompt.cached_tokens(worker(block_size=8, cached=chain(20, 8, salt="salt"))) == 16


def test_a_view_that_changed_is_looked_at_again() -> None:
    prompt = PromptView(range(20), 100, "")
    assert prompt.cached_tokens(worker()) == 0
    assert prompt.cached_tokens(worker(cached=chain(8))) == 8


@pytest.mark.parametrize("num_cached", [0, 1, 2, 31, 32, 33, 99, 100])
def test_the_end_of_a_cached_prefix_is_found(num_cached: int) -> None:
    prompt = PromptView(range(401), 1000, "")
    assert prompt.cached_tokens(worker(cached=chain(4 * num_cached))) == 4 * num_cached
