"""The standard reflection service, in its first version and in v1alpha, which older tools ask for.

The messages of both are the same on the wire, so one servicer answers under either name.
"""

from collections.abc import Iterable
from typing import Any

import grpc
import grpc.aio
from google.protobuf import text_format
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_reflection.v1alpha import reflection, reflection_pb2

V1ALPHA: str = reflection.SERVICE_NAME
V1 = "grpc.reflection.v1.ServerReflection"


def _v1_file() -> bytes:
    """Describes v1, which the library lacks: v1alpha by another name."""
    file = FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(file)
    text = text_format.MessageToString(file).replace("v1alpha", "v1")
    return text_format.Parse(text, FileDescriptorProto()).SerializeToString()


class _Reflection(reflection.aio.ReflectionServicer):  # type: ignore[misc,name-defined]  # the stubs lack it
    def _file_containing_symbol(self, request: Any, name: str) -> Any:
        """A method is described by the file of its service; protobuf's pool does not find it by the method's name."""
        if name == V1 or name.startswith(f"{V1}."):
            described = reflection_pb2.FileDescriptorResponse(file_descriptor_proto=[_v1_file()])
            return reflection_pb2.ServerReflectionResponse(original_request=request, file_descriptor_response=described)
        answer = super()._file_containing_symbol(request, name)
        owner = name.rpartition(".")[0]
        if answer.HasField("error_response") and owner in self._service_names:
            return super()._file_containing_symbol(request, owner)
        return answer


def add_reflection(service_names: Iterable[str], server: grpc.aio.Server) -> None:
    """`service_names` are those to list besides reflection itself."""
    servicer = _Reflection((*service_names, V1ALPHA, V1))
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    handlers = [grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": handler}) for name in (V1, V1ALPHA)]
    server.add_generic_rpc_handlers(tuple(handlers))
