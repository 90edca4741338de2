"""A process of `master.grammar.compiler`, asked one question after another until it dies of one."""

import json
import logging
import signal
import sys
import tempfile
from asyncio.subprocess import PIPE, Process, create_subprocess_exec
from typing import IO

logger = logging.getLogger(__name__)

LAST_WORDS_BYTES = 2000


class CompilerProcess:
    """`start`, then `ask`, then `end`, also after a death."""

    def __init__(self, process: Process, stderr: IO[bytes]) -> None:
        self._process = process
        self._stderr = stderr

    @classmethod
    async def start(cls) -> "CompilerProcess":
        stderr = tempfile.TemporaryFile()  # noqa: SIM115  # the process's; a pipe would have to be read all the time
        try:
            command = (sys.executable, "-m", "master.grammar.compiler")
            return cls(await create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=stderr), stderr)
        except BaseException:
            stderr.close()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ask(self, source: str) -> str | None:
        """What is wrong with the source, empty for nothing; None if the process dies of the question."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(source).encode() + b"\n")
            await self._process.stdin.drain()
        except (ConnectionError, RuntimeError):  # the latter is uvloop's for a pipe that it has closed already
            return None
        answer = await self._process.stdout.readline()
        if not answer.endswith(b"\n"):
            return None
        problem: str = json.loads(answer)
        return problem

    async def death(self) -> int:
        """The status of a process that did not answer; logs what it said last."""
        status = await self._process.wait()
        self._stderr.seek(0)
        said = self._stderr.read()[-LAST_WORDS_BYTES:].decode(errors="replace").strip()
        cause = signal.Signals(-status).name if status < 0 else f"status {status}"
        logger.warning("a process that compiles grammars ended by %s%s", cause, f": {said}" if said else "")
        return status

    async def end(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        self._stderr.close()
