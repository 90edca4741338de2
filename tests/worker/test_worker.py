"""The process around the engine."""

import asyncio
import contextlib
import socket
from pathlib import Path

import pytest

from kvcache.transfer.pending_connection import PendingConnection
from serving.process_life import LeaveTimes, live
from serving.stop_signal import StopSignal
from worker import worker as worker_process
from worker.config import WorkerConfig
from worker.engines.torch.assembly import assemble
from worker.worker import EngineDied, Worker

LIMIT_S = 60.0


def die() -> None:
    raise SystemExit  # ends a thread without a word


def config_of(model: Path) -> WorkerConfig:
    return WorkerConfig(
        model=model, etcd_addr=None, port=0, disagg_pd_port=0, transfer_listen_port=0, num_blocks=16, num_threads=1
    )


async def test_a_worker_whose_engine_died_ends_too(tiny_llama: Path) -> None:
    config = config_of(tiny_llama)
    engine = assemble(config, "127.0.0.1")
    engine.post(die)
    async with asyncio.timeout(LIMIT_S):
        with pytest.raises(EngineDied, match="an error of its own"):
            await live(Worker(config, engine), StopSignal(), LeaveTimes(drain_s=0.0))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_worker_whose_transfer_port_died_ends_too(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R9"""
    config = config_of(tiny_llama)
    engine = assemble(config, "127.0.0.1")
    host, port = engine.port.address.split(":")

    def fail(pending: PendingConnection) -> None:
        raise MemoryError("a fault that nobody thought of")

    monkeypatch.setattr(PendingConnection, "read_claim", fail)
    with socket.create_connection((host, int(port))) as visitor:
        visitor.sendall(b"anything")
        async with asyncio.timeout(LIMIT_S):
            with pytest.raises(EngineDied):
                await live(Worker(config, engine), StopSignal(), LeaveTimes(drain_s=0.0))


async def test_a_worker_that_no_master_knows_is_not_ready_and_says_so_once(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """R33"""
    monkeypatch.setattr(worker_process, "MISSING_S", 0.0)
    config = config_of(tiny_llama)
    worker = Worker(config, assemble(config, "127.0.0.1"))
    async with asyncio.timeout(LIMIT_S), contextlib.AsyncExitStack() as stack:
        await worker.start(stack)
        assert worker.not_ready_reason() == "no master is connected"
        await asyncio.gather(*(task for task in asyncio.all_tasks() if task.get_name() == "missing masters"))
    assert caplog.text.count("no master has connected") == 1
    assert "in --workers" in caplog.text
