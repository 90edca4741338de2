"""Decodes token ids that arrive a few at a time."""

import codecs
from collections.abc import Sequence

from master.text.tokenizer import Tokenizer

_LONGEST_CHARACTER_BYTES = 4


class IncrementalDetokenizer:
    """Decodes one sequence's output ids, in constant time for each.

    The deltas put together are the tokenizer's decoding of the output: no character is given out before it is
    whole, and none is held once it is. `prompt_tail_ids` (the prompt, or as much of its end as has text) make
    the output go on from the prompt: the space of its first word is kept, and a character that the prompt's
    last bytes begin is completed.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_tail_ids: Sequence[int], skip_special_tokens: bool = True) -> None:
        self._vocabulary = tokenizer.vocabulary
        self._skip_special_tokens = skip_special_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")(self._vocabulary.invalid_bytes.value)
        self._is_opening = True
        self._decoder.decode(self._take(self._last_ids_with_text(prompt_tail_ids)))
        self._has_output = False

    def push(self, token_ids: Sequence[int]) -> str:
        """The text these ids complete. Raises ValueError for a negative id."""
        output = self._take(token_ids)
        self._has_output = self._has_output or bool(output)
        return self._decoder.decode(output)

    def finish(self) -> str:
        """What is left: U+FFFD for a character that never became whole. Nothing may be pushed after it."""
        rest = self._decoder.decode(b"", final=True)
        return rest if self._has_output else ""

    def _take(self, token_ids: Sequence[int]) -> bytes:
        vocabulary, skip = self._vocabulary, self._skip_special_tokens
        taken = bytearray()
        for token_id in token_ids:
            if self._is_opening:
                taken += vocabulary.opening_bytes_of(token_id, skip)
                self._is_opening = vocabulary.opens_text(token_id, skip)
            else:
                taken += vocabulary.bytes_of(token_id, skip)
        return bytes(taken)

    def _last_ids_with_text(self, prompt_ids: Sequence[int]) -> Sequence[int]:
        """Enough of the end to know all that matters: that the prompt has text, and its last character's bytes."""
        start, tail = len(prompt_ids), b""
        while start > 0 and not (len(tail) >= _LONGEST_CHARACTER_BYTES and tail.strip(b" ")):
            start -= 1
            tail = self._vocabulary.bytes_of(prompt_ids[start], self._skip_special_tokens) + tail
        return prompt_ids[start:]
