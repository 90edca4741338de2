"""All output of one choice, for an answer that is not streamed."""

from master.output import SequenceDelta
from protos.sampling_messages import FinishReason, TokenLogprobs


class CollectedChoice:
    def __init__(self) -> None:
        self._texts: list[str] = []
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.finish_reason: FinishReason | None = None
        self.matched_stop: str | int | None = None

    def add(self, delta: SequenceDelta) -> None:
        self._texts.append(delta.text)
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs
        self.finish_reason = delta.finish_reason
        self.matched_stop = delta.matched_stop

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def mean_logprob(self) -> float:
        """The tokens' logprobs must have been asked for. A choice without tokens has the least there is."""
        logprobs = [entry.logprob for entry in self.logprobs if entry.logprob is not None]
        return sum(logprobs) / len(logprobs) if logprobs else float("-inf")
