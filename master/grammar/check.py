"""Whether outputs can be kept to the grammar of a request, found out before any worker hears of it."""

import asyncio
import hashlib
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import OrderedDict

from master.errors import ErrorKind, ServingError, invalid
from protos.sampling_messages import Grammar
from serving.grammar_source import grammar_source

MAX_KNOWN = 1024  # verdicts kept
MAX_WAITING = 64
TIMEOUT_S = 10.0  # with the wait for its turn; one grammar has the processor for at most a second

TOO_SLOW = "it takes more than a second to compile"
TOO_COMPLEX = "it is nested too deep, or takes too much memory to compile"
DEATHS = {
    -signal.SIGPROF: TOO_SLOW,
    -signal.SIGSEGV: TOO_COMPLEX,
    -signal.SIGBUS: TOO_COMPLEX,
    -signal.SIGABRT: TOO_COMPLEX,
}


class GrammarCheck:
    """Has grammars compiled one after another by a process of its own, `master.grammar.compiler`, and replaces that
    when it dies of one. It runs from the first grammar on, until `close`."""

    def __init__(self) -> None:
        self._process: Process | None = None
        self._turn = asyncio.Lock()
        self._num_waiting = 0
        self._problems: OrderedDict[bytes, str] = OrderedDict()

    async def check(self, field: str, grammar: Grammar) -> None:
        """Raises ServingError naming `field`: INVALID_REQUEST for a grammar that is wrong or too costly, OVERLOADED
        when too many are being checked, INTERNAL when it can't be found out."""
        try:
            source = grammar_source(grammar)
        except ValueError as error:
            raise invalid(field, f"{field} cannot be used: {error}") from error
        problem = await self._problem(source)
        if problem:
            raise invalid(field, f"{field} cannot be used: {problem}")

    async def close(self) -> None:
        if self._process is not None:
            await _end(self._process)
            self._process = None

    async def _problem(self, source: str) -> str:
        key = hashlib.blake2b(source.encode(), digest_size=16).digest()
        if key not in self._problems:
            if self._num_waiting == MAX_WAITING:
                raise _overloaded(f"{MAX_WAITING} grammars are being checked")
            self._num_waiting += 1
            try:
                async with asyncio.timeout(TIMEOUT_S), self._turn:
                    if key not in self._problems:
                        self._problems[key] = await self._compile(source)
            except TimeoutError as error:
                raise _overloaded(f"the grammar was not checked within {TIMEOUT_S:g} s") from error
            finally:
                self._num_waiting -= 1
        self._problems.move_to_end(key)
        if len(self._problems) > MAX_KNOWN:
            self._problems.popitem(last=False)
        return self._problems[key]

    async def _compile(self, source: str) -> str:
        """What is wrong with it, empty for nothing. Asks a second process if the first died of something else."""
        status = 0
        for _ in range(2):
            process, self._process = self._process, None
            if process is None:
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "master.grammar.compiler", stdin=PIPE, stdout=PIPE
                )
            try:
                problem = await _ask(process, source)
                if problem is not None:
                    self._process = process
                    return problem
                status = await process.wait()
            finally:
                # else what it says next would be taken for the answer to another's question
                if self._process is None:
                    await _end(process)
            if status in DEATHS:
                return DEATHS[status]
        raise ServingError(ErrorKind.INTERNAL, f"the process that compiles grammars ended with status {status}")


async def _ask(process: Process, source: str) -> str | None:
    """None if it dies of the question."""
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(json.dumps(source).encode() + b"\n")
        await process.stdin.drain()
    except (ConnectionError, RuntimeError):  # the latter is uvloop's for a pipe that it has closed already
        return None
    answer = await process.stdout.readline()
    if not answer:
        return None
    problem: str = json.loads(answer)
    return problem


async def _end(process: Process) -> None:
    if process.returncode is None:
        process.kill()
        await process.wait()


def _overloaded(message: str) -> ServingError:
    return ServingError(ErrorKind.OVERLOADED, message, retry_after_s=1)
