"""Warnings about connections that were turned away. Nobody out there may fill a disk with them."""

import logging
import threading
import time

_INTERVAL_S = 10.0


class RefusalLog:
    """Logs the first refusal at once, later ones at most once in ten seconds with the number left out. Thread-safe."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._lock = threading.Lock()
        self._num_unlogged = 0
        self._silent_until = 0.0

    def note(self, who: str, why: str) -> None:
        with self._lock:
            now = time.monotonic()
            if now < self._silent_until:
                self._num_unlogged += 1
                return
            num_unlogged, self._num_unlogged = self._num_unlogged, 0
            self._silent_until = now + _INTERVAL_S
        self._logger.warning("transfer port: turned away %s: %s (and %d more before)", who, why, num_unlogged)
