"""The decode side of the transfer port."""

from collections.abc import Callable, Collection, Sequence

from kvcache.pool_memory import PoolMemory
from kvcache.transfer.handle import LAYOUT_BYTES, KvHandle
from kvcache.transfer.pull import Pull, PullSettings
from kvcache.transfer.transports.host_identity import this_host
from kvcache.transfer.transports.transport import TransportKind


class TransferClient:
    """Pulls KV into `memory`. Holds no thread and no connection between pulls; any thread may use it.

    `silence_timeout_s` is how long a peer may send nothing (it sends a sign of life at least every second),
    `connect_timeout_s` is for connecting and the answer to HELLO, `legs` counts connections for one pull.
    `secret` is that of the cluster, if it has one.
    """

    def __init__(
        self,
        memory: PoolMemory,
        layout_fingerprint: bytes,
        *,
        transports: Collection[TransportKind] = (TransportKind.VM_READ, TransportKind.TCP),
        connect_timeout_s: float = 2.0,
        silence_timeout_s: float = 3.0,
        legs: int = 2,
        secret: bytes | None = None,
    ) -> None:
        if len(layout_fingerprint) != LAYOUT_BYTES:
            raise ValueError(f"layout_fingerprint has {LAYOUT_BYTES} bytes, got {len(layout_fingerprint)}")
        if legs < 1 or min(connect_timeout_s, silence_timeout_s) <= 0:
            raise ValueError("legs must be at least 1, connect_timeout_s and silence_timeout_s above 0")
        if not transports:
            raise ValueError("transports is empty")
        self._memory = memory
        self._settings = PullSettings(
            layout=layout_fingerprint,
            transports=frozenset(transports),
            host=this_host(),
            connect_timeout_s=connect_timeout_s,
            silence_timeout_s=silence_timeout_s,
            legs=legs,
            secret=secret,
        )

    def pull(
        self,
        handle: KvHandle,
        num_skip: int,
        blocks: Sequence[int],
        on_progress: Callable[[int], None] | None = None,
    ) -> Pull:
        """A pull of one prompt's KV, not running yet: `run()` it in a worker thread, `cancel()` it from any.

        `blocks` are this pool's blocks for the whole prompt, in order. The first `num_skip` hold their content
        already and are left alone. `on_progress` gets the number of leading blocks that are verified, in the
        thread that runs the pull, and must not block.
        """
        return Pull(self._memory, self._settings, handle, num_skip, blocks, on_progress)
