"""A balancer in front of masters, as operators have one: it goes by /readyz."""

import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from tests.cluster import Process

ASK_EVERY_S = 0.2


class Balancer:
    """A context manager that keeps asking. `address` is that of the first master which was ready when last asked."""

    def __init__(self, masters: Sequence[Process], addresses: Sequence[str]) -> None:
        self._masters = masters
        self._addresses = addresses
        self._ready = addresses[0]
        self._is_over = threading.Event()
        self._asking = threading.Thread(target=self._ask)

    def address(self) -> str:
        return self._ready

    def __enter__(self) -> Self:
        self._asking.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._asking.join()

    def _ask(self) -> None:
        while not self._is_over.wait(ASK_EVERY_S):
            for master, address in zip(self._masters, self._addresses, strict=True):
                if master.get("/readyz")[0] == 200:
                    self._ready = address
                    break
