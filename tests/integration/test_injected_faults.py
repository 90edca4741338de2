"""A worker that suffers faults by flag: clients notice nothing, and nothing is held in the end."""

from pathlib import Path

from client.retries import RetryPolicy
from pdserve import Client
from tests.cluster import Cluster
from tests.streams import Asked

ASKED = [
    Asked((*range(10, 70), 100 + n), {"max_tokens": 12, "ignore_eos": True, "temperature": 1.0, "seed": n})
    for n in range(8)
]


def test_a_decode_worker_that_reaches_no_peer_costs_no_request(tiny_llama: Path) -> None:
    """R2, in small."""
    flags_of = {"decode-0": ["--inject_faults=transfer.close@1+"]}
    with (
        Cluster(tiny_llama, ["PREFILL", "DECODE", "DECODE"], flags_of=flags_of) as cluster,
        Client(cluster.grpc_address, retries=RetryPolicy(max_attempts=1)) as client,
    ):
        answers = [[asked.answer(client).token_ids for asked in ASKED] for _ in range(2)]
        assert answers[0] == answers[1]
        cluster.check_no_leak()
        sick = cluster.workers["decode-0"]
        assert sick.metric("pdserve_transfer_failures_total") > 0
        assert "faults are injected: transfer.close@1+" in sick.life_log
