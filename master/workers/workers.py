"""The workers this master knows: found in the registry or listed by flag, each with a session of its own.

The registry says who exists; the session says who is there. A worker that vanishes from the registry while its
session is open (its lease was lost, etcd had a bad minute) goes on serving until the session ends.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from master.routing.views import WorkerView
from master.workers.access import PLAIN, WorkerAccess
from master.workers.session import Leg, WorkerSession
from registry.instance import InstanceRecord, decode_instance, name_of
from registry.watcher import Added, PrefixWatcher, Removed, Updated

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class _Known:
    session: WorkerSession
    task: "asyncio.Task[None]"
    record: InstanceRecord | None  # None: listed by flag
    is_listed: bool = True


class Workers:
    """All methods run on the loop. `close` ends the sessions."""

    def __init__(
        self,
        master_id: str,
        *,
        silence_s: float,
        on_change: Callable[[], None],
        access: WorkerAccess = PLAIN,
    ) -> None:
        self._master_id = master_id
        self._silence_s = silence_s
        self._on_change = on_change
        self._access = access
        self._known: dict[str, _Known] = {}
        self._num_lost_forgotten = 0
        self._next_change = asyncio.Event()

    @property
    def sessions(self) -> Sequence[WorkerSession]:
        return [known.session for known in self._known.values()]

    @property
    def num_lost(self) -> int:
        """How often a worker was lost since this master began."""
        return self._num_lost_forgotten + sum(session.num_lost for session in self.sessions)

    @property
    def is_complete(self) -> bool:
        """Whether every worker that is known is connected."""
        return all(known.session.welcome is not None for known in self._known.values())

    def record(self, name: str) -> InstanceRecord | None:
        known = self._known.get(name)
        return known.record if known is not None else None

    def session(self, name: str) -> WorkerSession | None:
        known = self._known.get(name)
        return known.session if known is not None else None

    def legs_of(self, request_id: str) -> list[Leg]:
        """Those for which a worker that can be reached may hold something."""
        return [leg for session in self.sessions for leg in session.legs_of(request_id)]

    def views(self) -> list[WorkerView]:
        """Of the workers that take new attempts now."""
        return [known.session.view() for known in self._known.values() if known.session.is_usable]

    async def changed(self) -> None:
        """Returns when a worker has become usable, or ceased to be."""
        await self._next_change.wait()

    def add_static(self, address: str) -> None:
        """A worker from the command line; its address is its name."""
        self._add(address, address, None)

    async def follow(self, watcher: PrefixWatcher) -> None:
        """Keeps up with the registry until cancelled."""
        async for change in watcher:
            match change:
                case Added() | Updated():
                    self._on_record(change.key, change.value)
                case Removed():
                    self._on_removed(name_of(change.key))

    async def close(self) -> None:
        tasks = [known.task for known in self._known.values()]
        self._known.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _on_record(self, key: str, value: bytes) -> None:
        try:
            record = decode_instance(value)
        except ValueError as error:
            logger.warning("ignoring %s: %s", key, error)
            return
        known = self._known.get(record.instance)
        if known is not None and known.record is not None:
            if record.incarnation < known.record.incarnation:
                logger.warning("ignoring an older incarnation of %s", record.instance)
                return
            if record.rpc_address == known.session.address:
                known.record, known.is_listed = record, True
                known.session.set_draining(record.draining)
                return
            self._forget(record.instance)
        self._add(record.instance, record.rpc_address, record)

    def _on_removed(self, name: str) -> None:
        known = self._known.get(name)
        if known is None:
            return
        known.is_listed = False
        if known.session.welcome is None:
            self._forget(name)

    def _add(self, name: str, address: str, record: InstanceRecord | None) -> None:
        session = WorkerSession(
            self._master_id,
            name,
            address,
            silence_s=self._silence_s,
            on_change=self._on_session_change,
            is_name_known=record is not None,
            access=self._access,
        )
        if record is not None:
            session.set_draining(record.draining)
        task = asyncio.create_task(session.run(), name=f"session with {name}")
        self._known[name] = _Known(session, task, record)

    def _forget(self, name: str) -> None:
        known = self._known.pop(name)
        self._num_lost_forgotten += known.session.num_lost
        known.task.cancel()

    def _on_session_change(self) -> None:
        for name, known in list(self._known.items()):
            if not known.is_listed and known.session.welcome is None:
                self._forget(name)
        self._next_change.set()
        self._next_change = asyncio.Event()
        self._on_change()
