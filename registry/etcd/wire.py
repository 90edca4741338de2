"""etcd's own messages, client stubs and server bases, taken from the package `etcd3` 0.12.0.

The package's generated files build their descriptors field by field, which protobuf's upb refuses. The serialized
descriptors inside them are sound, so the message classes are built from those, with the function that current
generated code calls itself (`google.protobuf.internal.builder`), and put where the package's stubs look for them.
All that is untyped about etcd3 ends here and in the files that translate these messages.
"""

import ast
import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from google.protobuf import descriptor_pool
from google.protobuf.internal import builder

# Private: in the default pool a second etcd client in the process ends with "duplicate symbol mvccpb.KeyValue".
_POOL = descriptor_pool.DescriptorPool()


def _load_stubs() -> ModuleType:
    """Raises ImportError when the installed `etcd3` is not the release whose layout is known."""
    spec = importlib.util.find_spec("etcd3")
    if spec is None or spec.origin is None:
        raise ImportError("the package etcd3 is not installed; etcd3==0.12.0 is needed")
    generated = Path(spec.origin).parent / "etcdrpc"
    # A process that imported etcd3 before us has made the messages its own way; building them twice would clash.
    if "etcd3.etcdrpc" not in sys.modules:
        for name in ("kv", "auth", "rpc"):  # dependencies first
            module = f"etcd3.etcdrpc.{name}_pb2"
            sys.modules[module] = _build_messages(module, name, generated / f"{name}_pb2.py")
    return importlib.import_module("etcd3.etcdrpc.rpc_pb2_grpc")


def _build_messages(module_name: str, proto: str, source: Path) -> ModuleType:
    _POOL.AddSerializedFile(_serialized_descriptor(source))
    descriptor = _POOL.FindFileByName(f"{proto}.proto")
    module = ModuleType(module_name)
    contents: dict[str, Any] = module.__dict__
    contents["DESCRIPTOR"] = descriptor
    builder.BuildMessageAndEnumDescriptors(descriptor, contents)
    builder.BuildTopDescriptorsAndMessages(descriptor, module_name, contents)
    return module


def _serialized_descriptor(source: Path) -> bytes:
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        match node:
            case ast.keyword(arg="serialized_pb", value=ast.Call(args=[ast.Constant(value=str(text))])):
                return text.encode("latin1")
    raise ImportError(f"{source} holds no serialized descriptor; etcd3==0.12.0 is needed")


_stubs: Any = _load_stubs()
_messages: Any = sys.modules["etcd3.etcdrpc.rpc_pb2"]
_kv: Any = sys.modules["etcd3.etcdrpc.kv_pb2"]

KeyValue: Any = _kv.KeyValue
Event: Any = _kv.Event

ResponseHeader: Any = _messages.ResponseHeader
RangeRequest: Any = _messages.RangeRequest
RangeResponse: Any = _messages.RangeResponse
PutRequest: Any = _messages.PutRequest
PutResponse: Any = _messages.PutResponse
DeleteRangeRequest: Any = _messages.DeleteRangeRequest
DeleteRangeResponse: Any = _messages.DeleteRangeResponse
RequestOp: Any = _messages.RequestOp
ResponseOp: Any = _messages.ResponseOp
Compare: Any = _messages.Compare
TxnRequest: Any = _messages.TxnRequest
TxnResponse: Any = _messages.TxnResponse
CompactionRequest: Any = _messages.CompactionRequest
CompactionResponse: Any = _messages.CompactionResponse

LeaseGrantRequest: Any = _messages.LeaseGrantRequest
LeaseGrantResponse: Any = _messages.LeaseGrantResponse
LeaseRevokeRequest: Any = _messages.LeaseRevokeRequest
LeaseRevokeResponse: Any = _messages.LeaseRevokeResponse
LeaseKeepAliveRequest: Any = _messages.LeaseKeepAliveRequest
LeaseKeepAliveResponse: Any = _messages.LeaseKeepAliveResponse
LeaseTimeToLiveResponse: Any = _messages.LeaseTimeToLiveResponse
LeaseLeasesRequest: Any = _messages.LeaseLeasesRequest
LeaseLeasesResponse: Any = _messages.LeaseLeasesResponse
LeaseStatus: Any = _messages.LeaseStatus

WatchRequest: Any = _messages.WatchRequest
WatchCreateRequest: Any = _messages.WatchCreateRequest
WatchResponse: Any = _messages.WatchResponse

AuthenticateRequest: Any = _messages.AuthenticateRequest
StatusResponse: Any = _messages.StatusResponse
Member: Any = _messages.Member
MemberListResponse: Any = _messages.MemberListResponse

KVStub: Any = _stubs.KVStub
LeaseStub: Any = _stubs.LeaseStub
WatchStub: Any = _stubs.WatchStub
AuthStub: Any = _stubs.AuthStub

KVServicer: Any = _stubs.KVServicer
LeaseServicer: Any = _stubs.LeaseServicer
WatchServicer: Any = _stubs.WatchServicer
ClusterServicer: Any = _stubs.ClusterServicer
MaintenanceServicer: Any = _stubs.MaintenanceServicer

add_kv_servicer: Callable[[Any, Any], None] = _stubs.add_KVServicer_to_server
add_lease_servicer: Callable[[Any, Any], None] = _stubs.add_LeaseServicer_to_server
add_watch_servicer: Callable[[Any, Any], None] = _stubs.add_WatchServicer_to_server
add_cluster_servicer: Callable[[Any, Any], None] = _stubs.add_ClusterServicer_to_server
add_maintenance_servicer: Callable[[Any, Any], None] = _stubs.add_MaintenanceServicer_to_server

# WatchRequest.progress_request (field 3, an empty message) came with etcd 3.4, after these descriptors were made.
# Protobuf keeps fields it does not know, so the request can still be written and recognised.
_PROGRESS_REQUEST = b"\x1a\x00"


def progress_request() -> Any:
    """A WatchRequest that asks the server to say, in order with the events, how far the stream is."""
    return WatchRequest.FromString(_PROGRESS_REQUEST)


def is_progress_request(request: Any) -> bool:
    return bool(request.SerializeToString() == _PROGRESS_REQUEST)
