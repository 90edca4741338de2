"""Noticing that a client has left."""

import asyncio

from starlette.types import Receive

# A connection notices within this that it was aborted.
ABORT_S = 1.0


class ClientGone(Exception):
    """The client closed its connection before it had its answer."""


async def raise_when_gone(receive: Receive) -> None:
    """Waits for the connection's end, which ASGI tells next after a body. Raises ClientGone, never returns."""
    while (await receive())["type"] != "http.disconnect":
        pass
    raise ClientGone


async def until_gone(receive: Receive) -> None:
    """Waits for the end after an abort: to return sooner would look like an answer left unfinished."""
    try:
        async with asyncio.timeout(ABORT_S):
            await raise_when_gone(receive)
    except (ClientGone, TimeoutError):
        pass  # a server without a way to abort closes it on return
