"""The process that compiles grammars on a master's behalf: a source in, what is wrong with it out, each a line of JSON.

Compiling recurses, and a chain of a thousand $refs overflows a thread's stack; some regexes take the time and memory
of many requests. Both end this process instead of a worker, and on a stack smaller than a worker's.
"""

import json
import os
import resource
import signal
import sys
import threading
import traceback

from llguidance import LLMatcher, LLTokenizer

from serving.grammar_source import grammar_problem, parser_limits

# Of the processor's time, for one grammar; SIGPROF ends the process. A busy machine's caches make the same work dearer.
CPU_LIMIT_S = 2.0
MEMORY_LIMIT_BYTES = 2 << 30
STACK_BYTES = 1 << 20
NUM_STEPS = 32  # bytes tried out: what makes a step too complex often comes after the first


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the master decides when to end
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT_BYTES, MEMORY_LIMIT_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.stack_size(STACK_BYTES)
    answering = threading.Thread(target=_answer)
    answering.start()
    answering.join()


def problem_of(source: str, tokenizer: LLTokenizer) -> str:
    """What keeps outputs from matching `source`; empty when nothing does."""
    matcher = LLMatcher(tokenizer, source, log_level=0, limits=parser_limits())
    for _ in range(NUM_STEPS):
        if matcher.is_stopped():
            break
        allowed = int.from_bytes(matcher.compute_bitmask(), "little")
        for eos_id in tokenizer.eos_tokens:
            allowed &= ~(1 << eos_id)
        if not allowed:
            break
        matcher.consume_token((allowed & -allowed).bit_length() - 1)
    return grammar_problem(matcher)


def _answer() -> None:
    tokenizer = LLTokenizer("byte")
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_PROF, CPU_LIMIT_S)
        try:
            problem = problem_of(json.loads(line), tokenizer)
        except BaseException:  # out of memory, or a panic in the library, which is no Exception
            traceback.print_exc()
            os.abort()
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(json.dumps(problem).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
