"""One-sided reads from another process of this host, by `process_vm_readv(2)` (Linux).

Needs the permission that ptrace needs: the same user, no yama restriction, the same pid namespace. Nobody can tell
beforehand, so the puller reads a nonce at a place that the prefill side names, which also proves whose memory it reads.
"""

import ctypes
import errno
import os
import secrets
import struct
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from kvcache.transfer.channel import Channel
from kvcache.transfer.checksum import block_checksums
from kvcache.transfer.errors import TransferError, TransferFailure
from kvcache.transfer.frames import FrameError
from kvcache.transfer.payloads import Blocks
from kvcache.transfer.registered_memory import RegisteredMemory
from kvcache.transfer.transports.host_identity import HostIdentity, this_host
from kvcache.transfer.transports.transport import BlockBatch

MAX_RANGES_PER_CALL = 1024  # IOV_MAX
NONCE_BYTES = 16

_OFFER = struct.Struct("!16sQIQ16s")  # boot id, pid namespace, process id, address of the nonce, nonce
_U64 = np.dtype(">u8")
_VmRead = Callable[[int, int, int, int, int, int], int]
_Ranges = npt.NDArray[np.uint64]


def _find_read() -> _VmRead | None:
    try:
        function = ctypes.CDLL(None, use_errno=True).process_vm_readv
    except (OSError, AttributeError):
        return None
    pointer, number = ctypes.c_void_p, ctypes.c_ulong
    function.argtypes = [ctypes.c_int, pointer, number, pointer, number, number]
    function.restype = ctypes.c_ssize_t
    read: _VmRead = function
    return read


_process_vm_readv = _find_read()


class VmRead:
    name = "vm_read"
    kind = 2
    is_one_sided = True

    def __init__(self) -> None:
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._memory = ctypes.create_string_buffer(self._nonce, NONCE_BYTES)

    def offer(self, memory: RegisteredMemory) -> bytes | None:
        host = this_host()
        if host is None or not memory.is_host:
            return None
        address = ctypes.addressof(self._memory)
        return _OFFER.pack(host.boot_id, host.pid_namespace, os.getpid(), address, self._nonce)

    def can_use(self, offer: bytes, memory: RegisteredMemory) -> bool:
        boot_id, pid_namespace, process_id, address, nonce = _parse(offer)
        if _process_vm_readv is None or HostIdentity(boot_id, pid_namespace) != this_host():
            return False
        found = bytearray(NONCE_BYTES)
        try:
            _read(process_id, np.array([[address, NONCE_BYTES]], np.uint64), _ranges([found]))
        except OSError:
            return False
        return secrets.compare_digest(found, nonce)

    def sender(self, channel: Channel, memory: RegisteredMemory, timeout_s: float) -> "VmReadSender":
        return VmReadSender(channel, memory, timeout_s)

    def receiver(
        self, channel: Channel, offer: bytes, memory: RegisteredMemory, silence_timeout_s: float
    ) -> "VmReadReceiver":
        _, _, process_id, _, _ = _parse(offer)
        return VmReadReceiver(process_id, memory.block_bytes)


class VmReadSender:
    """Tells the puller where the blocks are, which reads them at its own time, under the lease."""

    def __init__(self, channel: Channel, memory: RegisteredMemory, timeout_s: float) -> None:
        self._channel = channel
        self._memory = memory
        self._timeout_s = timeout_s

    def send(self, batch: BlockBatch) -> int:
        views = self._memory.block_views(batch.blocks)
        checksums = block_checksums(views, self._memory.block_bytes)
        addresses = np.array([self._memory.address(block) for block in batch.blocks], _U64)
        self._channel.send(Blocks(batch.first, checksums, addresses.tobytes()).frame(), self._timeout_s)
        return sum(view.nbytes for view in views)


class VmReadReceiver:
    def __init__(self, process_id: int, block_bytes: int) -> None:
        self._process_id = process_id
        self._block_bytes = block_bytes

    def receive(self, told: bytes, landing: Sequence[memoryview]) -> None:
        num_blocks = sum(view.nbytes for view in landing) // self._block_bytes
        if len(told) != num_blocks * _U64.itemsize:
            raise FrameError(f"{len(told)} bytes of addresses for {num_blocks} blocks")
        remote = np.empty((num_blocks, 2), np.uint64)
        remote[:, 0] = np.frombuffer(told, _U64)
        remote[:, 1] = self._block_bytes
        try:
            _read(self._process_id, remote, _ranges(landing))
        except OSError as error:
            raise TransferError(TransferFailure.PEER_CLOSED, f"one-sided read: {error}") from error


def _parse(offer: bytes) -> tuple[bytes, int, int, int, bytes]:
    try:
        boot_id, pid_namespace, process_id, address, nonce = _OFFER.unpack(offer)
    except struct.error as error:
        raise FrameError(f"offer of one-sided reads: {error}") from None
    if not 0 < process_id < 2**31:
        raise FrameError(f"offer of one-sided reads from process {process_id}")
    return boot_id, pid_namespace, process_id, address, nonce


def _ranges(views: Sequence[memoryview | bytearray]) -> _Ranges:
    """Returns `views` as rows (address, length), the layout of `struct iovec` on a 64-bit system."""
    arrays = [np.frombuffer(view, np.uint8) for view in views]
    return np.array([(array.ctypes.data, array.nbytes) for array in arrays], np.uint64).reshape(-1, 2)


def _read(process_id: int, remote: _Ranges, local: _Ranges) -> None:
    """Copies the remote ranges, in order, into the local ones. Raises OSError, also for a short read."""
    assert _process_vm_readv is not None
    assert max(len(remote), len(local)) <= MAX_RANGES_PER_CALL, (len(remote), len(local))
    wanted = int(local[:, 1].sum())
    num_bytes = _process_vm_readv(process_id, local.ctypes.data, len(local), remote.ctypes.data, len(remote), 0)
    if num_bytes < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    if num_bytes < wanted:
        raise OSError(errno.EFAULT, f"{num_bytes} of {wanted} bytes were readable")
