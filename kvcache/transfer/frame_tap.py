"""Where faults enter a transfer: a look at each frame before it is sent."""

from collections.abc import Callable

from kvcache.transfer.frames import Frame

FrameTap = Callable[[Frame, list[memoryview]], list[memoryview] | None]
"""Gets a frame and the byte ranges that stand for it, blocks behind it included, and returns what is sent instead.

None closes the connection. It runs in the thread that sends, may take its time, and may be called by several threads.
"""
