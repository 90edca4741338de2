"""Real processes for tests: a master and workers on free ports, which tests may kill, stop and question."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

HOST = "127.0.0.1"
START_TIMEOUT_S = 90.0
PATIENCE_S = 60.0


def free_port() -> int:
    with socket.create_server((HOST, 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


def eventually(condition: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
    """Returns when the condition holds. Fails the test, saying `what`, when it does not within `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.02)


class Process:
    """One process of a cluster. `http_port` answers /livez, /readyz and /metrics."""

    def __init__(self, name: str, module: str, flags: Sequence[str], http_port: int, log: Path) -> None:
        self.name = name
        self.module = module
        self.flags = list(flags)
        self.http_port = http_port
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, environ: Mapping[str, str] | None = None) -> None:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self.module, *self.flags],
                stdout=log,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1", **(environ or {})},
            )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

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

    def end(self) -> None:
        """SIGTERM, then SIGKILL; harmless twice. A stopped process is continued first."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def get(self, path: str) -> tuple[int, str]:
        """(status, body) of a GET; status 0 when nobody answers."""
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self.http_port}{path}", timeout=5) as response:
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

    `worker_flags` go to every worker, `flags_of` to the worker of that name, `master_flags` to the master.
    """

    def __init__(
        self,
        model: Path,
        roles: Sequence[str],
        *,
        worker_flags: Sequence[str] = (),
        flags_of: Mapping[str, Sequence[str]] | None = None,
        master_flags: Sequence[str] = (),
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="pdserve-test-")
        self.model_folder = model
        self.model = model.name
        self.etcd_address = f"{HOST}:{free_port()}"
        http_port, rpc_port = free_port(), free_port()
        self.http_url = f"http://{HOST}:{http_port}"
        self.grpc_address = f"{HOST}:{rpc_port}"
        flags = [
            f"--tokenizer_path={model}",
            f"--http_server_port={http_port}",
            f"--rpc_server_port={rpc_port}",
            f"--builtin_etcd_port={self.etcd_address.rpartition(':')[2]}",
            *master_flags,
        ]
        self.master = Process("master", "master.main", flags, http_port, self._log("master"))
        self.workers: dict[str, Process] = {}
        for role in roles:
            name = f"{role.lower()}-{sum(known.startswith(role.lower()) for known in self.workers)}"
            self.workers[name] = self._worker(name, role, [*worker_flags, *(flags_of or {}).get(name, ())])

    def _worker(self, name: str, role: str, flags: Sequence[str]) -> Process:
        http_port = free_port()
        all_flags = [
            f"--model={self.model_folder}",
            f"--instance_role={role}",
            f"--instance_name={name}",
            f"--etcd_addr={self.etcd_address}",
            f"--port={http_port}",
            "--disagg_pd_port=0",
            "--transfer_listen_port=0",
            "--num_threads=1",
            *flags,
        ]
        return Process(name, "worker.main", all_flags, http_port, self._log(name))

    def _log(self, name: str) -> Path:
        return Path(self._folder.name) / f"{name}.log"

    def __enter__(self) -> "Cluster":
        try:
            self.master.start()
            for worker in self.workers.values():
                worker.start()
            self.wait_until_ready()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            for process in (self.master, *self.workers.values()):
                print(f"--- {process.name}\n" + "\n".join(process.log.read_text(errors="replace").splitlines()[-40:]))
        self._close()

    def _close(self) -> None:
        for process in (*self.workers.values(), self.master):
            process.end()
        self._folder.cleanup()

    def wait_until_ready(self) -> None:
        """Until the master is ready and connected to every running worker."""
        running = [worker for worker in self.workers.values() if worker.is_running]
        eventually(
            lambda: (
                self.master.get("/readyz")[0] == 200
                and all(f"worker {worker.name}: connected" in self.master.log.read_text() for worker in running)
            ),
            "the cluster is ready",
            START_TIMEOUT_S,
        )

    def check_no_leak(self) -> None:
        """Every running worker ends up holding no block, no queue and no export; within the grace of `eventually`."""
        for worker in self.workers.values():
            if not worker.is_running:
                continue
            for metric in ('pdserve_kv_blocks{state="held"}', "pdserve_exports", "pdserve_queued_requests"):
                eventually(lambda w=worker, m=metric: w.metric(m) == 0, f"{metric} of {worker.name} is 0")  # type: ignore[misc]
