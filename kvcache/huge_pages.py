"""Memory of the operating system, in large pages where it has them."""

import contextlib
import mmap


def mapped_memory(num_bytes: int) -> mmap.mmap:
    """Anonymous and private: lazily zeroed, page-aligned, and not counted against /dev/shm.

    Reading much memory is bound by the look-up of its pages, above all in a virtual machine; large ones need fewer.
    """
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
