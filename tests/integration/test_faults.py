"""What kills, stops or cuts off a process is nobody's problem but its own."""

import re
import secrets
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import openai
import pytest

from client.retries import RetryPolicy
from pdserve import Client, Unavailable
from protos.session_messages import Role
from tests.cluster import Cluster, Process, eventually
from tests.etcd_process import EtcdProcess
from tests.streams import Asked, Streams, assert_undisturbed

FLAGS = ("--heartbeat_timeout_s=3",)
WORKER_FLAGS = (*FLAGS, "--num_blocks=2000", "--max_tokens_per_step=128")
NUM_STREAMS = 6
ONCE = RetryPolicy(max_attempts=1)  # what the client would hide must be seen
PROMPT = tuple(range(10, 90))

LONG = [
    Asked((*PROMPT, 100 + n), {"max_tokens": 400, "ignore_eos": True, "temperature": 1.0, "seed": n, "logprobs": 1})
    for n in range(NUM_STREAMS)
]
# Mostly prefill, each with a beginning of its own so that no cache shortens it
WIDE = [
    Asked(
        tuple((7 * place + 31 * n) % 500 + 10 for place in range(1500)),
        {"max_tokens": 12, "ignore_eos": True, "temperature": 1.0, "seed": n, "n": 1 + n % 2},
    )
    for n in range(NUM_STREAMS)
]


@pytest.fixture(scope="module")
def stall_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stall") / "stall"


@pytest.fixture(scope="module")
def fleet(tiny_llama: Path, stall_file: Path) -> Iterator[Cluster]:
    """Two PREFILL and two DECODE workers; the engine of decode-1 stands still while `stall_file` exists."""
    roles = ["PREFILL", "PREFILL", "DECODE", "DECODE"]
    flags_of = {"decode-1": ["--stall_timeout_s=2"]}
    cluster = Cluster(tiny_llama, roles, worker_flags=WORKER_FLAGS, flags_of=flags_of, master_flags=FLAGS)
    cluster.workers["decode-1"].module = "tests.stalling_worker"
    cluster.workers["decode-1"].environ = {"STALL_FILE": str(stall_file)}
    with cluster:
        yield cluster


@pytest.fixture(scope="module")
def client(fleet: Cluster) -> Iterator[Client]:
    with Client(fleet.grpc_address, retries=ONCE) as connected:
        yield connected


def busiest(cluster: Cluster, prefix: str) -> Process:
    """The worker of that role with the most to do."""
    instances = [instance for name, instance in cluster.instances.items() if name.startswith(prefix)]
    return cluster.workers[max(instances, key=lambda instance: instance.legs_in_flight).name]


def others(cluster: Cluster, worker: Process) -> dict[str, int]:
    """Name to process id of everything else."""
    processes = (cluster.master, *cluster.workers.values())
    return {process.name: process.pid for process in processes if process is not worker}


def restart(cluster: Cluster, worker: Process) -> None:
    untouched = others(cluster, worker)
    worker.start()
    cluster.wait_until_connected()
    assert others(cluster, worker) == untouched


def assert_serves(client: Client, worker: Process) -> None:
    """The worker gets work again: nobody has seen these prompts, and they come several at once."""
    asked = [Asked((*PROMPT, n), {"max_tokens": 64, "ignore_eos": True, "temperature": 0.0}) for n in range(8)]
    used: set[str] = set()

    def is_used() -> bool:
        with Streams(client, [one.salted(secrets.token_hex(8)) for one in asked]) as streams:
            pass
        for completion in streams.completions():
            assert completion.timeline is not None
            used.update((completion.timeline.prefill_instance, completion.timeline.decode_instance))
        return worker.name in used

    eventually(is_used, f"{worker.name} is used again")


def test_killing_a_decode_worker_costs_no_stream(fleet: Cluster, client: Client) -> None:
    expected = [asked.answer(client) for asked in LONG]
    with Streams(client, LONG) as streams:
        streams.until_tokens(20)
        worker = busiest(fleet, "decode")
        worker.kill()
    got = streams.completions()
    assert_undisturbed(expected, got)
    assert any(completion.timeline and completion.timeline.attempts > 1 for completion in got)
    restart(fleet, worker)
    assert_serves(client, worker)
    fleet.check_no_leak()


def test_killing_a_prefill_worker_costs_no_request(fleet: Cluster, client: Client) -> None:
    expected = [asked.salted("before").answer(client) for asked in WIDE]
    with Streams(client, WIDE) as streams:
        eventually(lambda: busiest(fleet, "prefill").metric("pdserve_queued_prefill_tokens") > 0, "prefill runs")
        worker = busiest(fleet, "prefill")
        worker.kill()
    assert_undisturbed(expected, streams.completions())
    restart(fleet, worker)
    assert_serves(client, worker)
    fleet.check_no_leak()


