"""What has come of an HTTP request so far, whatever form it is answered in."""

import time
from collections.abc import Sequence

import msgspec

from master.edge.fields.completion import CompletionFields
from master.errors import ErrorKind, ServingError
from master.output import GenerationOutput, Timeline, Usage
from master.request import GenerationRequest
from protos.sampling_messages import FinishReason

CLIENT_FINISH_REASONS = (FinishReason.STOP, FinishReason.LENGTH, FinishReason.TOOL_CALLS)


class AnswerUsage:
    """Choices are numbered through all prompts: prompt * n + sequence."""

    def __init__(self, requests: Sequence[GenerationRequest]) -> None:
        self._n = requests[0].n
        self._num_prompts = len(requests)
        self._unfinished = set(range(self._num_prompts * self._n))
        self._prompt_tokens = sum(len(request.prompt_ids) for request in requests)
        # one prompt of several may be cancelled by itself
        self._finish_reasons = {*CLIENT_FINISH_REASONS, *([FinishReason.CANCELLED] if self._num_prompts > 1 else [])}
        self._streamed_tokens = 0
        self._cached_tokens = [0] * self._num_prompts
        self._final: list[Usage] = []
        self._timeline: Timeline | None = None

    def add(self, prompt: int, output: GenerationOutput) -> None:
        """Raises ServingError for a choice that failed: it must not pass for an answer."""
        for delta in output.deltas:
            self._streamed_tokens += len(delta.token_ids)
            if delta.finish_reason is None:
                continue
            if delta.finish_reason not in self._finish_reasons:
                raise ServingError(ErrorKind.INTERNAL, f"generation ended with {delta.finish_reason.value}")
            self._unfinished.discard(self.index(prompt, delta.index))
        if output.cached_tokens is not None:
            self._cached_tokens[prompt] = output.cached_tokens
        if output.usage is not None:
            self._final.append(output.usage)
        if output.timeline is not None:
            self._timeline = output.timeline

    def index(self, prompt: int, sequence: int) -> int:
        return prompt * self._n + sequence

    def require_complete(self) -> None:
        """Raises ServingError if a choice has not ended, or a prompt's usage has not come."""
        if self._unfinished or len(self._final) != self._num_prompts:
            raise ServingError(
                ErrorKind.INTERNAL,
                f"generation broke off with {len(self._unfinished)} choices unfinished, and usage of "
                f"{len(self._final)} prompts of {self._num_prompts}",
            )

    def usage_so_far(self) -> bytes:
        return msgspec.json.encode(_counts(Usage(self._prompt_tokens, self._streamed_tokens, sum(self._cached_tokens))))

    def total(self) -> Usage:
        """The usage of all prompts together."""
        final = self._final
        return Usage(
            prompt_tokens=sum(usage.prompt_tokens for usage in final),
            completion_tokens=sum(usage.completion_tokens for usage in final),
            cached_tokens=sum(usage.cached_tokens for usage in final),
        )

    def usage(self, num_reasoning_tokens: int | None) -> bytes:
        """OpenAI's usage object; None where reasoning is not told apart."""
        counts = _counts(self.total())
        if num_reasoning_tokens is not None:
            counts["completion_tokens_details"] = {"reasoning_tokens": num_reasoning_tokens}
        return msgspec.json.encode(counts)

    def timings(self, body: CompletionFields) -> dict[str, bytes]:
        """Tells where the time of the prompt that ended last went, in the forms that were asked for."""
        asked: dict[str, bytes] = {}
        if body.timeline:
            asked["timeline"] = msgspec.json.encode(self._timeline)
        if body.collect_metrics and self._timeline is not None:
            asked["metrics"] = msgspec.json.encode(stage_times(self._timeline, time.time()))
        return asked


def stage_times(timeline: Timeline, now: float) -> dict[str, float]:
    """Puts a timeline that ends `now` into FastDeploy's form: unix seconds at which stages began and ended."""
    arrived = now - timeline.total_s
    admitted = arrived + timeline.admit_s
    begun = admitted + timeline.route_wait_s + timeline.retry_s + timeline.queue_s
    computed = begun + timeline.prefill_s
    moved = computed + timeline.transfer_s - timeline.transfer_wait_s
    return {
        "arrival_time": arrived,
        "scheduler_recv_req_time": admitted,
        "engine_get_req_time": begun,
        "inference_start_time": begun,
        "engine_recv_first_token_time": computed,
        "wait_for_sending_cache_time": computed,
        "send_request_output_to_decode_time": moved,
        "decode_recv_req_time": begun,  # the decode worker is asked when prefill has begun
        "decode_preallocate_req_time": begun + timeline.decode_queue_s,
        "decode_recv_first_token_time": moved,
        "decode_inference_start_time": moved,
    }


def _counts(usage: Usage) -> dict[str, object]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
