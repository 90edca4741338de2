"""A cluster that is closed: API keys for clients, a token and TLS between master and workers."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from pdserve import Client, Unauthenticated, Unavailable
from protos.session_codec import encode_to_worker
from protos.session_identity import PROTOCOL
from protos.session_messages import Hello
from protos.session_pb2_grpc import WorkerStub
from tests.cluster import HOST, Cluster, Process, eventually, free_port
from tests.tls_files import make_certificate

KEY = "a-key-of-tests"
OTHER_KEY = "another-key"
PROMPT = "Once upon a time, " * 20
TIMEOUT_S = 30.0


class Closed:
    """The cluster, and what a worker needs to get in."""

    def __init__(self, cluster: Cluster, certificate: Path, worker_flags: list[str]) -> None:
        self.cluster = cluster
        self.certificate = certificate
        self.worker_flags = worker_flags


@pytest.fixture(scope="module")
def closed(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Closed]:
    folder = tmp_path_factory.mktemp("secrets")
    key, certificate = make_certificate(folder, "worker")
    master_key, master_certificate = make_certificate(folder, "master")
    tokens = folder / "tokens"
    tokens.write_text("# the new one, and the one that still goes\nnew-token\nold-token\n")
    tls = [
        f"--worker_tls_cert_file={certificate}",
        f"--worker_tls_key_file={key}",
        f"--worker_tls_client_ca_file={master_certificate}",
    ]
    master_flags = [
        "--cluster_token=old-token",
        f"--worker_tls_ca_file={certificate}",
        f"--worker_tls_cert_file={master_certificate}",
        f"--worker_tls_key_file={master_key}",
        "--worker_tls_server_name=localhost",
        "--isolate_prefix_caches",
        f"--api_key={KEY},{OTHER_KEY}",
    ]
    worker_flags = [f"--cluster_token_file={tokens}", *tls]
    cluster = Cluster(tiny_llama, ["PREFILL", "DECODE", "DECODE"], worker_flags=worker_flags, master_flags=master_flags)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PDSERVE_API_KEY", KEY)  # for its clients
        with cluster:
            yield Closed(cluster, certificate, tls)


def test_requests_run_over_both_workers(closed: Closed) -> None:
    with Client(closed.cluster.grpc_address, timeout_s=TIMEOUT_S) as client:
        with client.stream(PROMPT, max_tokens=8, temperature=0) as stream:
            assert len(list(stream)) > 1
        assert stream.timeline is not None
        assert stream.timeline.blocks_sent > 0


def cached_tokens(closed: Closed, key: str) -> int:
    with Client(closed.cluster.grpc_address, api_key=key, timeout_s=TIMEOUT_S) as client:
        usage = client.generate(range(100, 180), max_tokens=1, temperature=0).usage
    assert usage is not None
    return usage.cached_tokens


def test_clients_of_different_keys_share_no_prefix_cache(closed: Closed) -> None:
    """C4"""
    assert cached_tokens(closed, KEY) == 0
    assert cached_tokens(closed, KEY) > 0
    assert cached_tokens(closed, OTHER_KEY) == 0


def test_clients_without_a_key_get_nothing(closed: Closed) -> None:
    with Client(closed.cluster.grpc_address, api_key="wrong") as client, pytest.raises(Unauthenticated):
        client.generate(PROMPT)
    assert closed.cluster.master.get("/v1/models")[0] == 401
    assert closed.cluster.master.get("/readyz")[0] == 200


def test_a_worker_talks_to_nobody_without_the_token(closed: Closed) -> None:
    master_certificate = closed.certificate.with_name("master.pem").read_bytes()
    master_key = closed.certificate.with_name("master.key").read_bytes()
    credentials = grpc.ssl_channel_credentials(closed.certificate.read_bytes(), master_key, master_certificate)
    address = closed.cluster.instances["decode-0"].address
    options = (("grpc.ssl_target_name_override", "localhost"),)
    with grpc.secure_channel(address, credentials, options) as channel:
        for metadata in ((), (("authorization", "Bearer new-toke"),)):
            session = WorkerStub(channel).Session(
                iter([encode_to_worker(Hello("stranger", PROTOCOL, "0", b""))]),
                metadata=metadata,
                timeout=TIMEOUT_S,
            )
            with pytest.raises(grpc.RpcError) as caught:
                next(session)
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    with grpc.insecure_channel(address) as channel:
        session = WorkerStub(channel).Session(
            iter([encode_to_worker(Hello("stranger", PROTOCOL, "0", b""))]), timeout=TIMEOUT_S
        )
        with pytest.raises(grpc.RpcError) as caught:
            next(session)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_worker_of_another_cluster_is_named_in_both_logs(closed: Closed, tmp_path: Path) -> None:
    """R22"""
    cluster = closed.cluster
    with stranger(closed, tmp_path, "--cluster_token=another-clusters") as worker:
        told, turned_away = "it refused our token", "was turned away: the cluster token is not valid"
        eventually(lambda: told in cluster.master.life_log, "the master says so")
        eventually(lambda: turned_away in worker.life_log, "the worker says so")
        assert not cluster.instances["stranger"].is_connected
        assert "another-clusters" not in cluster.master.life_log + worker.life_log
    assert cluster.master.life_log.count(told) == worker.life_log.count(turned_away) == 1


def test_a_worker_without_the_token_is_not_used_and_knows_why(closed: Closed, tmp_path: Path) -> None:
    """R22: it would take any master, but no other worker could pull from it."""
    cluster = closed.cluster
    with stranger(closed, tmp_path) as worker:
        told = "stranger does not know the cluster's secret"
        eventually(lambda: told in cluster.master.life_log, "the master says so")
        eventually(lambda: told in worker.life_log, "the worker says so")
        status, body = worker.get("/readyz")
        assert status == 503 and told in body
        assert cluster.instances["stranger"].state == "refused"
    assert worker.life_log.count(told) == 1


@contextmanager
def stranger(closed: Closed, folder: Path, *flags: str) -> Iterator[Process]:
    """Another worker in the same registry."""
    http_port = free_port()
    all_flags = [
        f"--model={closed.cluster.model_folder}",
        "--instance_role=MIX",
        "--instance_name=stranger",
        f"--etcd_addr={closed.cluster.etcd_address}",
        f"--port={http_port}",
        "--disagg_pd_port=0",
        "--transfer_listen_port=0",
        "--num_threads=1",
        *flags,
        *closed.worker_flags,
    ]
    process = Process("stranger", "worker.main", all_flags, http_port, folder / "log")
    process.start()
    try:
        yield process
    finally:
        process.end()


def test_the_command_drains_an_instance(closed: Closed) -> None:
    def drain(name: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pdserve.cli", "drain", name, f"--address={closed.cluster.grpc_address}"]
        return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=os.environ)

    unknown = drain("decode")
    assert (unknown.returncode, len(unknown.stderr.splitlines())) == (1, 1)
    assert drain("decode-1").returncode == 0
    eventually(lambda: closed.cluster.instances["decode-1"].load.is_draining, "decode-1 drains")
    assert closed.cluster.workers["decode-1"].is_running
    with Client(closed.cluster.grpc_address, timeout_s=TIMEOUT_S) as client:
        assert client.generate(PROMPT, max_tokens=3).token_ids


def test_a_masters_own_ports_speak_tls(tiny_llama: Path, tmp_path: Path) -> None:
    key, certificate = make_certificate(tmp_path, "master")
    http_port, rpc_port = free_port(), free_port()
    flags = [
        f"--tokenizer_path={tiny_llama}",
        f"--workers={HOST}:{free_port()}",
        f"--http_server_port={http_port}",
        f"--rpc_server_port={rpc_port}",
        f"--tls_cert_file={certificate}",
        f"--tls_key_file={key}",
    ]
    master = Process("master", "master.main", flags, http_port, tmp_path / "log")
    master.start()
    try:
        with Client(f"localhost:{rpc_port}", ca_file=certificate, timeout_s=TIMEOUT_S) as client:
            eventually(lambda: f"https://{HOST}:{http_port}" in master.life_log, "the master serves")
            assert client.models()
        with Client(f"localhost:{rpc_port}", timeout_s=1.0) as plain, pytest.raises(Unavailable):
            plain.models()
    finally:
        master.end()
