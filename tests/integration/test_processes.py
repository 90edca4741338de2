"""The processes as an operator meets them: commands, flags, refusals, addresses, the way out."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from pdserve import Client, PdserveError
from tests.cluster import HOST, PATIENCE_S, START_TIMEOUT_S, Process, eventually, free_port
from tests.etcd_process import EtcdProcess

MASTER, WORKER = "master.main", "worker.main"
PROGS = {MASTER: "pdserve-master", WORKER: "pdserve-worker"}
PORT_FLAGS = {
    MASTER: ("http_server_port", "rpc_server_port", "builtin_etcd_port"),
    WORKER: ("port", "disagg_pd_port", "transfer_listen_port"),
}
LOG_LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3} (DEBUG|INFO|WARNING) [a-z_.]+: ")
PROMPT = list(range(10, 60))

# What an operator's environment may hold: none of it may matter
HOSTILE: Mapping[str, str] = {
    "http_proxy": "http://127.0.0.1:9",
    "https_proxy": "http://127.0.0.1:9",
    "HTTP_PROXY": "http://127.0.0.1:9",
    "all_proxy": "http://127.0.0.1:9",
    "no_proxy": "10.0.0.0/8",
    "ENABLE_DECODE_RESPONSE_TO_SERVICE": "1",
}


class Processes:
    """Started one by one; a context manager that ends them all."""

    def __init__(self, folder: Path, environ: Mapping[str, str] | None = None) -> None:
        self._folder = folder
        self._environ = environ or {}
        self.all: list[Process] = []

    def start(self, name: str, module: str, command: str, http_port: int) -> Process:
        """`command` is the part after the program's name."""
        process = Process(name, module, command.split(), http_port, self._folder / f"{name}.log")
        process.environ = self._environ
        self.all.append(process)
        process.start()
        return process

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        for process in self.all:
            if kind is not None:
                print(f"--- {process.name}\n{process.life_log}")
            process.terminate()
        statuses = {process.name: process.ended() for process in self.all}
        if kind is None:
            assert not any(statuses.values()), statuses


