"""The short form of `scripts/faults`: some rows of its table with few requests, and a soak of seconds."""

from pathlib import Path

import pytest

from tests.checkpoints import Family, make_checkpoint
from tests.faults.fault import Fault, Spare
from tests.faults.hosts import can_have_hosts
from tests.faults.run import FaultRun
from tests.faults.soak import soak
from tests.faults.table import FAULTS

NUM_REQUESTS = 64
NUM_CLIENTS = 8
SOAK_S = 20.0
ROWS = [
    ("every step of a decode worker fails", Spare.YES),
    ("decode worker killed, back after 5 s", Spare.NO),
    ("one P-D pair cut, packets dropped", Spare.NO),
    ("one P-D pair cut, connections rejected", Spare.YES),
]


@pytest.fixture(scope="module")
def runs(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> FaultRun:
    other = make_checkpoint(tmp_path_factory.mktemp("other") / tiny_llama.name, Family.LLAMA, 1)
    return FaultRun(tiny_llama, other, num_requests=NUM_REQUESTS, num_clients=NUM_CLIENTS)


def fault_of(name: str) -> Fault:
    (found,) = (fault for fault in FAULTS if fault.name == name)
    return found


@pytest.mark.parametrize(("name", "spare"), ROWS)
def test_a_promise_is_kept(runs: FaultRun, name: str, spare: Spare) -> None:
    """R1, R2, R3"""
    fault = fault_of(name)
    if fault.needs_hosts and not can_have_hosts():
        pytest.skip("cutting connections takes root, and `ip` of the Debian package iproute2")
    row = runs.run(fault, spare)
    assert row.is_kept, row
    assert row.num_requests == NUM_REQUESTS


def test_every_test_of_the_table_is_there() -> None:
    root = Path(__file__).parents[2]
    assert [fault.test for fault in FAULTS if not (root / fault.test).is_file()] == []


def test_random_kills_cost_no_request(tiny_llama: Path) -> None:
    """R4"""
    row = soak(tiny_llama, SOAK_S, num_clients=NUM_CLIENTS, seed=0)
    assert row.is_kept, row
    assert row.num_requests > 0
