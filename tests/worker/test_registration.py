"""A worker's record, with a registry that is there or is not."""

import asyncio
import dataclasses
from collections.abc import Callable

import pytest

from config.flags import FlagError
from protos.served_model import ServedModel
from protos.session_messages import Role, Welcome
from registry.embedded.server import EmbeddedEtcd
from registry.errors import NewerIncarnation
from registry.etcd.client import EtcdClient
from registry.etcd.config import EtcdConfig
from registry.instance import InstanceRecord, decode_instance, workers_prefix
from worker.registration import WorkerRegistration, instance_record

LIMIT_S = 30.0
NOBODY = EtcdConfig("127.0.0.1:1", timeout_s=0.1)


@pytest.fixture
def record() -> InstanceRecord:
    welcome = Welcome(
        instance="w0",
        role=Role.MIX,
        model=ServedModel("tiny", "00", "float32"),
        incarnation=5,
        layout_fingerprint=b"\x01\x02",
        block_size=16,
        num_blocks=8,
        max_context=128,
        max_num_seqs=4,
        version="0.1.0",
        protocol=1,
        transfer_protocol=1,
    )
    return instance_record(welcome, "10.0.0.1:26000", "10.0.0.1", 7777, 8010)


def register(etcd: EtcdClient, record: InstanceRecord, on_incarnation: Callable[[int], None]) -> WorkerRegistration:
    return WorkerRegistration(etcd, "test", record, on_incarnation)


async def test_a_worker_registers_drains_and_goes(record: InstanceRecord) -> None:
    assert record.rpc_address == "10.0.0.1:7777"
    async with EmbeddedEtcd() as server, EtcdClient(EtcdConfig(server.address)) as etcd, asyncio.timeout(LIMIT_S):
        registration = register(etcd, record, lambda incarnation: None)
        await registration.start(LIMIT_S, lambda: False)
        assert await stored(etcd) == [record]
        registration.drain()
        await registration._registration.registered(LIMIT_S)
        assert [found.draining for found in await stored(etcd)] == [True]
        await registration.close()
        assert await stored(etcd) == []


async def stored(etcd: EtcdClient) -> list[InstanceRecord]:
    listing = await etcd.get_prefix(workers_prefix("test"))
    return [decode_instance(found.value) for found in listing.key_values]


async def test_a_start_without_a_registry_fails_when_nobody_is_connected(record: InstanceRecord) -> None:
    """R27"""
    async with EtcdClient(NOBODY) as etcd:
        registration = register(etcd, record, lambda incarnation: None)
        with pytest.raises(FlagError, match=r"127\.0\.0\.1:1: could not register") as refused:
            await registration.start(0.01, lambda: False)
        assert refused.value.flag == "etcd_addr"
        await registration.close()


async def test_a_worker_that_masters_have_found_serves_on_without_a_registry(
    record: InstanceRecord, caplog: pytest.LogCaptureFixture
) -> None:
    """R27"""
    async with EtcdClient(NOBODY) as etcd:
        registration = register(etcd, record, lambda incarnation: None)
        await registration.start(0.01, lambda: True)
        assert "serving on for those" in caplog.text
        assert registration.problem is None
        await registration.close()


async def test_a_superseded_worker_says_so(record: InstanceRecord) -> None:
    """R33"""
    async with EmbeddedEtcd() as server, EtcdClient(EtcdConfig(server.address)) as etcd, asyncio.timeout(LIMIT_S):
        first = register(etcd, record, lambda incarnation: None)
        await first.start(LIMIT_S, lambda: False)
        lives: list[int] = []
        second = register(etcd, record, lives.append)
        await second.start(LIMIT_S, lambda: False)
        assert lives == [6]
        first.drain()  # looks at what is stored
        with pytest.raises(NewerIncarnation):
            await first._registration.registered(LIMIT_S)
        assert first.problem is not None
        assert "superseded" in first.problem and "incarnation 6" in first.problem
        await first.close()
        await second.close()


async def test_a_name_that_no_key_can_hold_is_refused(record: InstanceRecord) -> None:
    async with EtcdClient(NOBODY) as etcd:
        with pytest.raises(FlagError, match="a/b") as refused:
            register(etcd, dataclasses.replace(record, instance="a/b"), lambda incarnation: None)
        assert refused.value.flag == "instance_name"
