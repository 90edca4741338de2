"""`python -m serving.bound_to_parent PARENT MODULE FLAG…`: runs MODULE in a process that the kernel ends with PARENT.

The process asks for that itself: asked for between fork and exec, it would make a parent that uses gRPC really fork,
of which gRPC complains on the terminal.
"""

import ctypes
import os
import runpy
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, module, *flags = sys.argv[1:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):
        return  # it has died before it was asked about
    sys.argv[:] = [module, *flags]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
