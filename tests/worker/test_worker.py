"""The process around the engine."""

import asyncio
from pathlib import Path

import pytest

from serving.stop_signal import StopSignal
from worker.config import WorkerConfig
from worker.engines.torch.assembly import assemble
from worker.worker import EngineDied, Worker

LIMIT_S = 60.0


def die() -> None:
    raise SystemExit  # ends a thread without a word


async def test_a_worker_whose_engine_died_ends_too(tiny_llama: Path) -> None:
    config = WorkerConfig(
        model=tiny_llama, etcd_addr=None, port=0, disagg_pd_port=0, transfer_listen_port=0, num_blocks=16, num_threads=1
    )
    engine = assemble(config, "127.0.0.1")
    engine.post(die)
    async with asyncio.timeout(LIMIT_S):
        with pytest.raises(EngineDied, match="an error of its own"):
            await Worker(config, engine).run(StopSignal())
