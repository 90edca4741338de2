"""One-sided reads from another process of this host, by `process_vm_readv(2)` (Linux).

Needs the permission that ptrace needs: the same user, no yama restriction, the same pid namespace. Nobody can tell
beforehand, so D reads a nonce first and takes TCP when that fails.
"""

import ctypes
import errno
import os
import secrets
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from kvcache.pool_memory import PoolMemory
from kvcache.transfer.channel import Channel
from kvcache.transfer.checksum import block_checksums
from kvcache.transfer.errors import TransferError, TransferFailure
from kvcache.transfer.payloads import NONCE_BYTES, Accept, Offer
from kvcache.transfer.transports.transport import BlockBatch

MAX_RANGES_PER_CALL = 1024  # IOV_MAX

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


class Nonce:
    """Random bytes at a known place of this process; reading them proves that one-sided reads work and hit P."""

    def __init__(self) -> None:
        self.value = secrets.token_bytes(NONCE_BYTES)
        self._memory = ctypes.create_string_buffer(self.value, NONCE_BYTES)

    def accept(self) -> Accept:
        return Accept(os.getpid(), ctypes.addressof(self._memory), self.value)


def can_read(accept: Accept) -> bool:
    """Whether the nonce that P speaks of is found at the address it names."""
    if accept.process_id is None or _process_vm_readv is None:
        return False
    found = bytearray(NONCE_BYTES)
    try:
        _read(accept.process_id, np.array([[accept.nonce_address, NONCE_BYTES]], np.uint64), _ranges([found]))
    except OSError:
        return False
    return secrets.compare_digest(found, accept.nonce)


class VmReadSender:
    """Tells D where the blocks are. D reads them at its own time, under the lease."""

    def __init__(self, channel: Channel, memory: PoolMemory, timeout_s: float) -> None:
        self._channel = channel
        self._memory = memory
        self._timeout_s = timeout_s

    def send(self, batch: BlockBatch) -> int:
        views = self._memory.block_views(batch.blocks)
        checksums = block_checksums(views, self._memory.layout.block_bytes)
        addresses = [self._memory.address(block) for block in batch.blocks]
        self._channel.send(Offer(batch.first, checksums, addresses).frame(), self._timeout_s)
        return sum(view.nbytes for view in views)


class VmReadReceiver:
    def __init__(self, process_id: int, block_bytes: int) -> None:
        self._process_id = process_id
        self._block_bytes = block_bytes

    def receive(self, addresses: Sequence[int] | None, landing: Sequence[memoryview]) -> None:
        assert addresses is not None
        remote = np.empty((len(addresses), 2), np.uint64)
        remote[:, 0] = addresses
        remote[:, 1] = self._block_bytes
        try:
            _read(self._process_id, remote, _ranges(landing))
        except OSError as error:
            raise TransferError(TransferFailure.PEER_CLOSED, f"one-sided read: {error}") from error


def _ranges(views: Sequence[memoryview | bytearray]) -> _Ranges:
    """`views` as rows (address, length), the layout of `struct iovec` on a 64-bit system."""
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
