"""What a worker tells Prometheus about its transfers."""

import re
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from tests.worker.engines.torch.engine_rig import Node, hand_off
from tests.worker.engines.torch.reference import prompt
from worker.metrics import worker_metrics


def value(node: Node, metric: str) -> float:
    found = re.search(
        rf"^{re.escape(metric)} (\S+)$", generate_latest(worker_metrics(node.engine, node.legs)).decode(), re.MULTILINE
    )
    assert found is not None, metric
    return float(found[1])


@pytest.mark.parametrize("transport", ["vm_read", "tcp"])
def test_a_transfer_is_counted_on_both_sides(tiny_llama: Path, transport: str) -> None:
    with Node(tiny_llama) as prefill, Node(tiny_llama, transports=(transport,)) as decode:
        for _ in range(2):
            hand_off(prefill, decode, prompt(40))
        label = f'{{transport="{transport}"}}'
        assert value(decode, f"pdserve_transfer_seconds_count{label}") == 2
        assert value(decode, f"pdserve_transfer_seconds_sum{label}") > 0
        assert value(decode, f"pdserve_transfer_wait_seconds_total{label}") >= 0
        received = value(decode, "pdserve_transfer_received_blocks_total")
        assert 0 < received == value(prefill, f"pdserve_transfer_sent_blocks_total{label}")
        assert value(decode, "pdserve_transfer_skipped_blocks_total") > 0
        assert value(prefill, f"pdserve_transfer_sent_bytes_total{label}") == value(
            decode, "pdserve_transfer_received_bytes_total"
        )


def test_what_failed_is_counted_by_its_code(tiny_llama: Path) -> None:
    with Node(tiny_llama, num_blocks=4) as node:
        for start in (node.start(prompt(80)), node.start(()), node.start(())):
            node.master.failure(start.leg)
        assert value(node, 'pdserve_leg_failures_total{code="resource_exhausted"}') == 1
        assert value(node, 'pdserve_leg_failures_total{code="invalid_argument"}') == 2
        assert value(node, "pdserve_steps_failing") == 0
