"""Wakes a thread that waits on descriptors."""

import contextlib
import socket


class Wakeup:
    """`set` from any thread makes `fileno` readable until the waiting thread calls `clear`."""

    def __init__(self) -> None:
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)

    def fileno(self) -> int:
        return self._receiver.fileno()

    def set(self) -> None:
        # A full buffer means that it is readable already, a closed one that nobody waits any more.
        with contextlib.suppress(OSError):
            self._sender.send(b"\0")

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while len(self._receiver.recv(4096)) == 4096:
                pass

    def close(self) -> None:
        self._receiver.close()
        self._sender.close()
