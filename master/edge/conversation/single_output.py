"""Reads the output of a request for one choice as it comes."""

from collections.abc import Sequence

from master.edge.conversation.chat_request import ChatRequest
from master.edge.conversation.content_blocks import Block, Change, ContentBlocks
from master.edge.openai.logprobs import ChatLogprobs
from master.edge.openai.usage import AnswerUsage
from master.errors import ErrorKind, ServingError
from master.output import GenerationOutput, Usage
from protos.sampling_messages import FinishReason


class SingleOutput:
    """`finish_reason` and `matched_stop` are set by the output that ends it."""

    def __init__(self, chat: ChatRequest, logprobs: ChatLogprobs | None = None) -> None:
        """`logprobs` shows those of tokens, where they were asked for."""
        (self._reader,) = chat.readers
        self._logprobs = logprobs
        self._usage = AnswerUsage((chat.request,))
        self._blocks = ContentBlocks()
        self._finish_reason: FinishReason | None = None
        self.matched_stop: str | int | None = None

    @property
    def blocks(self) -> Sequence[Block]:
        return self._blocks.blocks

    @property
    def has_ended(self) -> bool:
        return self._finish_reason is not None

    @property
    def finish_reason(self) -> FinishReason:
        assert self._finish_reason is not None, "read before the end"
        return self._finish_reason

    @property
    def usage(self) -> Usage:
        return self._usage.total()

    @property
    def num_reasoning_tokens(self) -> int:
        return self._reader.num_reasoning_tokens

    def add(self, output: GenerationOutput) -> list[Change]:
        """Raises ServingError for an output that is a failure."""
        self._usage.add(0, output)
        changes: list[Change] = []
        for delta in output.deltas:
            read = self._reader.read(delta)
            shown = self._logprobs.content(delta.token_ids, delta.logprobs) if self._logprobs is not None else ()
            changes += self._blocks.add(read.events, shown)
            if read.finish_reason is not None:
                self._finish_reason = read.finish_reason
                self.matched_stop = delta.matched_stop
                changes += self._blocks.close()
        return changes

    def require_complete(self) -> None:
        """Raises ServingError if something is missing."""
        self._usage.require_complete()
        if self._finish_reason is None:
            raise ServingError(ErrorKind.INTERNAL, "generation ended without a finish reason")
