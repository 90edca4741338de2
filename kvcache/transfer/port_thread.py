"""A thread that the transfer port cannot do without."""

import contextlib
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError

logger = logging.getLogger(__name__)


class PortThread(threading.Thread):
    """Runs `body`. Should that end by an error, `death` gets it: the process is of no use without the thread."""

    def __init__(self, name: str, body: Callable[[], None], death: "Future[None]") -> None:
        super().__init__(name=name, daemon=True)
        self._body = body
        self._death = death

    def run(self) -> None:
        try:
            self._body()
        except Exception as error:
            logger.exception("the thread %s died", self.name)
            report_death(self._death, error)


def report_death(death: "Future[None]", error: Exception) -> None:
    """The first death counts; nobody may be listening any more."""
    with contextlib.suppress(InvalidStateError):
        death.set_exception(error)
