"""A transfer socket: whole frames and whole byte ranges, each operation with a deadline."""

import contextlib
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice

from kvcache.transfer.errors import TransferError, TransferFailure
from kvcache.transfer.frame_tap import FrameTap
from kvcache.transfer.frames import HEADER_BYTES, Frame, Header

# A system call moves at most a socket buffer; more ranges than this only cost time to list.
_MAX_RANGES_PER_CALL = 256


class Channel:
    """One thread sends and receives; any thread may `shutdown`, which ends what that thread waits for.

    Sending and receiving raise TransferError with TIMEOUT or PEER_CLOSED.
    """

    def __init__(self, stream: socket.socket, tap: FrameTap | None = None) -> None:
        """Owns `stream`, connected or about to be, unless this raises OSError. `tap` decides about each frame sent."""
        self._socket = stream
        self._tap = tap
        self._lock = threading.Lock()
        self._is_closed = False
        self._is_shut_down = False
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def fileno(self) -> int:
        return self._socket.fileno()

    def connect(self, address: tuple[object, ...], timeout_s: float) -> None:
        """Raises OSError."""
        self._socket.settimeout(timeout_s)
        self._socket.connect(address)

    def send(self, frame: Frame, timeout_s: float, data: Sequence[memoryview] = ()) -> None:
        """Sends the frame and, right behind it, `data`; `timeout_s` is for all of it."""

        def send_some(ranges: list[memoryview]) -> int:
            self._socket.settimeout(max(deadline - time.monotonic(), 1e-3))
            return self._socket.sendmsg(ranges)

        deadline = time.monotonic() + timeout_s
        ranges = [memoryview(frame.pack()), *data]
        if self._tap is not None:
            ranges = self._tapped(self._tap, frame, ranges)
        self._move(ranges, send_some, deadline)

    def receive(self, silence_s: float) -> Frame:
        """Returns the next frame, whose sender may say nothing for `silence_s`. Raises FrameError for a damaged one."""
        header_bytes = bytearray(HEADER_BYTES)
        self.receive_into([memoryview(header_bytes)], silence_s)
        header = Header.parse(header_bytes)
        payload = bytearray(header.payload_bytes)
        self.receive_into([memoryview(payload)], silence_s)
        header.check(payload)
        return Frame(header.type, bytes(payload))

    def receive_into(self, views: Sequence[memoryview], silence_s: float) -> None:
        """Fills `views`, straight from the socket."""

        def receive_some(ranges: list[memoryview]) -> int:
            num_bytes, _, _, _ = self._socket.recvmsg_into(ranges)
            if num_bytes == 0:
                raise TransferError(TransferFailure.PEER_CLOSED, "connection ended")
            return num_bytes

        self._socket.settimeout(silence_s)
        self._move(views, receive_some, None)

    def finish(self, timeout_s: float) -> None:
        """Nothing more will be sent; waits until the peer has hung up, so that it has got the last frame.

        Closing with unread input would reset the connection, and the peer might lose what it was sent last.
        """
        deadline = time.monotonic() + timeout_s
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
            while (remaining_s := deadline - time.monotonic()) > 0:
                self._socket.settimeout(remaining_s)
                if not self._socket.recv(4096):
                    return

    def shutdown(self) -> None:
        """Ends the connection for both sides; harmless when it is over."""
        with self._lock:
            self._is_shut_down = True
            if not self._is_closed:
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        # Under the lock: a shutdown from another thread must not hit a descriptor that is somebody else's by then.
        with self._lock:
            self._is_closed = True
            self._socket.close()

    def _tapped(self, tap: FrameTap, frame: Frame, ranges: list[memoryview]) -> list[memoryview]:
        passed = tap(frame, ranges)
        if passed is None:
            self.shutdown()
            raise TransferError(TransferFailure.PEER_CLOSED, "closed by a fault that was asked for")
        return passed

    def _move(
        self, views: Sequence[memoryview], some: Callable[[list[memoryview]], int], deadline: float | None
    ) -> None:
        remaining = deque(view for view in views if view.nbytes)
        if self._is_shut_down:
            # What the peer sent before could still be read, but nobody wants it.
            raise TransferError(TransferFailure.PEER_CLOSED, "connection was shut down")
        try:
            while remaining:
                if deadline is not None and time.monotonic() >= deadline:
                    raise TimeoutError
                num_bytes = some(list(islice(remaining, _MAX_RANGES_PER_CALL)))
                while remaining and num_bytes >= remaining[0].nbytes:
                    num_bytes -= remaining.popleft().nbytes
                if num_bytes:
                    remaining[0] = remaining[0][num_bytes:]
        except TimeoutError as error:
            raise TransferError(TransferFailure.TIMEOUT, "peer is silent") from error
        except OSError as error:
            raise TransferError(TransferFailure.PEER_CLOSED, str(error)) from error
