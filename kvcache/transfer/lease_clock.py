"""Ends the exports whose lease is over, whatever the rest of the transfer port is doing."""

import threading
import time

from kvcache.transfer.export_table import ExportTable


class LeaseClock:
    """`run` is the thread."""

    def __init__(self, table: ExportTable, lease_s: float) -> None:
        self._table = table
        self._lease_s = lease_s
        self._stopping = threading.Event()

    def stop(self) -> None:
        self._stopping.set()

    def run(self) -> None:
        while not self._stopping.wait(self._rest_s()):
            self._table.expire(time.monotonic())

    def _rest_s(self) -> float:
        """How long until the next lease ends. One that begins later ends no sooner than one lease from now."""
        now = time.monotonic()
        deadline = self._table.next_deadline()
        return self._lease_s if deadline is None else max(min(deadline - now, self._lease_s), 0.0)
