"""Counts the tokens of a choice that are reasoning: those before the tag that ends it."""

from collections import deque
from collections.abc import Sequence

from master.text.tokenizer import Tokenizer


class ReasoningTokens:
    """Reads ids, not text, so that the number does not depend on how they were cut into outputs.

    Until the tag comes, all tokens count. A token that has the tag's beginning does not, whatever comes before in it.
    """

    def __init__(self, tokenizer: Tokenizer, closing_tag: str) -> None:
        self._tokenizer = tokenizer
        self._tag = closing_tag.encode()
        self._tail = b""  # where a tag may have begun
        self._sizes: deque[int] = deque(maxlen=2 * len(self._tag))  # of the last tokens, in bytes
        self._is_over = False
        self.count = 0

    def add(self, token_ids: Sequence[int]) -> None:
        for token_id in token_ids:
            if self._is_over:
                return
            self._add(self._tokenizer.token_bytes(token_id))

    def _add(self, token: bytes) -> None:
        self.count += 1
        self._sizes.append(len(token))
        text = self._tail + token
        start = text.find(self._tag)
        if start < 0:
            self._tail = text[-(len(self._tag) - 1) :]
            return
        self._is_over = True
        num_bytes = len(text) - start
        while num_bytes > 0 and self._sizes:
            num_bytes -= self._sizes.pop()
            self.count -= 1
