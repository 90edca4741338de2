"""How a choice ended, on the wire."""

from master.edge.http.json_object import encode
from protos.sampling_messages import FinishReason

UNFINISHED = b'"finish_reason":null'


def finish_members(reason: FinishReason | None, matched_stop: str | int | None) -> bytes:
    """OpenAI's `finish_reason`, and the stop string or token id that ended the choice as vLLM and SGLang call it."""
    if reason is None:
        return UNFINISHED
    stop = encode(matched_stop)
    return b'"finish_reason":%s,"stop_reason":%s,"matched_stop":%s' % (encode(reason.value), stop, stop)
