"""This worker's record in the registry: what it says, and what becomes of it."""

import dataclasses
import logging
import os
import socket
from collections.abc import Callable

from config.address import join_host_port
from config.flags import FlagError
from protos.session_messages import Welcome
from registry.errors import NewerIncarnation
from registry.etcd.client import EtcdClient
from registry.instance import InstanceRecord
from registry.registration import Registration

logger = logging.getLogger(__name__)

TTL_S = 6


def instance_record(
    welcome: Welcome, transfer_address: str, advertise_host: str, rpc_port: int, http_port: int
) -> InstanceRecord:
    return InstanceRecord(
        instance=welcome.instance,
        role=welcome.role,
        rpc_address=join_host_port(advertise_host, rpc_port),
        transfer_address=transfer_address,
        http_address=join_host_port(advertise_host, http_port),
        model=welcome.model,
        incarnation=welcome.incarnation,
        layout_fingerprint=welcome.layout_fingerprint.hex(),
        block_size=welcome.block_size,
        num_blocks=welcome.num_blocks,
        max_context=welcome.max_context,
        max_num_seqs=welcome.max_num_seqs,
        host=socket.gethostname(),
        pid=os.getpid(),
        version=welcome.version,
    )


class WorkerRegistration:
    """`start`, then `close`. A registry that goes away later is waited for as long as the process lives."""

    def __init__(
        self, etcd: EtcdClient, cluster: str, record: InstanceRecord, on_incarnation: Callable[[int], None]
    ) -> None:
        """`on_incarnation` is called with each incarnation that differs from the record's before the registry has it.

        Raises FlagError for a name that the registry can't have.
        """
        self._etcd = etcd
        self._record = record
        try:
            self._registration = Registration(etcd, cluster, record, ttl_s=TTL_S, on_incarnation=on_incarnation)
        except ValueError as error:
            raise FlagError("instance_name", str(error)) from error

    async def start(self, wait_s: float, has_masters: Callable[[], bool]) -> None:
        """Returns once the registry has the record; or after `wait_s` when masters have found this worker without it.

        Raises FlagError if etcd can't be reached in time and no master is connected, or if it refuses the record.
        """
        self._registration.start()
        endpoints = self._etcd.config.endpoints
        try:
            await self._registration.registered(wait_s)
        except TimeoutError as error:
            if not has_masters():
                raise FlagError("etcd_addr", f"{endpoints}: could not register within {wait_s:g} s") from error
            logger.warning(
                "not registered at %s within %g s; serving on for those that are connected", endpoints, wait_s
            )
        except NewerIncarnation as error:
            raise FlagError("instance_name", f"{self._record.instance}: {error}") from error

    def drain(self) -> None:
        """The registry says from now on that no new work should come."""
        self._registration.update(dataclasses.replace(self._record, draining=True))

    @property
    def problem(self) -> str | None:
        """Why masters look for this worker elsewhere, if they do."""
        newer = self._registration.newer
        return None if newer is None else f"superseded: {newer}"

    async def close(self) -> None:
        await self._registration.close()
