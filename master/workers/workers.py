"""The workers this master knows: found in the registry or listed by flag, each with a session of its own.

The registry says who exists; the session says who is there. A worker that vanishes from the registry while its
session is open (its lease was lost, etcd had a bad minute) goes on serving until the session ends. Another address
under its name is tried beside it, and takes its place only when the newer life answers there.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from master.routing.model_choice import Kind, choose_kind, difference, kind_of
from master.routing.prefix_index import PrefixIndex
from master.routing.views import WorkerView
from master.workers.greeting import MasterIdentity
from master.workers.leg import Leg
from master.workers.session import WorkerSession
from master.workers.session_state import Patience
from registry.instance import InstanceRecord, decode_instance, name_of
from registry.watcher import Added, PrefixWatcher, Removed, Updated

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class _Life:
    """One life of a worker, at one address."""

    session: WorkerSession
    task: "asyncio.Task[None]"
    record: InstanceRecord | None  # None: listed by flag

    @property
    def incarnation(self) -> int:
        known = 0 if self.session.welcome is None else self.session.welcome.incarnation
        return max(known, 0 if self.record is None else self.record.incarnation)


@dataclass(eq=False)
class _Known:
    """All that goes by one name."""

    current: _Life
    successor: _Life | None = None  # tried while the current one is still there
    listed: InstanceRecord | None = None  # what the registry says now

    @property
    def lives(self) -> Sequence[_Life]:
        return (self.current,) if self.successor is None else (self.current, self.successor)


class Workers:
    """All methods run on the loop. `close` ends the sessions."""

    def __init__(
        self,
        master: MasterIdentity,
        *,
        patience: Patience,
        on_change: Callable[[], None],
        prefixes: PrefixIndex | None = None,
    ) -> None:
        self.prefixes = PrefixIndex() if prefixes is None else prefixes
        self._master = master
        self._patience = patience
        self._on_change = on_change
        self._known: dict[str, _Known] = {}
        self._retired: set[_Life] = set()
        self._served: Kind | None = None
        self._changed_loads: set[WorkerSession] = set()
        self._num_lost_before = 0  # by sessions that are no more
        self._next_change = asyncio.Event()
        self.num_changes = 0  # of what is known of workers, but for their load

    @property
    def sessions(self) -> Sequence[WorkerSession]:
        return [known.current.session for known in self._known.values()]

    @property
    def names(self) -> Collection[str]:
        return self._known.keys()

    @property
    def num_lost(self) -> int:
        """How often a worker was lost since this master began."""
        return self._num_lost_before + sum(session.num_lost for session in self.sessions)

    def received_bytes(self) -> dict[tuple[str, int], int]:
        """The KV that each worker has pulled in this life of its, by name and incarnation."""
        return {
            (session.name, session.welcome.incarnation): session.load.transfer.bytes_received
            for session in self.sessions
            if session.welcome is not None
        }

    @property
    def is_complete(self) -> bool:
        """Whether no worker that is not usable now may come to be."""
        return not any(session.is_away for session in self.sessions)

    def record(self, name: str) -> InstanceRecord | None:
        known = self._known.get(name)
        return known.current.record if known is not None else None

    def session(self, name: str) -> WorkerSession | None:
        known = self._known.get(name)
        return known.current.session if known is not None else None

    def legs_of(self, request_id: str) -> list[Leg]:
        """Those for which a worker that can be reached may hold something."""
        sessions = (*self.sessions, *(life.session for life in self._retired))
        return [leg for session in sessions for leg in session.legs_of(request_id)]

    def views(self, model: str | None = None) -> list[WorkerView]:
        """Shows the workers that take new legs now: of new requests, or of those that `model` has begun."""
        if model is None:
            return [session.view() for session in self.sessions if session.is_used]
        usable = [session.view() for session in self.sessions if session.is_usable]
        return [view for view in usable if view.model == model]

    def take_changed(self) -> list[WorkerView]:
        changed, self._changed_loads = self._changed_loads, set()
        return [session.view() for session in changed if session.is_used and self.session(session.name) is session]

    def known_views(self) -> list[WorkerView]:
        """Shows the workers that serve, and those that are away but did: what they can hold outlasts a restart."""
        heard = [session for session in self.sessions if session.welcome is not None and session.refusal is None]
        return [session.view() for session in heard]

    async def changed(self) -> None:
        """Returns when a worker has become usable, or ceased to be."""
        await self._next_change.wait()

    def add_static(self, address: str) -> None:
        """A worker from the command line; its address is its name."""
        self._known[address] = _Known(self._begin(address, address, None))
        self.num_changes += 1

    async def follow(self, watcher: PrefixWatcher) -> None:
        """Keeps up with the registry until cancelled."""
        async for change in watcher:
            match change:
                case Added() | Updated():
                    self._on_record(change.key, change.value)
                case Removed():
                    self._on_removed(name_of(change.key))
            self.num_changes += 1

    async def close(self) -> None:
        lives = {*self._retired}
        for known in self._known.values():
            lives.update(known.lives)
        self._known.clear()
        self.num_changes += 1
        for life in lives:
            life.task.cancel()
        await asyncio.gather(*(life.task for life in lives), return_exceptions=True)

    def _on_record(self, key: str, value: bytes) -> None:
        try:
            record = decode_instance(value)
        except ValueError as error:
            logger.warning("ignoring %s: %s", key, error)
            return
        known = self._known.get(record.instance)
        if known is None:
            life = self._begin(record.instance, record.rpc_address, record)
            self._known[record.instance] = _Known(life, listed=record)
            return
        known.listed = record
        self._compare(record.instance, known)
        if record.rpc_address not in (life.session.address for life in known.lives):
            older, newer = record.incarnation, known.current.incarnation
            logger.warning("%s: incarnation %d is there, leaving out %d", record.instance, newer, older)

    def _on_removed(self, name: str) -> None:
        known = self._known.get(name)
        if known is not None:
            known.listed = None
            self._compare(name, known)

    def _compare(self, name: str, known: _Known) -> None:
        """Who goes by the name now: again whenever the registry or a session has news of it."""
        self.num_changes += 1
        current, listed = known.current, known.listed
        if current.record is None:
            return
        if known.successor is not None:
            self._try_successor(known, known.successor)
            current = known.current
        if listed is None:
            if not current.session.is_open:
                self._end(self._known.pop(name).current)
        elif listed.rpc_address == current.session.address:
            current.record = listed
            current.session.set_draining(listed.draining)
        elif not current.session.is_open:
            self._end(current)
            known.current, known.successor = known.successor or self._begin(name, listed.rpc_address, listed), None
        elif known.successor is None and listed.incarnation > current.incarnation:
            known.successor = self._begin(name, listed.rpc_address, listed)

    def _try_successor(self, known: _Known, successor: _Life) -> None:
        """The newer life takes over once it answers; without a record it is given up."""
        if known.listed is None or known.listed.rpc_address != successor.session.address:
            successor.task.cancel()
            known.successor = None
        elif successor.session.is_open:
            self._retire(known.current, f"superseded by incarnation {successor.incarnation}")
            known.current, known.successor = successor, None

    def _retire(self, life: _Life, reason: str) -> None:
        self._num_lost_before += life.session.num_lost
        self._retired.add(life)
        life.task.add_done_callback(lambda _: self._retired.discard(life))
        if life.session.is_open:
            life.session.retire(reason)
        else:
            life.task.cancel()

    def _end(self, life: _Life) -> None:
        self._num_lost_before += life.session.num_lost
        life.task.cancel()

    def _begin(self, name: str, address: str, record: InstanceRecord | None) -> _Life:
        session = WorkerSession(
            self._master,
            name,
            address,
            patience=self._patience,
            on_change=self._on_session_change,
            on_load=self._on_load,
            prefixes=self.prefixes,
            is_name_known=record is not None,
            is_draining=record is not None and record.draining,
        )
        return _Life(session, asyncio.create_task(session.run(), name=f"session with {name}"), record)

    def _on_session_change(self) -> None:
        for name, known in list(self._known.items()):
            self._compare(name, known)
        self._agree()
        self.num_changes += 1
        self._next_change.set()
        self._next_change = asyncio.Event()
        self._on_change()

    def _on_load(self, session: WorkerSession) -> None:
        self._changed_loads.add(session)

    def _agree(self) -> None:
        """One model under one name: workers that serve another are left out, and told."""
        heard = [session for session in self.sessions if session.welcome is not None]
        staying = [session.view() for session in heard if not session.is_draining]
        self._served = choose_kind(staying, self._served)
        if self._served is not None:
            for session in heard:
                if session.is_open:
                    session.stand(difference(kind_of(session.view()), self._served))
