"""The session's messages to protobuf and back: the one place that knows both forms.

Decoding raises ValueError for a message that does not make sense (nothing set, an unknown enum value, ids that are
not whole uint32), since the peer may be of another version.
"""

from protos import session_pb2 as wire
from protos.block_hash import HASH_BYTES
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
from protos.served_model import ServedModel
from protos.session_messages import (
    CacheEvents,
    Cancel,
    DecodeHere,
    Drain,
    ErrorCode,
    Failure,
    Heartbeat,
    Hello,
    LegUpdate,
    LoadReport,
    Prefilled,
    PrefillSpeed,
    Role,
    SnapshotRequest,
    Stage,
    Standing,
    Start,
    Started,
    Step,
    TokenDelta,
    ToMaster,
    ToWorker,
    TransferCounters,
    Transferred,
    Welcome,
)

_ROLES = {int(wire.Role.Value(f"ROLE_{role.name}")): role for role in Role}
_STAGES = {int(wire.Stage.Value(f"STAGE_{stage.name}")): stage for stage in Stage}
_ERRORS = {int(wire.ErrorCode.Value(f"ERROR_CODE_{code.name}")): code for code in ErrorCode}


def encode_to_worker(message: ToWorker) -> wire.ToWorker:
    match message:
        case Hello():
            hello = wire.Hello(
                master_id=message.master_id,
                protocol=message.protocol,
                version=message.version,
                nonce=message.nonce,
            )
            return wire.ToWorker(hello=hello)
        case Start():
            return wire.ToWorker(start=_encode_start(message))
        case Cancel():
            return wire.ToWorker(cancel=wire.Cancel(leg=message.leg, sequence=message.sequence))
        case DecodeHere():
            return wire.ToWorker(decode_here=wire.DecodeHere(leg=message.leg))
        case Drain():
            return wire.ToWorker(drain=wire.Drain())
        case Heartbeat():
            return wire.ToWorker(heartbeat=wire.Heartbeat())
        case SnapshotRequest():
            return wire.ToWorker(snapshot_request=wire.SnapshotRequest())
        case Standing():
            return wire.ToWorker(standing=wire.Standing(refusal=message.refusal))


def decode_to_worker(message: wire.ToWorker) -> ToWorker:
    match message.WhichOneof("kind"):
        case "hello":
            hello = message.hello
            return Hello(hello.master_id, hello.protocol, hello.version, hello.nonce)
        case "start":
            return _decode_start(message.start)
        case "cancel":
            sequence = message.cancel.sequence if message.cancel.HasField("sequence") else None
            return Cancel(message.cancel.leg, sequence)
        case "decode_here":
            return DecodeHere(message.decode_here.leg)
        case "drain":
            return Drain()
        case "heartbeat":
            return Heartbeat()
        case "snapshot_request":
            return SnapshotRequest()
        case "standing":
            return Standing(message.standing.refusal if message.standing.HasField("refusal") else None)
        case _:
            raise ValueError("message to worker: no known kind is set")


def _encode_start(start: Start) -> wire.Start:
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


def _decode_start(start: wire.Start) -> Start:
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


def encode_to_master(message: ToMaster) -> wire.ToMaster:
    match message:
        case Welcome():
            return wire.ToMaster(welcome=_encode_welcome(message))
        case Step():
            return wire.ToMaster(step=wire.Step(updates=[_encode_update(update) for update in message.updates]))
        case LoadReport():
            return wire.ToMaster(load=encode_load(message))
        case CacheEvents():
            events = wire.CacheEvents(
                number=message.number,
                is_snapshot=message.is_snapshot,
                stored=b"".join(message.stored),
                removed=b"".join(message.removed),
            )
            return wire.ToMaster(cache=events)


def decode_to_master(message: wire.ToMaster) -> ToMaster:
    match message.WhichOneof("kind"):
        case "welcome":
            return _decode_welcome(message.welcome)
        case "step":
            return Step(tuple(_decode_update(update) for update in message.step.updates))
        case "load":
            return decode_load(message.load)
        case "cache":
            events = message.cache
            return CacheEvents(
                number=events.number,
                stored=_split_hashes(events.stored),
                removed=_split_hashes(events.removed),
                is_snapshot=events.is_snapshot,
            )
        case _:
            raise ValueError("message to master: no known kind is set")


def _encode_welcome(welcome: Welcome) -> wire.Welcome:
    return wire.Welcome(
        instance=welcome.instance,
        role=encode_role(welcome.role),
        model=_encode_model(welcome.model),
        incarnation=welcome.incarnation,
        layout_fingerprint=welcome.layout_fingerprint,
        block_size=welcome.block_size,
        num_blocks=welcome.num_blocks,
        max_context=welcome.max_context,
        max_num_seqs=welcome.max_num_seqs,
        version=welcome.version,
        protocol=welcome.protocol,
        transfer_protocol=welcome.transfer_protocol,
        proof=welcome.proof,
    )


