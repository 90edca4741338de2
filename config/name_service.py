"""Names of hosts become addresses, within a time limit, and without holding up whoever gives up waiting."""

import asyncio
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from config.address import join_host_port
from config.daemon_thread import in_daemon_thread


@dataclass(frozen=True, slots=True)
class SocketAddress:
    """Where a TCP socket can be bound or connected; `host` is a literal."""

    family: socket.AddressFamily
    host: str
    where: tuple[object, ...]  # as the functions of `socket` take it


async def look_up(host: str, port: int, timeout_s: float, flags: int = 0) -> Sequence[SocketAddress]:
    """At least one address; an empty host is the wildcard. Raises OSError, also after `timeout_s`."""

    def ask() -> list[SocketAddress]:
        infos = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=flags)
        return [SocketAddress(family, str(where[0]), where) for family, _, _, _, where in infos]

    try:
        async with asyncio.timeout(timeout_s):
            return await in_daemon_thread(ask, f"look up {host}")
    except TimeoutError as error:
        raise OSError(f"{join_host_port(host, port)}: its name was not resolved within {timeout_s:g} s") from error
