"""Pure functions: which of the able workers is taken."""

from dataclasses import replace

import pytest

from master.routing.policies import POLICIES, round_robin, soonest
from master.routing.router import pick_decode, pick_first
from master.routing.views import PromptView, WorkerView
from protos.block_hash import extend_chain, root_hash
from protos.session_messages import PrefillSpeed, Role, Stage
from tests.master.routing.test_router import worker

PROMPT = tuple(range(1000))
BLOCK_SIZE = 4
FAST, SLOW = PrefillSpeed(0.0, 0.00001), PrefillSpeed(0.0, 0.01)


def prompt(num_tokens: int = 20, max_tokens: int = 20, num_sequences: int = 1) -> PromptView:
    return PromptView(PROMPT[:num_tokens], num_tokens + max_tokens, "", num_sequences)


def cached(num_tokens: int) -> frozenset[bytes]:
    chain: list[bytes] = []
    extend_chain(chain, root_hash("tiny", ""), PROMPT, num_tokens, BLOCK_SIZE)
    return frozenset(chain)


def first(*candidates: WorkerView, what: PromptView | None = None) -> str:
    return soonest(candidates, prompt() if what is None else what, Stage.PREFILL).name


def decode(*candidates: WorkerView, what: PromptView | None = None) -> str:
    return soonest(candidates, prompt() if what is None else what, Stage.DECODE).name


def test_prefill_goes_where_the_first_token_comes_soonest() -> None:
    busy = worker("a", Role.MIX, queued_prefill_tokens=500)
    slow = worker("b", Role.MIX, queued_prefill_tokens=400, prefill_speed=SLOW)
    fast = worker("c", Role.MIX, queued_prefill_tokens=500, prefill_speed=FAST)
    idle = worker("d", Role.MIX)
    assert first(slow, fast) == "c"
    assert first(busy, idle) == "d"


def test_what_each_request_costs_besides_its_tokens_counts() -> None:
    """R17: 400 tokens in one request are computed sooner than 200 in twenty."""
    speed = PrefillSpeed(0.05, 0.001)
    few = worker("few", Role.PREFILL, queued_requests=1, queued_prefill_tokens=400, prefill_speed=speed)
    many = worker("many", Role.PREFILL, queued_requests=20, queued_prefill_tokens=200, prefill_speed=speed)
    assert first(many, few) == "few"


def test_a_new_worker_gets_work_though_its_speed_is_not_known() -> None:
    known = worker("a", Role.MIX, queued_prefill_tokens=1000, prefill_speed=FAST, last_used=1)
    assert first(known, worker("b", Role.MIX)) == "b"


def test_prefill_goes_where_the_prompt_is_cached() -> None:
    cold, warm = worker("a", Role.PREFILL), worker("b", Role.PREFILL, cached_blocks=cached(12), last_used=9)
    assert first(cold, warm) == "b"


@pytest.mark.parametrize("role", [Role.MIX, Role.PREFILL])
def test_a_hot_prefix_spreads_once_waiting_costs_more_than_computing_it(role: Role) -> None:
    """R31: a hundred users of one system prompt on four workers."""
    workers = [worker(f"w-{number}", role, num_blocks=5000, available_blocks=5000) for number in range(4)]
    workers[0] = replace(workers[0], cached_blocks=cached(960))
    taken = {view.name: 0 for view in workers}
    for number in range(1, 101):
        what = prompt(1000, max_tokens=64)
        name = first(*workers, what=what)
        taken[name] += 1
        at = int(name.rpartition("-")[2])
        chosen = workers[at]
        workers[at] = replace(
            chosen,
            last_used=number,
            running_sequences=chosen.running_sequences + 1,
            queued_prefill_tokens=chosen.queued_prefill_tokens + 1000 - what.cached_tokens(chosen),
            cached_blocks=cached(960),
        )
    assert taken["w-0"] == max(taken.values()), "the warm one is used first"
    assert min(taken.values()) >= 10, taken


def test_a_worker_without_room_waits_for_none() -> None:
    full = worker("a", Role.MIX, available_blocks=2)
    crowded = worker("b", Role.MIX, max_num_seqs=4, running_sequences=3)
    busy = worker("c", Role.MIX, queued_prefill_tokens=500)
    assert first(full, crowded, busy, what=prompt(num_sequences=2)) == "c"
    assert first(full, what=prompt()) == "a"


def test_decode_goes_to_the_least_loaded_that_has_room() -> None:
    full = worker("a", Role.DECODE, available_blocks=1)
    busy = worker("b", Role.DECODE, running_sequences=9)
    assert decode(full, busy) == "b"
    assert decode(full) == "a"


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("stage", [Stage.PREFILL, Stage.DECODE])
def test_idle_workers_take_turns(policy: str, stage: Stage) -> None:
    """R36: one request at a time, and speeds that were measured differ a little."""
    role = Role.PREFILL if stage is Stage.PREFILL else Role.DECODE
    workers = {
        name: worker(name, role, prefill_speed=PrefillSpeed(0.0, 0.001 * (1 + number / 50)))
        for number, name in enumerate("abcd")
    }
    names = []
    for number in range(1, 9):
        chosen = POLICIES[policy](list(workers.values()), prompt(), stage)
        workers[chosen.name] = replace(chosen, last_used=number)
        names.append(chosen.name)
    assert names == list("abcdabcd")


def test_round_robin_looks_at_no_load() -> None:
    busy = worker("a", Role.MIX, queued_prefill_tokens=5000, last_used=1)
    idle = worker("b", Role.MIX, last_used=2)
    assert round_robin([busy, idle], prompt(), Stage.PREFILL) == busy


def test_the_router_asks_the_policy_it_is_given() -> None:
    """It still says who is able."""
    prefill = worker("p", Role.PREFILL)
    decoders = [worker("d-0", Role.DECODE, last_used=5), worker("d-1", Role.DECODE, running_sequences=9)]
    route = pick_first([prefill, *decoders], prompt(), (), round_robin)
    assert route is not None and route.worker == prefill
    assert pick_decode(decoders, prefill, prompt(), (), round_robin) == decoders[1]
    assert pick_decode(decoders, prefill, prompt(), (), soonest) == decoders[0]
