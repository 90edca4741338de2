"""Noticing that a client has left."""

import asyncio

from starlette.types import Receive

# For a connection to notice that it was aborted.
ABORT_S = 1.0


class ClientGone(Exception):
    """The client closed its connection before it had its answer."""


async def raise_when_gone(receive: Receive) -> None:
    """For after the body: the next that ASGI tells is the end of the connection. Raises ClientGone, never returns."""
    while (await receive())["type"] != "http.disconnect":
        pass
    raise ClientGone


async def until_gone(receive: Receive) -> None:
    """After an abort: to return sooner would look like an answer left unfinished."""
    try:
        async with asyncio.timeout(ABORT_S):
            await raise_when_gone(receive)
    except (ClientGone, TimeoutError):
        pass  # a server without a way to abort closes it on return
