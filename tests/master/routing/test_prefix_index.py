"""What all workers hold, in one index."""

import random

import pytest

from master.routing.prefix_index import CLEARED_AT_ONCE, HeldBlocks, PrefixIndex


def chain(length: int, name: int = 0) -> list[bytes]:
    return [(name << 64 | number).to_bytes(16, "big") for number in range(length)]


def holders(index: PrefixIndex, **depths: int) -> dict[str, HeldBlocks]:
    held = {name: HeldBlocks(index, name) for name in depths}
    for name, depth in depths.items():
        held[name].add(chain(depth))
    return held


class CountedKeys(dict[bytes, int]):
    num_gets = 0

    def get(self, key: bytes, default: int = 0) -> int:  # type: ignore[override]
        self.num_gets += 1
        return super().get(key, default)


def test_those_that_hold_most_come_first() -> None:
    index = PrefixIndex()
    holders(index, none=0, few=3, most=90, many=50)
    assert index.deepest(chain(100), 9) == ["most", "many", "few"]
    assert index.deepest(chain(100), 1) == ["most"]
    assert index.deepest(chain(1), 1) != []
    assert index.deepest(chain(100, name=7), 9) == index.deepest([], 9) == []


def test_those_that_hold_the_same_take_turns() -> None:
    index = PrefixIndex()
    holders(index, a=5, b=5, c=5)
    assert {index.deepest(chain(5), 1)[0] for _ in range(3)} == {"a", "b", "c"}


def test_a_long_prompt_costs_few_looks_however_many_hold_it() -> None:
    index = PrefixIndex()
    holders(index, **{f"w-{number}": 6250 for number in range(40)})
    index._holders = counted = CountedKeys(index._holders)
    assert len(index.deepest(chain(6250), 8)) == 8
    assert counted.num_gets < 20


def test_a_worker_that_left_is_not_found_and_its_blocks_go_little_by_little() -> None:
    index = PrefixIndex()
    held = holders(index, gone=3 * CLEARED_AT_ONCE, stays=2)
    held["gone"].clear()
    assert index.deepest(chain(100), 9) == ["stays"]
    for _ in range(5):
        held["stays"].add([])
    assert len(index) == 2
    held["gone"].add(chain(4))
    assert index.deepest(chain(100), 9) == ["gone", "stays"]


def test_a_full_index_takes_only_what_it_has(caplog: pytest.LogCaptureFixture) -> None:
    index = PrefixIndex(max_blocks=10)
    held = holders(index, first=10, second=20)
    assert held["second"].blocks == set(chain(10))
    assert (len(index), index.num_left_out, len(caplog.records)) == (10, 10, 1)
    held["first"].remove(chain(10)[5:])
    held["second"].remove(chain(10)[5:])
    held["second"].add(chain(20))
    assert (len(index), held["first"].blocks) == (10, set(chain(5)))


def test_it_agrees_with_sets_whatever_happens() -> None:
    choose, index = random.Random(5), PrefixIndex()
    held = holders(index, **{f"w-{number}": 0 for number in range(6)})
    for _ in range(500):
        worker, keys = held[choose.choice(list(held))], chain(30, choose.randrange(3))
        have = sum(key in worker.blocks for key in keys)
        match choose.randrange(5):
            case 0:
                worker.clear()
            case 1:
                worker.remove(keys[choose.randint(0, have) :])
            case _:
                worker.add(keys[: choose.randint(0, 30)])
        depths = {name: sum(key in other.blocks for key in keys) for name, other in held.items()}
        found = index.deepest(keys, 99)
        assert set(found) == {name for name, depth in depths.items() if depth}
        assert [depths[name] for name in found] == sorted((depths[name] for name in found), reverse=True)
