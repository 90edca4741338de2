"""Warnings that anybody who reaches a port can cause: once a minute for each source, however often it comes."""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable

INTERVAL_S = 60.0
MAX_SOURCES = 256


class SourceLog:
    def __init__(self, logger: logging.Logger, now: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._now = now
        self._said_s: OrderedDict[str, float] = OrderedDict()
        self._num_silent: dict[str, int] = {}

    def __len__(self) -> int:
        """How many sources are remembered."""
        return len(self._said_s)

    def warning(self, source: str, what: str) -> None:
        """`source` is a host, `what` it did."""
        now_s = self._now()
        said_s = self._said_s.get(source)
        if said_s is not None and now_s < said_s + INTERVAL_S:
            self._num_silent[source] += 1
            return
        num_silent = self._num_silent.pop(source, 0)
        self._said_s[source], self._num_silent[source] = now_s, 0
        self._said_s.move_to_end(source)
        if len(self._said_s) > MAX_SOURCES:
            oldest, _ = self._said_s.popitem(last=False)
            del self._num_silent[oldest]
        more = f" (and {num_silent} more like that before)" if num_silent else ""
        self._logger.warning("%s %s%s", source, what, more)
