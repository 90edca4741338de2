"""R7: real workers of two models under one name."""

from pathlib import Path

import pytest

from pdserve import Client
from tests.cluster import Cluster, eventually

PROMPT = "the quick brown fox"
NUM_REQUESTS = 8
TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def mixed(tiny_llama: Path, tiny_qwen3: Path) -> Cluster:
    flags_of = {"mix-2": [f"--model={tiny_qwen3}"]}
    return Cluster(tiny_llama, ["MIX", "MIX", "MIX"], flags_of=flags_of)


def test_a_worker_of_another_model_answers_nobody_and_says_so(mixed: Cluster) -> None:
    with mixed as cluster, Client(cluster.grpc_address, timeout_s=TIMEOUT_S) as client:
        stranger = cluster.workers["mix-2"]
        eventually(lambda: cluster.instances["mix-2"].state == "not used", "the stranger is left out")
        status, body = stranger.get("/readyz")
        assert status == 503 and "it serves qwen3" in body
        texts = {client.generate(PROMPT, max_tokens=8, temperature=0.0).text for _ in range(NUM_REQUESTS)}
        assert len(texts) == 1
        assert stranger.metric("pdserve_computed_tokens_total") == 0
        assert "mix-2 is not used: it serves qwen3" in cluster.master.life_log
        assert cluster.master.metric('pdserve_workers{state="not used"}') == 1
