"""How masters and workers begin and end beside clients that never stop asking."""

import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import HOST, Cluster, Process, eventually, free_port

PROMPT = b'{"prompt": [1, 2, 3], "max_tokens": 2}'


def post(url: str) -> int:
    """The status of a completion; 0 when nobody listens."""
    request = urllib.request.Request(f"{url}/v1/completions", PROMPT, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def another_master(cluster: Cluster, folder: Path, *flags: str) -> Process:
    http = free_port()
    command = [
        f"--tokenizer_path={cluster.model_folder}",
        f"--etcd_addr={cluster.etcd_address}",
        f"--http_server_port={http}",
        "--rpc_server_port=0",
        *flags,
    ]
    return Process("master-1", "master.main", command, http, folder / "master-1.log")


@pytest.fixture
def second_master(cluster: Cluster, tmp_path: Path) -> Iterator[Process]:
    master = another_master(cluster, tmp_path, "--lame_duck_s=60")
    yield master
    if master.is_running:
        master.kill()


def test_a_master_opens_its_port_when_it_can_serve_and_serves_on_when_it_is_to_end(second_master: Process) -> None:
    """R24: a client that asks whenever the port is open never gets a 503, neither at the beginning nor at the end."""
    url = f"http://{HOST}:{second_master.http_port}"
    statuses: list[int] = []
    is_over = threading.Event()

    def ask() -> None:
        while not is_over.is_set():
            statuses.append(post(url))

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        second_master.start()
        eventually(lambda: 200 in statuses, "it serves")
        second_master.signal(signal.SIGTERM)
        eventually(lambda: second_master.get("/readyz")[0] == 503, "it is not ready any more")
        num_before = len(statuses)
        eventually(lambda: len(statuses) > num_before + 1, "it serves on")
    finally:
        is_over.set()
        asking.join()
    assert set(statuses) <= {0, 200}
    assert statuses[-1] == 200
    second_master.signal(signal.SIGTERM)
    assert second_master.wait() == 0


@pytest.mark.parametrize("signals", [1, 2])
def test_a_worker_whose_engine_is_stuck_is_gone_within_its_limits(
    tiny_llama: Path, tmp_path: Path, signals: int
) -> None:
    """R30"""
    stall = tmp_path / "stall"
    flags = [f"--drain_timeout_s={1 if signals == 1 else 3600}", "--stall_timeout_s=3600"]
    with Cluster(tiny_llama, ["MIX"], worker_flags=flags, absent=["mix-0"]) as cluster:
        worker = cluster.workers["mix-0"]
        worker.module, worker.environ = "tests.stalling_worker", {"STALL_FILE": str(stall)}
        worker.start()
        cluster.wait_until_ready()
        stall.touch()
        asking = threading.Thread(target=post, args=(cluster.http_url,))
        asking.start()
        eventually(lambda: cluster.instances["mix-0"].legs_in_flight == 1, "the engine has work")
        for _ in range(signals):
            worker.signal(signal.SIGTERM)
            eventually(lambda: "draining" in worker.life_log, "it heard the signal")  # two at once would be one
        worker.wait()  # the engine stands still until the test is over, so that only a limit can have ended it
        assert "did not end within" in worker.life_log or "most recent call first" in worker.life_log
        cluster.master.kill()
        asking.join()
