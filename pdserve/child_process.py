"""A process of ours on this machine: started with its own log, ended in order, never left behind."""

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

STOP_TIMEOUT_S = 15.0
LOG_TAIL_LINES = 15


class ChildProcess:
    """`start`, then `exited` tells when it ends, `stop` ends it."""

    def __init__(self, name: str, module: str, flags: Sequence[str], log: Path) -> None:
        self.name = name
        self.log = log
        self._arguments = ["-m", "serving.bound_to_parent", str(os.getpid()), module, *flags]
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    async def start(self, environ: Mapping[str, str]) -> None:
        """It has a session of its own: a terminal's Ctrl-C reaches only us, and the order of ending is ours."""
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *self._arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(environ),
                start_new_session=True,
            )

    async def exited(self) -> int:
        """The exit status, once it ended; negative for a signal."""
        assert self._process is not None, "not started"
        return await self._process.wait()

    async def stop(self) -> None:
        """SIGTERM; SIGKILL for one that does not end within STOP_TIMEOUT_S. Harmless when it has ended."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()

    def last_line(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        return lines[-1] if lines else "it said nothing"

    def log_tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-LOG_TAIL_LINES:])
