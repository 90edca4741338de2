"""`pdserve serve`: one command, a whole cluster, and nothing left of it."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.cluster import START_TIMEOUT_S, eventually, free_port

PROCESSES = Path("/proc")
MARK = "PDSERVE_TEST_MARK"  # in the environment of everything that a test started


def children(mark: str) -> set[int]:
    """Process ids of everything with this mark in its environment."""
    found = set()
    for folder in PROCESSES.iterdir():
        try:
            if folder.name.isdigit() and f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.add(int(folder.name))
        except OSError:
            continue  # it has just ended, or is another user's
    return found


@pytest.fixture
def mark(request: pytest.FixtureRequest) -> Iterator[str]:
    mark = f"{os.getpid()}-{request.node.name}"
    yield mark
    for process_id in children(mark):
        os.kill(process_id, signal.SIGKILL)


def environ_of(mark: str) -> Mapping[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", MARK: mark}


def serve(*flags: str) -> list[str]:
    return [sys.executable, "-m", "pdserve.cli", "serve", *flags]


def test_once_answers_shows_where_the_time_went_and_leaves_nothing(tiny_llama: Path, mark: str) -> None:
    done = subprocess.run(
        serve(
            "--once",
            "The prefill worker computes the prompt.",
            f"--model={tiny_llama}",
            "--max_tokens=8",
            "--master_flags=--tool_call_parser=hermes,--max_requests=4",
        ),
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S,
        env=environ_of(mark),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    sent = re.search(r"(\d+) blocks transferred, .* by (\w+)", done.stderr)
    assert sent is not None, done.stderr
    assert int(sent[1]) > 0
    assert sent[2] in ("vm_read", "tcp")
    assert "on prefill-0" in done.stderr
    assert "on decode-0" in done.stderr
    assert children(mark) == set()


def test_ctrl_c_ends_everything(tiny_llama: Path, tmp_path: Path, mark: str) -> None:
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            serve(
                f"--model={tiny_llama}",
                "--prefill=0",
                "--decode=0",
                "--mix=1",
                *(f"--{flag}={free_port()}" for flag in ("http_server_port", "rpc_server_port", "builtin_etcd_port")),
            ),
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=environ_of(mark),
        )
    eventually(lambda: "Ctrl-C ends everything" in log.read_text(), "it serves", START_TIMEOUT_S)
    assert len(children(mark)) == 3  # itself, the master, the worker
    process.send_signal(signal.SIGINT)
    stdout, _ = process.communicate(timeout=START_TIMEOUT_S)
    assert process.returncode == 0, log.read_text()
    assert stdout == b""
    assert children(mark) == set()
    assert log.read_text().splitlines()[-1] == "stopping"


def test_a_killed_worker_is_started_again_and_a_killed_parent_takes_all_with_it(
    tiny_llama: Path, tmp_path: Path, mark: str
) -> None:
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            serve(
                f"--model={tiny_llama}",
                "--prefill=0",
                "--decode=0",
                "--mix=1",
                *(f"--{flag}={free_port()}" for flag in ("http_server_port", "rpc_server_port", "builtin_etcd_port")),
            ),
            stderr=stderr,
            env=environ_of(mark),
        )
    eventually(lambda: "Ctrl-C ends everything" in log.read_text(), "it serves", START_TIMEOUT_S)
    (worker,) = [child for child in children(mark) if b"worker.main" in (PROCESSES / f"{child}/cmdline").read_bytes()]
    os.kill(worker, signal.SIGKILL)
    eventually(lambda: len(children(mark) - {worker}) == 3, "another worker runs")
    assert ".cc:" not in log.read_text(), "R35: gRPC's own lines, which a fork makes it say"
    process.kill()
    process.wait()
    eventually(lambda: children(mark) == set(), "its children end too")


def test_a_worker_that_cannot_start_ends_it_with_the_reason(tiny_llama: Path, mark: str) -> None:
    """R35"""
    done = subprocess.run(
        serve("--once", "Hello", f"--model={tiny_llama}", "--worker_flags=--block_size=0"),
        capture_output=True,
        text=True,
        timeout=START_TIMEOUT_S,
        env=environ_of(mark),
    )
    assert done.returncode == 2
    assert re.fullmatch(r"pdserve serve: worker \S+: pdserve-worker: --block_size: .*", done.stderr.splitlines()[-1])
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert children(mark) == set()
