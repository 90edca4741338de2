"""How a choice ended, on the wire."""

from master.edge.http.json_object import encode
from protos.sampling_messages import FinishReason

UNFINISHED = b'"finish_reason":null'
NO_IDS = b',"token_ids":[]'  # of a chunk that only tells how its choice ended


def finish_members(reason: FinishReason | None, matched_stop: str | int | None) -> bytes:
    """OpenAI's `finish_reason` and vLLM's `stop_reason`: the stop string or token id that ended the choice."""
    if reason is None:
        return UNFINISHED
    return b'"finish_reason":%s,"stop_reason":%s' % (encode(reason.value), encode(matched_stop))
