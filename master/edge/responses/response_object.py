"""The response object: https://platform.openai.com/docs/api-reference/responses/object"""

from collections.abc import Sequence

from master.edge.conversation.content_blocks import Block
from master.edge.http.errors import bounded
from master.edge.responses.body import ResponsesBody, echoed_format, echoed_tools
from master.edge.responses.output_items import ItemStatus, output_item
from master.errors import ErrorKind, ServingError
from master.output import Usage
from master.request import GenerationRequest
from protos.sampling_messages import FinishReason

ERROR_CODES = {ErrorKind.INVALID_REQUEST: "invalid_prompt", ErrorKind.OVERLOADED: "rate_limit_exceeded"}


class ResponseObject:
    """What is the same in all states of one response is made once."""

    def __init__(self, body: ResponsesBody, request: GenerationRequest, created: int, *, is_stored: bool) -> None:
        self.id = f"resp_{request.id}"
        self._request_id = request.id
        self._same: dict[str, object] = {
            "id": self.id,
            "object": "response",
            "created_at": created,
            "model": request.model,
            "background": False,
            "instructions": body.instructions,
            "max_output_tokens": body.sampling_options().get("max_tokens"),
            "max_tool_calls": None,
            "metadata": body.metadata or {},
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": body.reasoning.effort if body.reasoning is not None else None, "summary": None},
            "store": is_stored,
            "temperature": request.sampling.temperature,
            "text": echoed_format(body.text),
            "tool_choice": body.tool_choice or "auto",
            "tools": echoed_tools(body.tools),
            "top_logprobs": request.sampling.logprobs or 0,
            "top_p": request.sampling.top_p,
            "truncation": "disabled",
            "user": body.user,
        }

    def in_progress(self) -> dict[str, object]:
        return self._same | {
            "status": "in_progress",
            "output": [],
            "usage": None,
            "error": None,
            "incomplete_details": None,
        }

    def ended(
        self, blocks: Sequence[Block], finish_reason: FinishReason, usage: Usage, num_reasoning_tokens: int
    ) -> dict[str, object]:
        """Completed, or incomplete where the tokens ran out: then its last item is incomplete as well."""
        is_cut = finish_reason is FinishReason.LENGTH
        return self._same | {
            "status": "incomplete" if is_cut else "completed",
            "output": [
                output_item(block, self._request_id, end_status(block, blocks, finish_reason)) for block in blocks
            ],
            "usage": {
                "input_tokens": usage.prompt_tokens,
                "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
                "output_tokens": usage.completion_tokens,
                "output_tokens_details": {"reasoning_tokens": num_reasoning_tokens},
                "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            },
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        }

    def failed(self, blocks: Sequence[Block], error: ServingError) -> dict[str, object]:
        ends = [*[ItemStatus.COMPLETED] * (len(blocks) - 1), ItemStatus.INCOMPLETE]
        items = [output_item(block, self._request_id, end) for block, end in zip(blocks, ends, strict=False)]
        told = {"code": ERROR_CODES.get(error.kind, "server_error"), "message": bounded(error.message)}
        return self._same | {
            "status": "failed",
            "output": items,
            "usage": None,
            "error": told,
            "incomplete_details": None,
        }


def end_status(block: Block, blocks: Sequence[Block], finish_reason: FinishReason) -> ItemStatus:
    is_cut = finish_reason is FinishReason.LENGTH and block is blocks[-1]
    return ItemStatus.INCOMPLETE if is_cut else ItemStatus.COMPLETED
