"""Keeps a sequence's output to a grammar, by llguidance.

Where an output stands in its grammar follows from its token ids alone. So nothing of it is handed off: the decode
worker, or whoever resumes a request, gets there by consuming the ids that are known.

Where a grammar may end, the ids that end the sequence are allowed: the model's end-of-sequence ids among its stop
ids. Where it can do nothing but end, the sequence ends, whatever min_tokens and ignore_eos say.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer

from protos.sampling_messages import Grammar
from protos.session_messages import ErrorCode
from serving.foreign_code import guarded
from serving.grammar_source import grammar_problem, grammar_source, parser_limits
from worker.engines.torch.grammar_tokenizer import GrammarTokenizerError, load_grammar_tokenizer
from worker.engines.torch.sampling.sampler import SamplingError

MAX_COMPILED = 64  # grammars kept


class GrammarError(SamplingError):
    """The grammar cannot be kept to: it is wrong, too complex, or contradicts what else was asked for."""

    code = ErrorCode.INVALID_ARGUMENT


class Grammars:
    """Compiles grammars for one model, on a thread of its own: a large one takes tenths of a second.

    Masters let none through that takes long, and no more at a time than they compile themselves.
    """

    def __init__(self, folder: Path, eos_ids: Sequence[int]) -> None:
        self._thread = ThreadPoolExecutor(1, "grammar")
        self._tokenizer = self._thread.submit(_load_tokenizer, folder, eos_ids)
        self._compiled: OrderedDict[Grammar, Future[LLMatcher]] = OrderedDict()

    def matcher(self, grammar: Grammar, stop_ids: Sequence[int]) -> "GrammarMatcher":
        """One for each sequence; whether the grammar is any good shows when it is compiled. Engine thread only."""
        compiled = self._compiled.get(grammar)
        if compiled is None:
            compiled = self._compiled[grammar] = self._thread.submit(self._compile, grammar)
            if len(self._compiled) > MAX_COMPILED:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(grammar)
        return GrammarMatcher(self._tokenizer, compiled, stop_ids)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _compile(self, grammar: Grammar) -> LLMatcher:
        tokenizer = self._tokenizer.result()  # done: it came before on this thread
        with guarded(lambda error: GrammarError(f"grammar: {error}")):
            matcher = LLMatcher(tokenizer, grammar_source(grammar), log_level=0, limits=parser_limits())
        if matcher.is_error():
            raise GrammarError(f"grammar: {grammar_problem(matcher)}")
        return matcher


class GrammarMatcher:
    """One sequence's. Engine thread only; each call is given all output ids, and those before must not have changed."""

    def __init__(self, tokenizer: Future[LLTokenizer], compiled: Future[LLMatcher], stop_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._compiled = compiled
        self._stop_ids = stop_ids
        self._matcher: LLMatcher | None = None
        self._num_consumed = 0

    def when_compiled(self, act: Callable[[], None]) -> None:
        """Calls `act` at once, or later on another thread. Until then the other methods wait."""
        self._compiled.add_done_callback(lambda _: act())

    def check(self, output_ids: Sequence[int]) -> None:
        """Raises GrammarError for a grammar that can't be kept to, or that has been left already."""
        self._after(output_ids)

    def restrict(self, logits: torch.Tensor, output_ids: Sequence[int]) -> None:
        """Set what may not come next to -inf in `logits` float32 [vocabulary]. Raises GrammarError."""
        matcher = self._after(output_ids)
        bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        if matcher.is_error():
            raise GrammarError(f"grammar: {grammar_problem(matcher)}")
        allowed = np.zeros(len(logits), dtype=np.bool_)
        known = np.unpackbits(bits, count=min(len(logits), 8 * len(bits)), bitorder="little")
        allowed[: len(known)] = known
        eos_ids = [token_id for token_id in self._tokenizer.result().eos_tokens if token_id < len(logits)]
        can_end = bool(allowed[eos_ids].any())
        allowed[eos_ids] = False
        if can_end:
            allowed[[token_id for token_id in self._stop_ids if token_id < len(logits) and self._ends(token_id)]] = True
        logits.masked_fill_(~torch.from_numpy(allowed).to(logits.device), -torch.inf)
        if torch.isneginf(logits.max()):
            if not (can_end and eos_ids):
                raise GrammarError("grammar: all that may come next is forbidden by other parameters")
            logits[eos_ids[0]] = 0.0

    def is_complete(self, output_ids: Sequence[int]) -> bool:
        """Whether nothing can follow. What is wrong with the grammar is left for `restrict` to say."""
        try:
            return self._after(output_ids).is_stopped()
        except GrammarError:
            return False

    def _after(self, output_ids: Sequence[int]) -> LLMatcher:
        if self._matcher is None:
            self._matcher = self._compiled.result().deep_copy()
        new_ids = list(output_ids[self._num_consumed :])
        self._num_consumed += self._matcher.try_consume_tokens(new_ids) if new_ids else 0
        if self._matcher.is_error():
            raise GrammarError(f"grammar: {grammar_problem(self._matcher)}")
        if self._num_consumed < len(output_ids):
            position = self._num_consumed
            raise GrammarError(f"grammar: output_ids[{position}] is {output_ids[position]}, which it does not allow")
        return self._matcher

    def _ends(self, token_id: int) -> bool:
        """Not so for a stop id that is ordinary text: the grammar itself has to allow that."""
        tokenizer = self._tokenizer.result()
        is_text = token_id < tokenizer.vocab_size and not tokenizer.is_special_token(token_id)
        return token_id in tokenizer.eos_tokens or not is_text


def _load_tokenizer(folder: Path, eos_ids: Sequence[int]) -> LLTokenizer:
    try:
        return load_grammar_tokenizer(folder, eos_ids)
    except GrammarTokenizerError as error:
        raise GrammarError(f"grammar: this worker cannot keep to one: {error}") from error
