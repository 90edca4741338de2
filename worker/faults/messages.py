"""What goes wrong with the messages of a session."""

import asyncio

from worker.faults.plan import Action, FaultPoint


class SessionCut(Exception):
    """The session ends here because a fault was asked for."""


class MessageFaults:
    """A gate before each message that this worker sends to a master."""

    def __init__(self, point: FaultPoint) -> None:
        self._point = point

    async def lets_pass(self) -> bool:
        """False when the message gets lost. Raises SessionCut."""
        is_lost = False
        for fault in self._point.passing():
            match fault.action:
                case Action.DELAY:
                    await asyncio.sleep(fault.seconds)
                case Action.DROP:
                    is_lost = True
                case Action.CLOSE:
                    raise SessionCut("closed by a fault that was asked for")
        return not is_lost
