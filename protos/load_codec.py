"""Load reports and roles to protobuf and back, for the session as for listings of instances."""

from protos import session_pb2 as wire
from protos.sampling_codec import known_value
from protos.session_messages import LoadReport, PrefillSpeed, Role, TransferCounters

_ROLES = {int(wire.Role.Value(f"ROLE_{role.name}")): role for role in Role}


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