def _decode_welcome(welcome: wire.Welcome) -> Welcome:
    return Welcome(
        instance=welcome.instance,
        role=decode_role(welcome.role),
        model=_decode_model(welcome.model),
        incarnation=welcome.incarnation,
        layout_fingerprint=welcome.layout_fingerprint,
        block_size=welcome.block_size,
        num_blocks=welcome.num_blocks,
        max_context=welcome.max_context,
        max_num_seqs=welcome.max_num_seqs,
        version=welcome.version,
        protocol=welcome.protocol,
        transfer_protocol=welcome.transfer_protocol,
        proof=welcome.proof,
    )


def _encode_model(model: ServedModel) -> wire.ServedModel:
    return wire.ServedModel(
        name=model.name,
        weights_digest=model.weights_digest,
        dtype=model.dtype,
        quantization=model.quantization,
        adapter=model.adapter,
        is_batch_invariant=model.is_batch_invariant,
    )


def _decode_model(model: wire.ServedModel) -> ServedModel:
    return ServedModel(
        name=model.name,
        weights_digest=model.weights_digest,
        dtype=model.dtype,
        quantization=model.quantization if model.HasField("quantization") else None,
        adapter=model.adapter if model.HasField("adapter") else None,
        is_batch_invariant=model.is_batch_invariant,
    )


def _encode_update(update: LegUpdate) -> wire.LegUpdate:
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


def _decode_update(update: wire.LegUpdate) -> LegUpdate:
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
        deltas=tuple(_decode_delta(delta) for delta in update.deltas),
        failure=failure,
        prompt_logprobs=decode_logprobs(update.prompt_logprobs),
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
        logprobs=decode_logprobs(delta.logprobs),
        finish_reason=decode_finish_reason(delta.finish_reason) if delta.HasField("finish_reason") else None,
    )


def encode_load(load: LoadReport) -> wire.LoadReport:
    return wire.LoadReport(
        queued_requests=load.queued_requests,
        queued_prefill_tokens=load.queued_prefill_tokens,
        running_sequences=load.running_sequences,
        available_blocks=load.available_blocks,
        held_blocks=load.held_blocks,
        steps=load.steps,
        decode_step_s=load.decode_step_s,
        prefill=None
        if load.prefill is None
        else wire.PrefillSpeed(step_s=load.prefill.step_s, token_s=load.prefill.token_s),
        exports=load.exports,
        is_draining=load.is_draining,
        is_stalled=load.is_stalled,
        failing_reason=load.failing_reason,
        role=encode_role(load.role),
        transfer=wire.TransferCounters(
            blocks_sent=load.transfer.blocks_sent,
            blocks_received=load.transfer.blocks_received,
            blocks_skipped=load.transfer.blocks_skipped,
            bytes_received=load.transfer.bytes_received,
            failures=load.transfer.failures,
        ),
    )


def decode_load(load: wire.LoadReport) -> LoadReport:
    return LoadReport(
        role=decode_role(load.role),
        queued_requests=load.queued_requests,
        queued_prefill_tokens=load.queued_prefill_tokens,
        running_sequences=load.running_sequences,
        available_blocks=load.available_blocks,
        held_blocks=load.held_blocks,
        steps=load.steps,
        decode_step_s=load.decode_step_s,
        prefill=PrefillSpeed(load.prefill.step_s, load.prefill.token_s) if load.HasField("prefill") else None,
        exports=load.exports,
        is_draining=load.is_draining,
        is_stalled=load.is_stalled,
        failing_reason=load.failing_reason if load.HasField("failing_reason") else None,
        transfer=TransferCounters(
            blocks_sent=load.transfer.blocks_sent,
            blocks_received=load.transfer.blocks_received,
            blocks_skipped=load.transfer.blocks_skipped,
            bytes_received=load.transfer.bytes_received,
            failures=load.transfer.failures,
        ),
    )


def encode_role(role: Role) -> str:
    return f"ROLE_{role.name}"


def decode_role(number: int) -> Role:
    return known_value(_ROLES, number, "role")


def _split_hashes(data: bytes) -> tuple[bytes, ...]:
    if len(data) % HASH_BYTES:
        raise ValueError(f"block hashes: {len(data)} bytes are no whole number of hashes")
    return tuple(data[start : start + HASH_BYTES] for start in range(0, len(data), HASH_BYTES))