def test_a_prefill_worker_that_stands_still_is_given_up_and_comes_back(fleet: Cluster, client: Client) -> None:
    expected = [asked.salted("before").answer(client) for asked in WIDE]
    with Streams(client, [asked.salted("stop") for asked in WIDE]) as streams:
        eventually(lambda: busiest(fleet, "prefill").metric("pdserve_queued_prefill_tokens") > 0, "prefill runs")
        worker = busiest(fleet, "prefill")
        worker.signal(signal.SIGSTOP)
    try:
        assert_undisturbed(expected, streams.completions())
    finally:
        worker.signal(signal.SIGCONT)
    fleet.wait_until_connected()
    fleet.check_no_leak()


def test_a_decode_worker_stopped_beyond_its_lease_comes_back_by_itself(fleet: Cluster, client: Client) -> None:
    expected = [asked.answer(client) for asked in LONG]
    with Streams(client, LONG) as streams:
        streams.until_tokens(20)
        worker = busiest(fleet, "decode")
        before = worker.incarnations
        worker.signal(signal.SIGSTOP)
    try:
        assert_undisturbed(expected, streams.completions())
        eventually(lambda: worker.name not in fleet.instances, "the registry has lost it")
    finally:
        worker.signal(signal.SIGCONT)
    eventually(lambda: len(worker.incarnations) > len(before), "it has registered anew")
    fleet.wait_until_connected()
    assert_serves(client, worker)
    fleet.check_no_leak()


def test_a_worker_whose_engine_stands_still_is_given_up(fleet: Cluster, client: Client, stall_file: Path) -> None:
    expected = [asked.answer(client) for asked in LONG]
    worker = fleet.workers["decode-1"]
    with Streams(client, LONG) as streams:
        streams.until_tokens(20)
        assert fleet.instances[worker.name].legs_in_flight > 0
        stall_file.touch()
        try:
            assert_undisturbed(expected, streams.completions())
            eventually(lambda: worker.get("/readyz")[0] == 503, "the worker says so itself")
            assert worker.get("/livez")[0] == 200
            assert not fleet.instances[worker.name].is_connected
        finally:
            stall_file.unlink()
    fleet.wait_until_connected()
    eventually(lambda: worker.get("/readyz")[0] == 200, "it is ready again")
    fleet.check_no_leak()


def test_a_decode_worker_that_is_told_to_end_finishes_its_streams(fleet: Cluster, client: Client) -> None:
    expected = [asked.answer(client) for asked in LONG]
    with Streams(client, LONG) as streams:
        streams.until_tokens(20)
        worker = busiest(fleet, "decode")
        worker.signal(signal.SIGTERM)
        eventually(lambda: worker.get("/readyz")[0] != 200, "it is draining")
        after = [Asked((*PROMPT, n), {"max_tokens": 8, "temperature": 0.0}) for n in range(4)]
        for asked in after:
            timeline = asked.answer(client).timeline
            assert timeline is not None
            assert timeline.decode_instance != worker.name
    got = streams.completions()
    assert_undisturbed(expected, got)
    assert all(completion.timeline and completion.timeline.attempts == 1 for completion in got)
    assert worker.wait() == 0
    assert "leaving with 0 legs" in worker.life_log
    restart(fleet, worker)
    fleet.check_no_leak()


def test_a_master_that_dies_leaves_nothing_behind(fleet: Cluster, client: Client) -> None:
    """Its built-in registry dies with it, so this is also how workers bear the loss of the registry."""
    with Streams(client, LONG) as streams:
        streams.until_tokens(20)
        fleet.master.kill()
    assert len(streams.errors) == NUM_STREAMS
    for worker in fleet.workers.values():
        eventually(lambda w=worker: w.metric('pdserve_kv_blocks{state="held"}') == 0, f"{worker.name} is free")  # type: ignore[misc]
    fleet.master.start()
    fleet.wait_until_ready()
    assert_undisturbed([LONG[0].answer(client)], [LONG[0].answer(client)])
    fleet.check_no_leak()


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdProcess]:
    with EtcdProcess() as running:
        running.wait_until_ready()
        yield running


@pytest.fixture(scope="module")
def growing(tiny_llama: Path, etcd: EtcdProcess) -> Iterator[Cluster]:
    """It has a real etcd, and no worker yet. Roles are strict, and a request that finds no route is told at once."""
    roles = ["PREFILL", "DECODE", "MIX"]
    with Cluster(
        tiny_llama,
        roles,
        worker_flags=WORKER_FLAGS,
        master_flags=(*FLAGS, "--role_fallback=false", "--route_timeout_s=0"),
        etcd_address=etcd.address,
        absent=("prefill-0", "decode-0", "mix-0"),
    ) as cluster:
        eventually(lambda: cluster.master.get("/livez")[0] == 200, "the master lives")
        yield cluster


