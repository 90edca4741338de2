"""What the masters think of this worker: whether they send work here, and why not."""

import logging

from protos.session_messages import Standing

logger = logging.getLogger(__name__)

MAX_MASTERS = 64  # whose last word is remembered


class Standings:
    """Each master's last word is logged when it changes, and kept: one that refuses comes back again and again."""

    def __init__(self) -> None:
        self._refusals: dict[str, str | None] = {}  # by master; None: it sends work

    @property
    def refusal(self) -> str | None:
        """Why no master sends work here; None when one does, or none has been here."""
        if not self._refusals or None in self._refusals.values():
            return None
        master, reason = next(reversed(self._refusals.items()))
        return f"refused by master {master}: {reason}"

    def hear(self, master: str, standing: Standing) -> None:
        """A master says whether it sends work here."""
        self._note(master, standing.refusal, "master %s does not use this worker: %s")

    def refuse(self, master: str, reason: str) -> None:
        """This worker refuses a master."""
        self._note(master, reason, "master %s is refused: %s")

    def leave(self, master: str) -> None:
        """A session is over. What refused is remembered until it comes back."""
        if self._refusals.get(master, "") is None:
            logger.info("master %s is gone", master)
            del self._refusals[master]

    def _note(self, master: str, reason: str | None, told: str) -> None:
        if reason is not None and reason != self._refusals.get(master):
            logger.warning(told, master, reason)
        if reason is None and self._refusals.get(master, "") is not None:
            logger.info("master %s sends work", master)
        self._refusals.pop(master, None)
        self._refusals[master] = reason
        while len(self._refusals) > MAX_MASTERS:
            del self._refusals[next(iter(self._refusals))]
