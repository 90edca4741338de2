"""The message classes made from the package etcd3."""

import etcd3
from google.protobuf import descriptor_pool

from registry.etcd import wire


def test_messages_are_etcds_own() -> None:
    put = wire.PutRequest(key=b"k", value=b"v", lease=3)
    assert put.SerializeToString() == b"\x0a\x01k\x12\x01v\x18\x03"
    assert wire.PutRequest.FromString(put.SerializeToString()) == put
    assert wire.PutRequest.DESCRIPTOR.full_name == "etcdserverpb.PutRequest"


def test_they_do_not_fill_the_default_pool() -> None:
    """Another etcd client in the process brings the same names."""
    assert wire.KeyValue.DESCRIPTOR.file.pool is not descriptor_pool.Default()


def test_the_package_itself_stays_usable() -> None:
    assert etcd3.etcdrpc.PutRequest is wire.PutRequest


def test_progress_requests_are_told_from_others() -> None:
    assert wire.is_progress_request(wire.WatchRequest.FromString(wire.progress_request().SerializeToString()))
    assert not wire.is_progress_request(wire.WatchRequest())
    assert not wire.is_progress_request(wire.WatchRequest(create_request=wire.WatchCreateRequest(key=b"k")))
