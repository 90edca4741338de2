"""The worker's side of the transfer port: exports for decode workers, pulls from prefill workers."""

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from kvcache.transfer.client import TransferClient
from kvcache.transfer.counters import ServerCounters
from kvcache.transfer.errors import TransferError, TransferFailure
from kvcache.transfer.export import Export, ReleaseReason
from kvcache.transfer.handle import KvHandle
from kvcache.transfer.port_thread import report_death
from kvcache.transfer.pull import Pull, TransferResult
from kvcache.transfer.server import TransferServer
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
        self._pullers.submit(lambda: None)  # one thread is there from now on
        self._lock = threading.Lock()
        self._pulls: set[Pull] = set()  # that have not ended
        self._received = TransferCounters()
        self._times = dict.fromkeys(server.counters.num_bytes, PullTimes())

    @property
    def address(self) -> str:
        return self._server.address

    @property
    def sent(self) -> ServerCounters:
        """What the transfer server counted."""
        return self._server.counters

    @property
    def death(self) -> "Future[None]":
        """Gets the error that ended a thread of the port; the worker is of no use without it."""
        return self._server.death

    def export(self, leg: int, on_release: Callable[[ReleaseReason], None]) -> Export:
        return self._server.open(leg, on_release)

    def pull(
        self, handle: KvHandle, num_skip: int, blocks: Sequence[int], on_end: Callable[[PullOutcome], None]
    ) -> Pull:
        """Begins to pull; `on_end` is called once, and from then on nothing writes into `blocks`."""
        pull = self._client.pull(handle, num_skip, blocks)
        with self._lock:
            self._pulls.add(pull)
        try:
            self._pullers.submit(self._run, handle.leg, pull, on_end)
        except RuntimeError as error:
            # The system gives no thread. The pull is in line all the same, for one that is there.
            logger.warning("pull of leg %d waits for another to end: %s", handle.leg, error)
        return pull

    def counters(self) -> TransferCounters:
        with self._lock:
            received = self._received
        return replace(received, blocks_sent=sum(self._server.counters.num_blocks.values()))

    def times(self) -> dict[str, PullTimes]:
        """How long the pulls took that succeeded, by transport."""
        with self._lock:
            return dict(self._times)

    def close(self) -> None:
        """Ends every pull, export and connection."""
        with self._lock:
            pulls = list(self._pulls)
        for pull in pulls:
            pull.cancel()
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
            self._pulls.discard(pull)
            self._count(outcome)
        try:
            on_end(outcome)
        except Exception as error:
            logger.exception("nobody learns how the pull of leg %d ended", leg)
            report_death(self.death, error)

    def _count(self, outcome: PullOutcome) -> None:
        counters = self._received
        if isinstance(outcome, TransferError):
            self._received = replace(counters, failures=counters.failures + 1)
            return
        self._received = replace(
            counters,
            blocks_received=counters.blocks_received + outcome.num_blocks_sent,
            blocks_skipped=counters.blocks_skipped + outcome.num_blocks_skipped,
            bytes_received=counters.bytes_received + outcome.num_bytes,
        )
        times = self._times[outcome.transport]
        self._times[outcome.transport] = PullTimes(
            times.num_pulls + 1, times.total_s + outcome.duration_s, times.wait_s + outcome.wait_s
        )
