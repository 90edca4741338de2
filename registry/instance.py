"""What workers and masters say about themselves in the registry, and under which keys."""

from dataclasses import dataclass

import msgspec

from protos.served_model import ServedModel
from protos.session_messages import Role


@dataclass(frozen=True, kw_only=True, slots=True)
class InstanceRecord:
    """One worker instance. Addresses are `host:port` as bound, IPv6 hosts in brackets.

    `incarnation` grows with every life of the instance; `layout_fingerprint` is hex; `block_size` and `max_context`
    are in tokens, `num_blocks` in blocks.
    """

    instance: str
    role: Role
    rpc_address: str
    transfer_address: str
    http_address: str
    model: ServedModel
    incarnation: int
    layout_fingerprint: str
    block_size: int
    num_blocks: int
    max_context: int
    max_num_seqs: int
    draining: bool = False
    host: str
    pid: int
    version: str


@dataclass(frozen=True, kw_only=True, slots=True)
class MasterRecord:
    """One master."""

    id: str
    http_address: str
    rpc_address: str
    incarnation: int


Record = InstanceRecord | MasterRecord


@dataclass(frozen=True)
class _Incarnation:
    incarnation: int


def encode_record(record: Record) -> bytes:
    """The JSON that is stored under the record's key."""
    return msgspec.json.encode(record)


def decode_instance(value: bytes) -> InstanceRecord:
    """Raises ValueError naming the field that is missing or wrong; fields of newer versions are ignored."""
    try:
        return msgspec.json.decode(value, type=InstanceRecord)
    except msgspec.DecodeError as error:
        raise ValueError(f"instance record: {error}") from error


def decode_incarnation(value: bytes) -> int:
    """The incarnation of any record, whatever its version. Raises ValueError when there is none."""
    try:
        return msgspec.json.decode(value, type=_Incarnation).incarnation
    except msgspec.DecodeError as error:
        raise ValueError(f"incarnation of a record: {error}") from error


def workers_prefix(cluster: str) -> str:
    """The prefix of all workers' keys; it ends in a slash."""
    return f"/pdserve/{_segment(cluster)}/workers/"


def masters_prefix(cluster: str) -> str:
    """The prefix of all masters' keys; it ends in a slash."""
    return f"/pdserve/{_segment(cluster)}/masters/"


def record_key(cluster: str, record: Record) -> str:
    """Where the record is kept. Raises ValueError when a name is empty or has a slash."""
    if isinstance(record, MasterRecord):
        return masters_prefix(cluster) + _segment(record.id)
    return workers_prefix(cluster) + _segment(record.instance)


def name_of(key: str) -> str:
    """The instance's or master's name, the last part of its key."""
    return key.rpartition("/")[2]


def _segment(name: str) -> str:
    if not name or "/" in name:
        raise ValueError(f"a name in the registry must be non-empty and without '/': {name!r}")
    return name