def refusal_of(cluster: Cluster) -> openai.APIStatusError:
    client = openai.OpenAI(base_url=f"{cluster.http_url}/v1", api_key="none", max_retries=0, timeout=5)
    with client, pytest.raises(openai.APIStatusError) as caught:
        client.completions.create(model=cluster.model, prompt="Hello", max_tokens=1)
    return caught.value


def assert_refuses(cluster: Cluster, reason: str) -> None:
    """Not ready, and every request is told so at once, over HTTP and gRPC."""
    assert cluster.master.get("/livez")[0] == 200
    status, body = cluster.master.get("/readyz")
    assert (status, reason in body) == (503, True), body
    error = refusal_of(cluster)
    assert error.status_code == 503
    assert int(error.response.headers["retry-after"]) >= 1
    assert reason in error.message
    with (
        Client(cluster.grpc_address, retries=ONCE) as client,
        pytest.raises(Unavailable, match=reason),
    ):
        client.generate("Hello", max_tokens=1, timeout_s=5)


def test_a_cluster_that_cannot_serve_says_so_until_it_can(growing: Cluster) -> None:
    assert_refuses(growing, "no worker is connected")
    growing.workers["prefill-0"].start()
    growing.wait_until_connected("prefill-0")
    assert growing.instances["prefill-0"].role is Role.PREFILL
    assert_refuses(growing, "no DECODE or MIX worker")
    growing.workers["decode-0"].start()
    growing.wait_until_connected("prefill-0", "decode-0")
    assert growing.master.get("/readyz")[0] == 200
    with Client(growing.grpc_address, retries=ONCE) as client:
        assert len(LONG[0].answer(client).token_ids) == 400


def until_registry_is_back(workers: Sequence[Process], lives: Sequence[str]) -> None:
    """Until each worker has noticed that its registry answers again, or registered anew."""
    for worker, before in zip(workers, lives, strict=True):
        eventually(
            lambda w=worker, b=before: re.search("answers again|registered as", w.life_log[len(b) :]) is not None,  # type: ignore[misc]
            f"{worker.name} has its registry back",
        )


@pytest.mark.parametrize("keeps_data", [True, False], ids=["with-its-data", "empty"])
def test_requests_go_on_while_etcd_is_away(growing: Cluster, etcd: EtcdProcess, keeps_data: bool) -> None:
    running = [growing.workers["prefill-0"], growing.workers["decode-0"]]
    late = growing.workers["mix-0"]
    with Client(growing.grpc_address, retries=ONCE) as client:
        expected = [asked.answer(client) for asked in LONG]
        lives = [worker.life_log for worker in running]
        with Streams(client, LONG) as streams:
            streams.until_tokens(20)
            etcd.kill()
        assert_undisturbed(expected, streams.completions())
        for worker, life in zip(running, lives, strict=True):
            eventually(lambda w=worker, b=life: len(w.life_log) > len(b), f"{worker.name} misses its registry")  # type: ignore[misc]
        assert_undisturbed(expected[:1], [LONG[0].answer(client)])
        assert growing.master.get("/readyz")[0] == 200
        etcd.start(keeps_data=keeps_data)
        etcd.wait_until_ready()
        until_registry_is_back(running, lives)
        late.start()
        growing.wait_until_connected()
        with Streams(client, LONG) as streams:
            streams.until_tokens(20)
            late.signal(signal.SIGTERM)
        assert_undisturbed(expected, streams.completions())
        assert late.wait() == 0
        eventually(lambda: late.name not in growing.instances, "it has left the registry")
        growing.check_no_leak()


def test_the_only_decode_worker_dies_and_its_streams_go_on(growing: Cluster) -> None:
    with Client(growing.grpc_address, retries=ONCE) as client:
        expected = [asked.answer(client) for asked in LONG]
        with Streams(client, LONG) as streams:
            streams.until_tokens(20)
            growing.workers["decode-0"].kill()
            eventually(lambda: growing.master.get("/readyz")[0] == 503, "the master is not ready")
            assert refusal_of(growing).status_code == 503
        got = streams.completions()
        assert_undisturbed(expected, got)
        assert {c.timeline.decode_instance for c in got if c.timeline} == {"prefill-0"}
        restart(growing, growing.workers["decode-0"])
        assert growing.master.get("/readyz")[0] == 200
        growing.check_no_leak()
