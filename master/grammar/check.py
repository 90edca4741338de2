"""Whether outputs can be kept to the grammar of a request, found out before any worker hears of it."""

import asyncio
import hashlib
import signal
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from master.errors import ErrorKind, ServingError, invalid
from master.grammar.compiler_process import CompilerProcess
from protos.sampling_messages import Grammar, GrammarKind
from serving.grammar_source import grammar_source

MAX_KNOWN = 1024  # verdicts kept
MAX_WAITING = 64
MAX_PROCESSES = 3  # for one grammar: two must have died of it before it is to blame
# With the wait for its turn. What a grammar may cost is counted in the processor's time, whatever else runs there.
TIMEOUT_S = 120.0
DEATH_VERDICT_S = 300.0  # a machine in trouble may have killed both

HARMLESS = grammar_source(Grammar(GrammarKind.REGEX, "a"))  # who dies of this one dies of something else
TOO_SLOW = "it takes too long to compile"
TOO_COMPLEX = "it is nested too deep, or takes too much memory to compile"
DEATHS = {
    -signal.SIGPROF: TOO_SLOW,
    -signal.SIGSEGV: TOO_COMPLEX,
    -signal.SIGBUS: TOO_COMPLEX,
    -signal.SIGABRT: TOO_COMPLEX,
}


@dataclass(frozen=True, slots=True)
class _Verdict:
    problem: str  # empty for none
    until_s: float = inf


class GrammarCheck:
    """Has grammars compiled one after another by a process of its own, `master.grammar.compiler`, and replaces that
    when it dies of one. It runs from the first grammar on, until `close`."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._process: CompilerProcess | None = None
        self._turn = asyncio.Lock()
        self._num_waiting = 0
        self._verdicts: OrderedDict[bytes, _Verdict] = OrderedDict()

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
            await self._process.end()
            self._process = None

    async def _problem(self, source: str) -> str:
        key = hashlib.blake2b(source.encode(), digest_size=16).digest()
        if not self._knows(key):
            if self._num_waiting == MAX_WAITING:
                raise _overloaded(f"{MAX_WAITING} grammars are being checked")
            self._num_waiting += 1
            try:
                async with asyncio.timeout(TIMEOUT_S), self._turn:
                    if not self._knows(key):
                        self._verdicts[key] = await self._judge(source)
            except TimeoutError as error:
                raise _overloaded(f"the grammar was not checked within {TIMEOUT_S:g} s") from error
            finally:
                self._num_waiting -= 1
        self._verdicts.move_to_end(key)
        if len(self._verdicts) > MAX_KNOWN:
            self._verdicts.popitem(last=False)
        return self._verdicts[key].problem

    def _knows(self, key: bytes) -> bool:
        verdict = self._verdicts.get(key)
        return verdict is not None and self._now() < verdict.until_s

    async def _judge(self, source: str) -> _Verdict:
        """A process may die of something else than the grammar, so that a fresh one has to die of it as well, and yet
        another has to outlive one that is harmless."""
        num_deaths = 0
        for _ in range(MAX_PROCESSES):
            answer = await self._ask(source)
            if isinstance(answer, str):
                return _Verdict(answer)
            num_deaths += answer in DEATHS
            if num_deaths == 2:
                if not isinstance(await self._ask(HARMLESS), str):
                    break
                return _Verdict(DEATHS[answer], self._now() + DEATH_VERDICT_S)
        raise ServingError(ErrorKind.INTERNAL, "the processes that compile grammars end; the log says how")

    async def _ask(self, source: str) -> str | int:
        """What is wrong with it, empty for nothing; or the status of the process that died of the question."""
        process, self._process = self._process, None
        if process is None:
            process = await CompilerProcess.start()
        try:
            problem = await process.ask(source)
            if problem is None:
                return await process.death()
            self._process = process
            return problem
        finally:
            # else what it says next would be taken for the answer to another's question
            if self._process is None:
                await process.end()


def _overloaded(message: str) -> ServingError:
    return ServingError(ErrorKind.OVERLOADED, message)
