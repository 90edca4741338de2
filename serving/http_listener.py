"""The socket that an HTTP server listens on: bound, but not listening yet."""

import os
import socket
import stat
from pathlib import Path

from config.address import join_host_port
from config.name_service import look_up

RESOLVE_S = 10.0


async def bind_port(host: str, port: int) -> socket.socket:
    """`host` is a name, IPv4 or IPv6 without brackets; port 0 takes a free one. Raises OSError naming the address."""
    address = join_host_port(host, port)
    try:
        found = await look_up(host, port, RESOLVE_S, socket.AI_PASSIVE)
    except OSError as error:
        raise named(error, address) from error
    family, where = found[0].family, found[0].where
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # the wildcard takes IPv4 as well, whatever the system's default
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if host == "::" else 1)
        listener.bind(where)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise named(error, address) from error
    return listener


def bind_path(path: Path) -> socket.socket:
    """A Unix socket, in the place of one that nobody listens on any more. Raises OSError naming the path."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_abandoned(path)
        listener.bind(str(path))
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise named(error, str(path)) from error
    return listener


def named(error: OSError, address: str) -> OSError:
    return OSError(error.errno, f"http address {address}: {error.strerror or error}")


def _remove_abandoned(path: Path) -> None:
    if not path.exists() or not stat.S_ISSOCK(path.stat().st_mode):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as visitor:
        try:
            visitor.connect(str(path))
        except ConnectionRefusedError:
            os.unlink(path)
