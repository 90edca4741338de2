"""The masters of the cluster, as the registry lists them."""

from collections.abc import Sequence

import msgspec

from registry.instance import MasterRecord
from registry.watcher import PrefixWatcher, Removed


class Masters:
    """Empty without a registry."""

    def __init__(self, own_id: str) -> None:
        self.own_id = own_id
        self._records: dict[str, MasterRecord] = {}

    @property
    def records(self) -> Sequence[MasterRecord]:
        return list(self._records.values())

    async def follow(self, watcher: PrefixWatcher) -> None:
        """Keeps up with the registry until cancelled. What is no record of a master is left out."""
        async for change in watcher:
            self._records.pop(change.key, None)
            if isinstance(change, Removed):
                continue
            try:
                self._records[change.key] = msgspec.json.decode(change.value, type=MasterRecord)
            except msgspec.DecodeError:
                continue
