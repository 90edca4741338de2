"""The prompts of one answer, each of which may be cancelled by itself."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from master.errors import ErrorKind, ServingError
from master.output import GenerationOutput, SequenceDelta, Usage
from master.request import GenerationRequest
from protos.sampling_messages import FinishReason


class Batch:
    def __init__(self, num_prompts: int) -> None:
        self._num_uncancelled = num_prompts

    async def outputs(
        self, request: GenerationRequest, outputs: AsyncGenerator[GenerationOutput, None]
    ) -> AsyncGenerator[GenerationOutput, None]:
        """Ends the unfinished choices of a cancelled prompt. Raises what it ended with if no other prompt is left."""
        unfinished = set(range(request.n))
        num_tokens = cached_tokens = 0
        try:
            async with aclosing(outputs):
                async for output in outputs:
                    num_tokens += sum(len(delta.token_ids) for delta in output.deltas)
                    cached_tokens = output.cached_tokens or cached_tokens
                    unfinished -= {delta.index for delta in output.deltas if delta.finish_reason is not None}
                    yield output
        except ServingError as error:
            if error.kind is not ErrorKind.CANCELLED:
                raise
            self._num_uncancelled -= 1
            if self._num_uncancelled == 0:
                raise
            yield GenerationOutput(
                tuple(
                    SequenceDelta(index, "", (), finish_reason=FinishReason.CANCELLED) for index in sorted(unfinished)
                ),
                usage=Usage(len(request.prompt_ids), num_tokens, cached_tokens),
            )
