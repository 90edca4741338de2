"""The worker's side of the transfer port: exports for decode workers, pulls from prefill workers."""

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from kvcache.transfer.client import TransferClient
from kvcache.transfer.counters import ServerCounters
from kvcache.transfer.errors import TransferError, TransferFailure
from kvcache.transfer.export import Export, ReleaseReason
from kvcache.transfer.handle import KvHandle
from kvcache.transfer.pull import Pull, TransferResult
from kvcache.transfer.server import TransferServer
from kvcache.transfer.transports.transport import TransportKind
from protos.session_messages import TransferCounters
from worker.engines.compute_engine import PullTimes

logger = logging.getLogger(__name__)

PullOutcome = TransferResult | TransferError


class KvPort:
    """Owns the transfer server, the client and the threads that pull. Callbacks run on those threads."""

    def __init__(self, server: TransferServer, client: TransferClient, max_pulls: int) -> None:
        self._server = server
        self._client = client
        self._pullers = ThreadPoolExecutor(max_pulls, thread_name_prefix="kv-pull")
        self._lock = threading.Lock()
        self._received = TransferCounters()
        self._times = dict.fromkeys(TransportKind, PullTimes())

    @property
    def address(self) -> str:
        return self._server.address

    @property
    def sent(self) -> ServerCounters:
        """What the transfer server counted."""
        return self._server.counters

    def export(self, leg: int, on_release: Callable[[ReleaseReason], None]) -> Export:
        return self._server.open(leg, on_release)

    def pull(
        self, handle: KvHandle, num_skip: int, blocks: Sequence[int], on_end: Callable[[PullOutcome], None]
    ) -> Pull:
        """Begin to pull; `on_end` is called once, and from then on nothing writes into `blocks`."""
        pull = self._client.pull(handle, num_skip, blocks)
        self._pullers.submit(self._run, handle.leg, pull, on_end)
        return pull

    def counters(self) -> TransferCounters:
        sent = self._server.counters
        with self._lock:
            received = self._received
        return TransferCounters(
            blocks_sent=sum(sent.num_blocks.values()),
            blocks_received=received.blocks_received,
            blocks_skipped=received.blocks_skipped,
            bytes_received=received.bytes_received,
            failures=received.failures,
        )

    def times(self) -> dict[TransportKind, PullTimes]:
        """How long the pulls took that succeeded."""
        with self._lock:
            return dict(self._times)

    def close(self) -> None:
        """End every export and connection. Pulls must have been cancelled before."""
        self._pullers.shutdown(wait=True, cancel_futures=False)
        self._server.close()

    def _run(self, leg: int, pull: Pull, on_end: Callable[[PullOutcome], None]) -> None:
        outcome: PullOutcome
        try:
            outcome = pull.run()
        except TransferError as error:
            outcome = error
        except Exception as error:
            # Whatever it was, the blocks are released only when `on_end` is called.
            logger.exception("pull of leg %d broke", leg)
            outcome = TransferError(TransferFailure.BROKEN, f"pull broke: {error!r}")
        with self._lock:
            self._received = _count(self._received, outcome)
            if isinstance(outcome, TransferResult):
                times = self._times[outcome.transport]
                self._times[outcome.transport] = PullTimes(
                    times.num_pulls + 1, times.total_s + outcome.duration_s, times.wait_s + outcome.wait_s
                )
        on_end(outcome)


def _count(counters: TransferCounters, outcome: PullOutcome) -> TransferCounters:
    if isinstance(outcome, TransferError):
        return TransferCounters(
            blocks_received=counters.blocks_received,
            blocks_skipped=counters.blocks_skipped,
            bytes_received=counters.bytes_received,
            failures=counters.failures + 1,
        )
    return TransferCounters(
        blocks_received=counters.blocks_received + outcome.num_blocks_sent,
        blocks_skipped=counters.blocks_skipped + outcome.num_blocks_skipped,
        bytes_received=counters.bytes_received + outcome.num_bytes,
        failures=counters.failures,
    )
