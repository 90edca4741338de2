"""The session's messages to protobuf and back; a leg's and a load report's part of them is in files of their own.

Decoding raises ValueError for a message that does not make sense (nothing set, an unknown enum value, ids that are
not whole uint32), since the peer may be of another version.
"""

from protos import session_pb2 as wire
from protos.block_hash import HASH_BYTES
from protos.leg_codec import decode_start, decode_update, encode_start, encode_update
from protos.load_codec import decode_load, decode_role, encode_load, encode_role
from protos.served_model import ServedModel
from protos.session_messages import (
    CacheEvents,
    Cancel,
    DecodeHere,
    Drain,
    Heartbeat,
    Hello,
    LoadReport,
    SnapshotRequest,
    Standing,
    Start,
    Step,
    ToMaster,
    ToWorker,
    Welcome,
)


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
            return wire.ToWorker(start=encode_start(message))
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
            return decode_start(message.start)
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


def encode_to_master(message: ToMaster) -> wire.ToMaster:
    match message:
        case Welcome():
            return wire.ToMaster(welcome=_encode_welcome(message))
        case Step():
            return wire.ToMaster(step=wire.Step(updates=[encode_update(update) for update in message.updates]))
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
            return Step(tuple([decode_update(update) for update in message.step.updates]))
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
        kv_dtype=model.kv_dtype,
    )


def _decode_model(model: wire.ServedModel) -> ServedModel:
    return ServedModel(
        name=model.name,
        weights_digest=model.weights_digest,
        dtype=model.dtype,
        quantization=model.quantization if model.HasField("quantization") else None,
        adapter=model.adapter if model.HasField("adapter") else None,
        is_batch_invariant=model.is_batch_invariant,
        kv_dtype=model.kv_dtype if model.HasField("kv_dtype") else None,
    )


def _split_hashes(data: bytes) -> tuple[bytes, ...]:
    if len(data) % HASH_BYTES:
        raise ValueError(f"block hashes: {len(data)} bytes are no whole number of hashes")
    return tuple(data[start : start + HASH_BYTES] for start in range(0, len(data), HASH_BYTES))
