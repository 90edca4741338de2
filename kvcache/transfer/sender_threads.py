"""The senders that run, each with its thread."""

import threading

from kvcache.transfer.sender import Sender


class SenderThreads:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: dict[Sender, threading.Thread] = {}  # those that ended leave when the next one starts

    @property
    def num_running(self) -> int:
        with self._lock:
            return sum(thread.is_alive() for thread in self._threads.values())

    def start(self, sender: Sender) -> None:
        """Raises RuntimeError where the system gives no thread; then it is the caller's to close."""
        thread = threading.Thread(target=sender.run, name=f"kv-transfer-send-{sender.leg}", daemon=True)
        with self._lock:
            self._threads = {sender: thread for sender, thread in self._threads.items() if thread.is_alive()}
            thread.start()
            self._threads[sender] = thread

    def end(self) -> None:
        """Cuts every connection and joins every thread; none may be started any more."""
        with self._lock:
            threads, self._threads = self._threads, {}
        for sender, thread in threads.items():
            sender.cut()
            thread.join()
