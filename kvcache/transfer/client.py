"""The decode side of the transfer port."""

from collections.abc import Sequence

from kvcache.transfer.frame_tap import FrameTap
from kvcache.transfer.handle import LAYOUT_BYTES, KvHandle
from kvcache.transfer.pull import Pull
from kvcache.transfer.pull_settings import PullSettings
from kvcache.transfer.registered_memory import RegisteredMemory
from kvcache.transfer.transports.table import TRANSPORTS
from kvcache.transfer.transports.transport import Transport


class TransferClient:
    """Pulls KV into `memory`. Holds no thread and no connection between pulls; any thread may use it.

    `transports` are tried in that order. `silence_timeout_s` is how long a peer may send nothing (it sends a sign of
    life at least every second), `connect_timeout_s` is for connecting and the answer to the claim, and one pull makes
    at most `max_connections`, one after the other. `secret` is that of the cluster, if it has one.
    """

    def __init__(
        self,
        memory: RegisteredMemory,
        layout_fingerprint: bytes,
        *,
        transports: Sequence[Transport] = TRANSPORTS,
        connect_timeout_s: float = 2.0,
        silence_timeout_s: float = 3.0,
        max_connections: int = 2,
        secret: bytes | None = None,
        tap: FrameTap | None = None,
    ) -> None:
        if len(layout_fingerprint) != LAYOUT_BYTES:
            raise ValueError(f"layout_fingerprint has {LAYOUT_BYTES} bytes, got {len(layout_fingerprint)}")
        if max_connections < 1 or min(connect_timeout_s, silence_timeout_s) <= 0:
            raise ValueError("max_connections must be at least 1, connect_timeout_s and silence_timeout_s above 0")
        if not transports:
            raise ValueError("transports is empty")
        self._memory = memory
        self._settings = PullSettings(
            layout=layout_fingerprint,
            transports=tuple(transports),
            connect_timeout_s=connect_timeout_s,
            silence_timeout_s=silence_timeout_s,
            max_connections=max_connections,
            secret=secret,
            tap=tap,
        )

    def pull(self, handle: KvHandle, num_skip: int, blocks: Sequence[int]) -> Pull:
        """Makes a pull of one prompt's KV, not running yet: `run()` it in a worker thread, `cancel()` it from any.

        `blocks` are this pool's blocks for the whole prompt, in order. The first `num_skip` hold their content
        already and are left alone.
        """
        return Pull(self._memory, self._settings, handle, num_skip, blocks)
