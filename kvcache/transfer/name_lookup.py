"""Looks a peer's host name up without waiting longer than a pull may."""

import contextlib
import socket
import threading
import time
from concurrent.futures import Future

Candidate = tuple[socket.AddressFamily, tuple[object, ...]]


def resolve(host: str, port: int, deadline: float) -> list[Candidate]:
    """Returns (family, address) to connect to, best first; `deadline` on the monotonic clock. Raises OSError.

    The system's look-up has no time limit of its own and cannot be interrupted, so for a name it runs in a thread
    that is left behind when it takes too long.
    """
    with contextlib.suppress(socket.gaierror):
        return _look_up(host, port, socket.AI_NUMERICHOST)
    found: Future[list[Candidate]] = Future()

    def look_up() -> None:
        try:
            found.set_result(_look_up(host, port, 0))
        except OSError as error:
            found.set_exception(error)

    threading.Thread(target=look_up, name="kv-transfer-name", daemon=True).start()
    try:
        return found.result(timeout=max(deadline - time.monotonic(), 1e-3))
    except TimeoutError as error:
        raise TimeoutError(f"{host} was not looked up in time") from error


def _look_up(host: str, port: int, flags: int) -> list[Candidate]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except UnicodeError as error:
        raise OSError(f"not a host name: {error}") from error
    return [(family, address) for family, _, _, _, address in found]
