"""What comes to an HTTP port and is no HTTP: said once a minute for each source, however often it comes."""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable

logger = logging.getLogger(__name__)

INTERVAL_S = 60.0
MAX_SOURCES = 256
TLS_HELLO = b"\x16\x03"


class StrayBytes:
    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._said_s: OrderedDict[str, float] = OrderedDict()
        self._num_silent: dict[str, int] = {}

    def note(self, source: str, data: bytes) -> None:
        """`source` is a host; `data` is what it sent, from its beginning."""
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
        what = "a TLS hello to a port without TLS" if data.startswith(TLS_HELLO) else f"no HTTP: {data[:20]!r}"
        more = f" (and {num_silent} more like that before)" if num_silent else ""
        logger.warning("%s sent %s%s", source, what, more)
