"""A real etcd, from the Debian package."""

import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Self

import pytest

from tests.cluster import HOST, eventually, free_port


class EtcdProcess:
    """A context manager; skips the test where etcd is not installed. `kill` and `start` may follow each other."""

    def __init__(self, host: str = HOST) -> None:
        etcd = shutil.which("etcd")
        if etcd is None:
            pytest.skip("etcd is not installed")
        shown = f"[{host}]" if ":" in host else host
        self.address = f"{shown}:{free_port(host)}"
        self._command = [
            etcd,
            f"--listen-client-urls=http://{self.address}",
            f"--advertise-client-urls=http://{self.address}",
            f"--listen-peer-urls=http://{shown}:{free_port(host)}",
            "--log-level=error",
        ]
        self._folder = tempfile.TemporaryDirectory(prefix="pdserve-etcd-")
        self._process: subprocess.Popen[bytes] | None = None
        self._num_lives = 0

    def start(self, *, keeps_data: bool = True) -> None:
        """Begins to start; without its data it comes back as another, empty cluster."""
        self._num_lives += 0 if keeps_data and self._num_lives else 1
        data = Path(self._folder.name) / str(self._num_lives)
        self._process = subprocess.Popen(
            [*self._command, f"--data-dir={data}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def wait_until_ready(self) -> None:
        etcdctl = shutil.which("etcdctl")
        if etcdctl is None:
            pytest.skip("etcdctl is not installed")
        check = [etcdctl, f"--endpoints={self.address}", "endpoint", "health"]
        eventually(lambda: subprocess.run(check, capture_output=True).returncode == 0, "etcd is healthy")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()
        self._folder.cleanup()
