"""Real processes for tests: a master and workers on free ports, which tests may kill, stop and question."""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from client.results import InstanceInfo
from pdserve import Client, PdserveError

HOST = "127.0.0.1"
START_TIMEOUT_S = 180.0
HELD = (
    'pdserve_kv_blocks{state="held"}',
    "pdserve_exports",
    "pdserve_queued_requests",
    "pdserve_running_sequences",
)
LOG_TAIL_LINES = 40
BLOCK_STATES = ("free", "cached", "held")
PATIENCE_S = 60.0
END_TIMEOUT_S = 20.0


def free_port(host: str = HOST) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listening:
        port: int = listening.getsockname()[1]
        return port


def eventually(condition: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
    """Returns when the condition holds. Fails the test, saying `what`, when it does not within `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.02)


@dataclass(frozen=True)
class Host:
    """Where a process runs: the address that it binds, and the command that runs another one there."""

    address: str = HOST
    enter: tuple[str, ...] = ()


HERE = Host()


class Process:
    """One process of a cluster. `http_port` answers /livez, /readyz and /metrics; `environ` adds to the environment."""

    def __init__(
        self, name: str, module: str, flags: Sequence[str], http_port: int, log: Path, host: Host = HERE
    ) -> None:
        self.name = name
        self.module = module
        self.flags = list(flags)
        self.http_port = http_port
        self.host = host
        self.log = log
        self.log.touch()
        self.environ: Mapping[str, str] = {}
        self._log_start = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                [*self.host.enter, sys.executable, "-m", self.module, *self.flags],
                stdout=log,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1", **self.environ},
            )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def life_log(self) -> str:
        """What the present, or last, life has logged."""
        return self.log.read_bytes()[self._log_start :].decode(errors="replace")

    @property
    def incarnations(self) -> list[int]:
        """Those that were registered in this life, one after the other."""
        return [int(number) for number in re.findall(r"registered as incarnation (\d+)", self.life_log)]

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL, and gone."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        """The exit status of a process that is about to end."""
        assert self._process is not None
        return self._process.wait(timeout_s)

    def terminate(self) -> None:
        """SIGTERM; harmless when it has ended. A stopped process is continued first."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()

    def end(self) -> int | None:
        """`terminate`, and `ended`."""
        self.terminate()
        return self.ended()

    def ended(self) -> int | None:
        """The exit status of a process that was told to end, None if it was never started; SIGKILL if it does not."""
        if self._process is None:
            return None
        try:
            return self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def get(self, path: str) -> tuple[int, str]:
        """(status, body) of a GET; status 0 when nobody answers."""
        try:
            with urllib.request.urlopen(f"http://{self.host.address}:{self.http_port}{path}", timeout=5) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def metric(self, name: str) -> float:
        """The sum over all labels of a metric; `name` may carry labels to choose one."""
        status, body = self.get("/metrics")
        assert status == 200, f"{self.name}: /metrics answered {status}"
        values = [
            float(line.rpartition(" ")[2])
            for line in body.splitlines()
            if line == name or line.startswith((f"{name} ", f"{name}{{"))
        ]
        assert values, f"{self.name} has no metric {name}"
        return sum(values)


class Cluster:
    """A context manager. `roles` are the workers' roles; their names are like prefill-0, decode-1, mix-0.

    `worker_flags` go to every worker, `flags_of` to the worker of that name, `master_flags` to the master. `absent`
    workers are not started. Without `etcd_address` the master's built-in registry is used. `hosts` says where the
    master and workers of those names run, if not here.
    """

    def __init__(
        self,
        model: Path,
        roles: Sequence[str],
        *,
        worker_flags: Sequence[str] = (),
        flags_of: Mapping[str, Sequence[str]] | None = None,
        master_flags: Sequence[str] = (),
        etcd_address: str | None = None,
        absent: Collection[str] = (),
        hosts: Mapping[str, Host] | None = None,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="pdserve-test-")
        self.model_folder = model
        self.model = model.name
        self._hosts = hosts or {}
        host = self._hosts.get("master", HERE)
        self.etcd_address = etcd_address or f"{host.address}:{free_port()}"
        self._absent = absent
        http_port, rpc_port = free_port(), free_port()
        self.http_url = f"http://{host.address}:{http_port}"
        self.grpc_address = f"{host.address}:{rpc_port}"
        flags = [
            f"--tokenizer_path={model}",
            f"--http_server_port={http_port}",
            f"--rpc_server_port={rpc_port}",
            f"--host={host.address}",
            "--lame_duck_s=0",
            f"--etcd_addr={etcd_address}"
            if etcd_address
            else f"--builtin_etcd_port={self.etcd_address.rpartition(':')[2]}",
            *master_flags,
        ]
        self.master = Process("master", "master.main", flags, http_port, self._log("master"), host)
        self.other_masters: list[Process] = []
        self.workers: dict[str, Process] = {}
        for role in roles:
            name = f"{role.lower()}-{sum(known.startswith(role.lower()) for known in self.workers)}"
            self.workers[name] = self._worker(name, role, [*worker_flags, *(flags_of or {}).get(name, ())])

    def _worker(self, name: str, role: str, flags: Sequence[str]) -> Process:
        http_port = free_port()
        host = self._hosts.get(name, HERE)
        all_flags = [
            f"--model={self.model_folder}",
            f"--instance_role={role}",
            f"--instance_name={name}",
            f"--etcd_addr={self.etcd_address}",
            f"--port={http_port}",
            f"--host={host.address}",
            "--disagg_pd_port=0",
            "--transfer_listen_port=0",
            "--num_threads=1",
            *flags,
        ]
        return Process(name, "worker.main", all_flags, http_port, self._log(name), host)

    def _log(self, name: str) -> Path:
        return Path(self._folder.name) / f"{name}.log"

    def __enter__(self) -> "Cluster":
        try:
            self.master.start()
            for name, worker in self.workers.items():
                if name not in self._absent:
                    worker.start()
            if not self._absent:
                self.wait_until_ready()
        except BaseException:
            self._print_logs()
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Told to end all at once, every process that still runs must do so, with status 0."""
        if error is not None:
            self._print_logs()
        running = [
            process for process in (self.master, *self.other_masters, *self.workers.values()) if process.is_running
        ]
        statuses = self._close()
        if error is None:
            assert all(statuses[process.name] == 0 for process in running), statuses

    def _print_logs(self) -> None:
        for process in (self.master, *self.other_masters, *self.workers.values()):
            print(f"--- {process.name}\n" + "\n".join(process.life_log.splitlines()[-LOG_TAIL_LINES:]))

    def _close(self) -> dict[str, int | None]:
        """Exit statuses by name; None for one that was never started, negative for one that did not end by itself."""
        processes = (*self.workers.values(), *self.other_masters, self.master)
        for process in processes:
            process.terminate()
        statuses = {process.name: process.ended() for process in processes}
        self._folder.cleanup()
        return statuses

    def wait_until_ready(self) -> None:
        """Until the master is ready and connected to every running worker."""
        eventually(lambda: self.master.get("/readyz")[0] == 200, "the master is ready", START_TIMEOUT_S)
        self.wait_until_connected()

    def wait_until_connected(self, *names: str) -> None:
        """Until the master is connected to these workers' present lives, or to every running one's."""
        expected = names or [name for name, worker in self.workers.items() if worker.is_running]
        eventually(lambda: self.connected >= set(expected), f"{expected} are connected", START_TIMEOUT_S)

    def add_master(self) -> str:
        """Starts another master, on a real etcd, and returns its gRPC address. It ends with the cluster."""
        http_port, rpc_port = free_port(), free_port()
        own = (f"--http_server_port={http_port}", f"--rpc_server_port={rpc_port}")
        flags = [flag for flag in self.master.flags if not flag.startswith(("--http_server_port", "--rpc_server_port"))]
        name = f"master-{len(self.other_masters) + 1}"
        master = Process(name, "master.main", [*flags, *own], http_port, self._log(name))
        self.other_masters.append(master)
        master.start()
        eventually(lambda: master.get("/readyz")[0] == 200, f"{name} is ready", START_TIMEOUT_S)
        return f"{HOST}:{rpc_port}"

    def client(self) -> Client:
        return Client(self.grpc_address)

    @property
    def instances(self) -> Mapping[str, InstanceInfo]:
        """What the master knows of its workers; empty while it does not answer."""
        try:
            with Client(self.grpc_address, timeout_s=5) as client:
                return {instance.name: instance for instance in client.cluster()}
        except PdserveError:
            return {}

    @property
    def connected(self) -> set[str]:
        """Workers whose present life the master is connected to."""
        lives = {name: worker.incarnations for name, worker in self.workers.items()}
        return {
            name
            for name, instance in self.instances.items()
            if instance.is_connected and lives[name] and instance.incarnation >= lives[name][0]
        }

    def check_no_leak(self, but: Collection[str] = ()) -> None:
        """Every running worker ends up holding no block, no queue and no export, within the grace of `eventually`.

        `but` those that may be strangers to the master.
        """
        for worker in self.workers.values():
            if not worker.is_running or worker.name in but:
                continue
            for metric in HELD:
                eventually(lambda w=worker, m=metric: w.metric(m) == 0, f"{metric} of {worker.name} is 0")  # type: ignore[misc]
            states = {state: worker.metric(f'pdserve_kv_blocks{{state="{state}"}}') for state in BLOCK_STATES}
            welcome = self.instances[worker.name]
            assert sum(states.values()) == welcome.num_blocks, f"{worker.name}: {states}, of {welcome.num_blocks}"
            eventually(lambda n=worker.name: self.instances[n].legs_in_flight == 0, f"no attempt on {worker.name}")  # type: ignore[misc]