def run(module: str, *flags: str, environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:

    return subprocess.run(
        [sys.executable, "-m", module, *flags],
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S,
        env={**os.environ, **(environ or {})},
    )


def assert_refused(module: str, flags: Sequence[str], named: str, environ: Mapping[str, str] | None = None) -> str:
    """The process ends with status 2; its last words are one line that names the flag, without a traceback."""
    done = run(module, *flags, environ=environ)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    *before, last = done.stderr.splitlines()
    assert last.startswith(f"{PROGS[module]}: "), done.stderr
    assert named in last
    assert all(LOG_LINE.match(line) for line in before), done.stderr
    return last


def is_ready(client: Client) -> bool:
    try:
        return client.cluster(timeout_s=5).is_ready
    except PdserveError:
        return False


def assert_serves_through_a_transfer(address: str) -> None:
    with Client(address, timeout_s=PATIENCE_S) as client:
        eventually(lambda: is_ready(client), "the master is ready", START_TIMEOUT_S)
        completion = client.generate(PROMPT, max_tokens=4, temperature=0.0, ignore_eos=True)
        assert len(completion.token_ids) == 4
        assert completion.timeline is not None
        assert completion.timeline.blocks_sent > 0


@pytest.mark.parametrize("order", ["etcd first", "etcd last"])
def test_the_documented_commands_start_in_any_order(tiny_llama: Path, tmp_path: Path, order: str) -> None:
    """The README has them, and xLLM's documentation, but for the ports; for once every switch is off."""
    etcd = EtcdProcess()
    addr = etcd.address
    http, rpc = free_port(), free_port()
    workers = {"decode": (free_port(), 18889), "prefill": (free_port(), 18888)}
    switch = "true" if order == "etcd first" else "false"
    patience = "" if order == "etcd first" else "--etcd_wait_s=250"  # a busy machine takes long to start the last one

    with Processes(tmp_path, HOSTILE) as processes:

        def start_worker(role: str) -> None:
            port, rendezvous = workers[role]
            processes.start(
                role,
                WORKER,
                f"--model={tiny_llama} --port={port} --devices=cpu --master_node_addr=127.0.0.1:{rendezvous} "
                f"--enable_prefix_cache={switch} --enable_chunked_prefill={switch} --enable_disagg_pd=true "
                f"--instance_role={role.upper()} --etcd_addr={addr} --transfer_listen_port={free_port()} "
                f"--disagg_pd_port={free_port()} --node_rank=0 --nnodes=1 {patience}",
                port,
            )

        def start_master() -> None:
            processes.start(
                "master",
                MASTER,
                f"--etcd_addr={addr} --http_server_port={http} --rpc_server_port={rpc} --tokenizer_path={tiny_llama} "
                f"{patience}",
                http,
            )

        if order == "etcd first":
            with etcd:
                etcd.wait_until_ready()
                start_master()
                start_worker("prefill")
                start_worker("decode")
                assert_serves_through_a_transfer(f"{HOST}:{rpc}")
        else:
            start_worker("decode")
            start_worker("prefill")
            start_master()
            for process in processes.all:
                eventually(
                    lambda p=process: "trying on" in p.life_log,  # type: ignore[misc]
                    f"{process.name} misses its registry",
                    START_TIMEOUT_S,
                )
            with etcd:
                assert_serves_through_a_transfer(f"{HOST}:{rpc}")


def test_workers_listed_by_flag_need_no_registry(tiny_llama: Path, tmp_path: Path) -> None:
    rpc, ports = free_port(), (free_port(), free_port())
    with Processes(tmp_path) as processes:
        listed = ",".join(f"{HOST}:{port}" for port in ports)
        http = free_port()
        command = f"--workers={listed} --http_server_port={http} --rpc_server_port={rpc} --tokenizer_path={tiny_llama}"
        processes.start("master", MASTER, command, http)
        for role, port in zip(("PREFILL", "DECODE"), ports, strict=True):
            flags = f"--model={tiny_llama} --instance_role={role} --etcd_addr= --disagg_pd_port={port}"
            processes.start(role.lower(), WORKER, f"{flags} --port=0 --transfer_listen_port=0", 0)
        assert_serves_through_a_transfer(f"{HOST}:{rpc}")


def test_ipv6_everywhere(tiny_llama: Path, tmp_path: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no ::1")
    with EtcdProcess("::1") as etcd, Processes(tmp_path) as processes:
        http, rpc = free_port("::1"), free_port("::1")
        common = f"--host=::1 --etcd_addr={etcd.address}"
        command = f"{common} --http_server_port={http} --rpc_server_port={rpc} --tokenizer_path={tiny_llama}"
        processes.start("master", MASTER, command, http)
        for role in ("PREFILL", "DECODE"):
            flags = f"{common} --model={tiny_llama} --instance_role={role} --instance_name={role}"
            processes.start(role, WORKER, f"{flags} --port=0 --transfer_listen_port=0 --disagg_pd_port=0", 0)
        assert_serves_through_a_transfer(f"[::1]:{rpc}")
        with Client(f"[::1]:{rpc}") as client:
            assert all(instance.address.startswith("[::1]:") for instance in client.cluster())


@pytest.mark.parametrize("module", [MASTER, WORKER])
def test_a_process_that_is_told_to_end_does_so_in_silence(tiny_llama: Path, tmp_path: Path, module: str) -> None:
    """With a peer connected, status 0, and no line but its own log's."""
    http, rpc, etcd = free_port(), free_port(), free_port()
    with Processes(tmp_path) as processes:
        master = processes.start(
            "master",
            MASTER,
            f"--tokenizer_path={tiny_llama} --http_server_port={http} --rpc_server_port={rpc} "
            f"--builtin_etcd_port={etcd}",
            http,
        )
        flags = f"--model={tiny_llama} --instance_role=MIX --etcd_addr={HOST}:{etcd}"
        worker = processes.start("worker", WORKER, f"{flags} --port=0 --transfer_listen_port=0 --disagg_pd_port=0", 0)
        with Client(f"{HOST}:{rpc}", timeout_s=PATIENCE_S) as client:
            eventually(lambda: is_ready(client), "the master is ready", START_TIMEOUT_S)
            client.generate(PROMPT, max_tokens=2)
            ended = master if module == MASTER else worker
            before = len(ended.life_log.splitlines())
            ended.terminate()
            assert ended.wait() == 0
        said = ended.life_log.splitlines()[before:]
        assert said
        assert all(LOG_LINE.match(line) for line in said), said


@pytest.mark.parametrize("module", [MASTER, WORKER])
def test_help_and_version(module: str) -> None:
    shown = run(module, "--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert all(flag in shown.stdout for flag in ("--etcd_addr", "--host", "--config"))
    version = run(module, "--version")
    assert version.returncode == 0
    assert re.fullmatch(rf"{PROGS[module]} \d+\.\d+\.\d+\n", version.stdout)


def refused_flags(model: Path) -> Iterator[tuple[str, list[str], str]]:
    """(module, flags, what the one line must name)"""
    yield MASTER, ["--tokeniser_path=x"], "--tokenizer_path"
    yield MASTER, [f"--tokenizer_path={model}", "--http_server_port=99999"], "--http_server_port"
    yield MASTER, [f"--tokenizer_path={model}", "--rpc_server_port=x"], "--rpc_server_port"
    yield MASTER, [], "--tokenizer_path"
    yield MASTER, ["--tokenizer_path=/nowhere"], "--tokenizer_path"
    yield MASTER, [f"--tokenizer_path={model}", "--workers=nonsense"], "--workers"
    yield MASTER, [f"--tokenizer_path={model}", *free_ports(MASTER), *unreachable()], "--etcd_addr"
    # R37; the address is of a net that is reserved for documentation
    yield MASTER, [f"--tokenizer_path={model}", "--etcd_addr=192.0.2.1:2379"], "--advertise_host"
    yield WORKER, [f"--model={model}", "--etcd_addr=192.0.2.1:2379"], "--advertise_host"
    yield WORKER, ["--modle=x"], "--model"
    yield WORKER, ["--port=-1"], "--port"
    yield WORKER, ["--transfer_listen_port=70000"], "--transfer_listen_port"
    yield WORKER, ["--instance_role=ENCODE"], "--instance_role"
    yield WORKER, [f"--model={model}", "--nnodes=2"], "--nnodes"
    yield WORKER, [], "--model"
    yield WORKER, ["--model=/nowhere"], "--model"
    yield WORKER, [f"--model={model}", "--devices=abacus:0"], "--devices"
    yield WORKER, [f"--model={model}", "--master_node_addr=nonsense"], "--master_node_addr"
    yield WORKER, [f"--model={model}", *free_ports(WORKER), *unreachable()], "--etcd_addr"


def unreachable() -> list[str]:
    return ["--etcd_addr=127.0.0.1:1", "--etcd_wait_s=1"]


def free_ports(module: str, **taken: int) -> list[str]:
    return [f"--{flag}={taken.get(flag, 0)}" for flag in PORT_FLAGS[module]]


def test_what_cannot_work_is_refused_in_one_line(tiny_llama: Path) -> None:
    for module, flags, named in refused_flags(tiny_llama):
        assert_refused(module, flags, named)


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    for module, flag in ((MASTER, "--tokenizer_path"), (WORKER, "--model")):
        assert str(tmp_path) in assert_refused(module, [f"{flag}={tmp_path}", "--etcd_addr="], flag)


@pytest.mark.parametrize(("module", "flag"), [(module, flag) for module in PORT_FLAGS for flag in PORT_FLAGS[module]])
def test_a_port_that_is_taken_is_named(tiny_llama: Path, module: str, flag: str) -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        model = [f"--tokenizer_path={tiny_llama}"] if module == MASTER else [f"--model={tiny_llama}", "--etcd_addr="]
        assert str(port) in assert_refused(module, [*model, *free_ports(module, **{flag: port})], f"--{flag}")


def test_a_settings_file_and_the_environment_set_flags(tiny_llama: Path, tmp_path: Path) -> None:
    """The command line wins over the environment, and that over the file."""
    settings = tmp_path / "master.yaml"
    lines = (f"tokenizer_path: {tiny_llama}", "http_server_port: 1", "rpc-server-port: 0", "builtin_etcd_port: 0")
    settings.write_text("\n".join(lines))
    http = free_port()
    with Processes(tmp_path, {"PDSERVE_HTTP_SERVER_PORT": "2", "PDSERVE_SERVED_MODEL_NAME": "by-environment"}) as all_:
        master = all_.start("master", MASTER, f"--config={settings} --http_server_port={http}", http)
        eventually(lambda: master.get("/livez")[0] == 200, "the master lives")
        assert "by-environment" in master.get("/v1/models")[1]
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("tokenizer_path: x\nhttp_server_prot: 1\n")
    assert_refused(MASTER, [f"--config={wrong}"], "http_server_prot")
    assert_refused(WORKER, ["--config=/nowhere.yaml"], "--config")
    assert_refused(WORKER, [], "PDSERVE_PORT", environ={"PDSERVE_PORT": "x"})
