"""Records as they are stored."""

import json
from collections.abc import Callable

import pytest

from protos.session_messages import Role
from registry.instance import (
    InstanceRecord,
    MasterRecord,
    decode_incarnation,
    decode_instance,
    encode_record,
    name_of,
    record_key,
    workers_prefix,
)


@pytest.fixture
def fields(make_record: Callable[..., InstanceRecord]) -> dict[str, object]:
    loaded: dict[str, object] = json.loads(encode_record(make_record(role=Role.PREFILL)))
    return loaded


def test_records_survive_the_registry(make_record: Callable[..., InstanceRecord]) -> None:
    record = make_record(role=Role.DECODE)
    assert decode_instance(encode_record(record)) == record


def test_fields_of_a_later_version_are_ignored(fields: dict[str, object]) -> None:
    record = decode_instance(json.dumps(fields | {"colour": "blue"}).encode())
    assert record.role is Role.PREFILL


def test_draining_may_be_left_out(fields: dict[str, object]) -> None:
    del fields["draining"]
    assert decode_instance(json.dumps(fields).encode()).draining is False


@pytest.mark.parametrize("name", ["instance", "role", "incarnation", "block_size", "version"])
def test_a_missing_field_is_named(fields: dict[str, object], name: str) -> None:
    del fields[name]
    with pytest.raises(ValueError, match=f"`{name}`"):
        decode_instance(json.dumps(fields).encode())


def test_a_wrong_field_is_named(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"\$\.role"):
        decode_instance(json.dumps(fields | {"role": "JUGGLER"}).encode())


@pytest.mark.parametrize("value", [b"", b"\xff", b"[]", b"{}", b'{"incarnation": "new"}'])
def test_garbage_is_a_value_error(value: bytes) -> None:
    for decode in (decode_instance, decode_incarnation):
        with pytest.raises(ValueError):
            decode(value)


def test_keys_lie_under_their_prefix(make_record: Callable[..., InstanceRecord]) -> None:
    key = record_key("eu", make_record("w7"))
    assert key == "/pdserve/eu/workers/w7"
    assert key.startswith(workers_prefix("eu"))
    assert name_of(key) == "w7"
    master = MasterRecord(id="m1", http_address="", rpc_address="", incarnation=1)
    assert record_key("eu", master) == "/pdserve/eu/masters/m1"


@pytest.mark.parametrize("name", ["", "a/b"])
def test_names_that_would_leave_their_place_are_refused(make_record: Callable[..., InstanceRecord], name: str) -> None:
    with pytest.raises(ValueError, match="non-empty"):
        record_key("eu", make_record(name))
    with pytest.raises(ValueError, match="non-empty"):
        workers_prefix(name)
