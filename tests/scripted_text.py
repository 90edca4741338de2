"""A script for `tests.http_service.HttpService`: outputs whose text the test gives."""

from collections.abc import AsyncGenerator

from master.output import GenerationOutput, SequenceDelta, Usage
from master.request import GenerationRequest
from master.text.detokenizer import IncrementalDetokenizer
from protos.sampling_messages import FinishReason
from tests.http_service import HttpService, Script


def says(
    service: HttpService, text: str, *, tokens_per_output: int = 1, matched_stop: str | int | None = None
) -> Script:
    """Every sequence is `text`, cut after max_tokens; 2 tokens of the prompt were cached."""

    async def script(request: GenerationRequest) -> AsyncGenerator[GenerationOutput, None]:
        ids = service.tokenizer.encode(text, add_special_tokens=False)
        reason = FinishReason.STOP if len(ids) <= request.sampling.max_tokens else FinishReason.LENGTH
        ids = ids[: request.sampling.max_tokens]
        detokenizer = IncrementalDetokenizer(service.tokenizer, request.prompt_ids, request.skip_special_tokens)
        for start in range(0, len(ids), tokens_per_output):
            some = tuple(ids[start : start + tokens_per_output])
            is_last = start + tokens_per_output >= len(ids)
            piece = detokenizer.push(some) + (detokenizer.finish() if is_last else "")
            delta_end = reason if is_last else None
            yield GenerationOutput(
                tuple(
                    SequenceDelta(index, piece, some, (), delta_end, matched_stop if is_last else None)
                    for index in range(request.n)
                ),
                Usage(len(request.prompt_ids), len(ids) * request.n, 2) if is_last else None,
            )

    return script
