"""One of a request's n sequences: its text, and where that ends."""

from master.output import SequenceDelta
from master.request import GenerationRequest
from master.text.stop_strings import StopStrings
from master.text.text_stream import TextStream
from master.text.tokenizer import Tokenizer
from protos.sampling_messages import FinishReason
from protos.session_messages import TokenDelta


class SequenceText:
    """`stops` are the request's, shared by its sequences."""

    def __init__(self, request: GenerationRequest, index: int, tokenizer: Tokenizer, stops: StopStrings) -> None:
        self.index = index
        self.num_tokens = 0
        self.is_finished = False
        self._request = request
        self._text = TextStream(
            tokenizer,
            request.prompt_ids,
            stops=stops,
            include_stop=request.include_stop,
            skip_special_tokens=request.skip_special_tokens,
            min_tokens=request.sampling.min_tokens,
            reasoning=request.reasoning,
        )

    def take(self, delta: TokenDelta) -> SequenceDelta | None:
        """What the client gets of it: nothing after the sequence's end."""
        if self.is_finished:
            return None
        ids, finish_reason = delta.token_ids, delta.finish_reason
        # A sequence also stops where its grammar is complete, and then its last token is like any other.
        stop_ids = self._request.sampling.stop_token_ids
        ended_by_token = finish_reason is FinishReason.STOP and ids[-1] in stop_ids
        # The token that ended the sequence is counted but is not text, unless the client wants to see stops.
        hidden = 1 if ended_by_token and not self._request.include_stop else 0
        fed = self._text.feed(ids[: len(ids) - hidden] if hidden else ids)
        text, matched_stop = fed.text, fed.matched_stop
        if matched_stop is None and finish_reason is not None:
            rest = self._text.finish()
            text, matched_stop = text + rest.text, rest.matched_stop
        elif matched_stop is not None:
            ids = ids[: fed.num_ids]
        if matched_stop is not None:
            finish_reason = FinishReason.STOP
        self.num_tokens += len(ids)
        self.is_finished = finish_reason is not None
        return SequenceDelta(
            index=self.index,
            text=text,
            token_ids=ids,
            logprobs=delta.logprobs[: len(ids)],
            finish_reason=finish_reason,
            matched_stop=matched_stop if matched_stop is not None else ids[-1] if ended_by_token else None,
        )
