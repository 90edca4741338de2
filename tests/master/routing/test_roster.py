"""In a fleet of a thousand a decision looks at a few, and is as good."""

import random
from dataclasses import replace

from master.routing.policies import POLICIES, SAME_S, SAME_SHARE, soonest
from master.routing.prefix_index import HeldBlocks, PrefixIndex
from master.routing.roster import MAX_EACH, Roster
from master.routing.router import may_begin, pick_first
from master.routing.views import PromptView, WorkerView
from protos.block_hash import extend_chain, root_hash
from protos.session_messages import PrefillSpeed, Role, Stage
from tests.master.routing.test_router import worker


def prompt(num_tokens: int = 400) -> PromptView:
    return PromptView(range(num_tokens), num_tokens + 64, "")


def chain(num_tokens: int) -> list[bytes]:
    hashes: list[bytes] = []
    extend_chain(hashes, root_hash("tiny", ""), range(num_tokens), num_tokens, 4)
    return hashes


def loaded(number: int, load: random.Random, role: Role = Role.MIX) -> WorkerView:
    return worker(
        f"w-{number:04}",
        role,
        num_blocks=5000,
        available_blocks=5000,
        running_sequences=load.randrange(40),
        queued_prefill_tokens=load.randrange(2000),
        prefill_speed=PrefillSpeed(0.01, 0.001),
        last_used=number,
    )


def wait_s(view: WorkerView) -> float:
    num_tokens = view.queued_prefill_tokens + 400 - prompt().cached_tokens(view) + view.running_sequences * 64
    return 0.01 + 0.001 * num_tokens


def test_few_are_looked_at_and_the_best_is_among_them() -> None:
    load, prefixes, looks = random.Random(1), PrefixIndex(), 0

    def is_able(view: WorkerView) -> bool:
        nonlocal looks
        looks += 1
        return may_begin(view, prompt())

    fleet = {view.name: view for view in (loaded(number, load) for number in range(1000))}
    roster = Roster(soonest)
    roster.set(fleet.values())
    for number in range(300):
        view = loaded(load.randrange(1000), load)
        if number % 3 == 0:
            held = HeldBlocks(prefixes, view.name)
            held.add(chain(load.randrange(400)))
            view = replace(view, cached_blocks=held.blocks)
        fleet[view.name] = view
        roster.update(view)
        looks = 0
        few = roster.shortlist(prompt(), Stage.PREFILL, prefixes, is_able)
        assert looks <= 2 * MAX_EACH
        chosen = pick_first(few, prompt(), ())
        assert chosen is not None
        assert wait_s(chosen.worker) <= min(map(wait_s, fleet.values())) * (1 + SAME_SHARE) + SAME_S


def test_those_that_are_not_able_are_passed_over() -> None:
    fleet = [loaded(number, random.Random(number)) for number in range(100)]
    fleet[70] = replace(fleet[70], running_sequences=99, queued_prefill_tokens=10_000)
    for policy in POLICIES.values():
        roster = Roster(policy)
        roster.set(fleet)
        assert roster.shortlist(prompt(), Stage.PREFILL, PrefixIndex(), lambda w: w.name == "w-0070") == [fleet[70]]
        assert roster.shortlist(prompt(), Stage.PREFILL, PrefixIndex(), lambda _: False) == []


def test_decode_workers_are_listed_before_mixed_ones_whatever_their_loads() -> None:
    load = random.Random(2)
    fleet = [loaded(number, load, Role.MIX if number % 2 else Role.DECODE) for number in range(100)]
    roster = Roster(soonest)
    roster.set(fleet)
    few = roster.shortlist(prompt(), Stage.DECODE, PrefixIndex(), lambda _: True)
    assert sum(view.role is Role.DECODE for view in few) == MAX_EACH
    assert min(fleet, key=lambda w: (w.role is Role.MIX, w.running_sequences, w.last_used)) in few


def test_idle_workers_take_turns() -> None:
    """R36, in a fleet where nobody looks at all of them."""
    speeds = random.Random(3)
    fleet = [
        worker(f"w-{number}", Role.MIX, prefill_speed=PrefillSpeed(0.0, 0.001 * speeds.uniform(0.95, 1.05)))
        for number in range(50)
    ]
    roster = Roster(soonest)
    roster.set(fleet)
    taken: set[str] = set()
    for number in range(1, 51):
        few = roster.shortlist(prompt(40), Stage.PREFILL, PrefixIndex(), lambda _: True)
        chosen = soonest(few, prompt(40), Stage.PREFILL)
        taken.add(chosen.name)
        roster.update(replace(chosen, last_used=number))
    assert len(taken) == 50
