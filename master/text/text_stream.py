"""Turns one sequence's token ids into the text a client sees."""

from collections.abc import Sequence

import msgspec

from master.text.detokenizer import IncrementalDetokenizer
from master.text.reasoning_span import ReasoningSpan, ReasoningSplitter
from master.text.stop_strings import StopMatcher, StopStrings
from master.text.tokenizer import Tokenizer

NO_STOPS = StopStrings()


class TextDelta(msgspec.Struct, frozen=True):
    """What a step's ids add.

    `num_ids` of them count: all, or up to the one that completed `matched_stop`; the rest are to be dropped.
    """

    text: str
    num_ids: int
    matched_stop: str | None = None


class TextStream:
    """Decodes output ids and ends the text at a stop string, which counts outside `reasoning` only.

    As in vLLM, a stop counts only if a token after the first `min_tokens` completes it. The id that ends a
    sequence (EOS, a stop token) is not to be fed if its text must not be seen.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_ids: Sequence[int],
        *,
        stops: StopStrings = NO_STOPS,
        include_stop: bool = False,
        skip_special_tokens: bool = True,
        min_tokens: int = 0,
        reasoning: ReasoningSpan | None = None,
    ) -> None:
        self._detokenizer = IncrementalDetokenizer(tokenizer, prompt_ids, skip_special_tokens)
        self._stop_matcher = StopMatcher(stops, include_stop)
        self._splitter = ReasoningSplitter(reasoning)
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self._matched_stop: str | None = None

    def feed(self, token_ids: Sequence[int]) -> TextDelta:
        """Takes no ids after a match, and says so. Raises ValueError for a negative id."""
        if self._matched_stop is not None:
            return TextDelta("", 0, self._matched_stop)
        text: list[str] = []
        for token_id in token_ids:
            decoded = self._detokenizer.push((token_id,))
            self._num_tokens += 1
            text.append(self._release(decoded))
            if self._matched_stop is not None:
                break
        return TextDelta("".join(text), len(text), self._matched_stop)

    def finish(self) -> TextDelta:
        """The rest of the text, once no more ids come; a character that never became whole may complete a stop."""
        if self._matched_stop is not None:
            return TextDelta("", 0, self._matched_stop)
        text = self._release(self._detokenizer.finish())
        if self._matched_stop is None:
            text += self._match(self._splitter.flush())
        if self._matched_stop is None:
            text += self._stop_matcher.flush()
        return TextDelta(text, 0, self._matched_stop)

    def _release(self, decoded: str) -> str:
        reasoning, answer = self._splitter.split(decoded)
        return reasoning + self._match(answer)

    def _match(self, answer: str) -> str:
        outcome = self._stop_matcher.feed(answer, can_match=self._num_tokens > self._min_tokens)
        self._matched_stop = outcome.matched_stop
        return outcome.text
