"""A leg to protobuf and back: its start, and what happens to it."""

from protos import session_pb2 as wire
from protos.sampling_codec import (
    decode_finish_reason,
    decode_logprobs,
    decode_sampling,
    encode_finish_reason,
    encode_logprobs,
    encode_sampling,
    known_value,
    pack_ids,
    unpack_ids,
)
from protos.session_messages import (
    ErrorCode,
    Failure,
    LegUpdate,
    Prefilled,
    Stage,
    Start,
    Started,
    TokenDelta,
    Transferred,
)

_STAGES = {int(wire.Stage.Value(f"STAGE_{stage.name}")): stage for stage in Stage}
_ERRORS = {int(wire.ErrorCode.Value(f"ERROR_CODE_{code.name}")): code for code in ErrorCode}


def encode_start(start: Start) -> wire.Start:
    return wire.Start(
        leg=start.leg,
        request_id=start.request_id,
        stage=f"STAGE_{start.stage.name}",
        prompt_ids=pack_ids(start.prompt_ids),
        output_ids=pack_ids(start.output_ids),
        sequences=start.sequences,
        sampling=encode_sampling(start.sampling),
        priority=start.priority,
        cache_salt=start.cache_salt,
        time_limit_s=start.time_limit_s,
        kv_handle=start.kv_handle,
        age_s=start.age_s,
    )


def decode_start(start: wire.Start) -> Start:
    return Start(
        leg=start.leg,
        request_id=start.request_id,
        stage=known_value(_STAGES, start.stage, "stage"),
        prompt_ids=unpack_ids(start.prompt_ids),
        output_ids=unpack_ids(start.output_ids),
        sequences=tuple(start.sequences),
        sampling=decode_sampling(start.sampling),
        priority=start.priority,
        cache_salt=start.cache_salt,
        time_limit_s=start.time_limit_s,
        kv_handle=start.kv_handle if start.HasField("kv_handle") else None,
        age_s=start.age_s,
    )


def encode_update(update: LegUpdate) -> wire.LegUpdate:
    message = wire.LegUpdate(leg=update.leg, deltas=[_encode_delta(delta) for delta in update.deltas])
    if update.started is not None:
        message.started.CopyFrom(
            wire.Started(
                cached_tokens=update.started.cached_tokens,
                queue_s=update.started.queue_s,
                kv_handle=update.started.kv_handle,
            )
        )
    if update.prefilled is not None:
        message.prefilled.computed_tokens = update.prefilled.computed_tokens
        message.prefilled.duration_s = update.prefilled.duration_s
    if update.transferred is not None:
        moved = update.transferred
        message.transferred.CopyFrom(
            wire.Transferred(
                transport=moved.transport,
                num_bytes=moved.num_bytes,
                blocks_sent=moved.blocks_sent,
                blocks_skipped=moved.blocks_skipped,
                duration_s=moved.duration_s,
                wait_s=moved.wait_s,
            )
        )
    if update.failure is not None:
        failure = wire.Failure(code=f"ERROR_CODE_{update.failure.code.name}", message=update.failure.message)
        message.failure.CopyFrom(failure)
    message.prompt_logprobs.extend(encode_logprobs(update.prompt_logprobs))
    message.ended = update.ended
    return message


def decode_update(update: wire.LegUpdate) -> LegUpdate:
    deltas = tuple([_decode_delta(delta) for delta in update.deltas])
    started = prefilled = transferred = failure = None
    if update.HasField("started"):
        handle = update.started.kv_handle if update.started.HasField("kv_handle") else None
        started = Started(update.started.cached_tokens, update.started.queue_s, handle)
    if update.HasField("prefilled"):
        prefilled = Prefilled(update.prefilled.computed_tokens, update.prefilled.duration_s)
    if update.HasField("transferred"):
        moved = update.transferred
        transferred = Transferred(
            moved.transport, moved.num_bytes, moved.blocks_sent, moved.blocks_skipped, moved.duration_s, moved.wait_s
        )
    if update.HasField("failure"):
        failure = Failure(known_value(_ERRORS, update.failure.code, "error code"), update.failure.message)
    return LegUpdate(
        leg=update.leg,
        started=started,
        prefilled=prefilled,
        transferred=transferred,
        deltas=deltas,
        failure=failure,
        prompt_logprobs=decode_logprobs(update.prompt_logprobs) if update.prompt_logprobs else (),
        ended=update.ended,
    )


def _encode_delta(delta: TokenDelta) -> wire.TokenDelta:
    return wire.TokenDelta(
        sequence=delta.sequence,
        position=delta.position,
        token_ids=pack_ids(delta.token_ids),
        logprobs=encode_logprobs(delta.logprobs),
        finish_reason=None if delta.finish_reason is None else encode_finish_reason(delta.finish_reason),
    )


def _decode_delta(delta: wire.TokenDelta) -> TokenDelta:
    return TokenDelta(
        sequence=delta.sequence,
        position=delta.position,
        token_ids=unpack_ids(delta.token_ids),
        logprobs=decode_logprobs(delta.logprobs) if delta.logprobs else (),
        finish_reason=decode_finish_reason(delta.finish_reason) if delta.HasField("finish_reason") else None,
    )
