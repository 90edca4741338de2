"""The Cluster service: the instances as this master sees them, and what they can be told."""

import logging

from master.edge.grpc.request_story import encode_story
from master.edge.grpc.status import Context, answering
from master.errors import ErrorKind, ServingError
from master.service import InstanceView, Service
from protos import cluster_pb2 as wire
from protos.cluster_pb2_grpc import ClusterServicer
from protos.load_codec import encode_load, encode_role

logger = logging.getLogger(__name__)


class Cluster(ClusterServicer):
    def __init__(self, service: Service) -> None:
        self._service = service

    async def ListInstances(self, request: wire.ListInstancesRequest, context: Context) -> wire.ListInstancesResponse:
        async with answering(context):
            reason = self._service.not_ready_reason()
            instances = [_encode_instance(view) for view in self._service.instances()]
            return wire.ListInstancesResponse(instances=instances, is_ready=reason is None, not_ready_reason=reason)

    async def Drain(self, request: wire.DrainRequest, context: Context) -> wire.DrainResponse:
        async with answering(context):
            await self._service.drain_instance(request.name)
            logger.info("worker %s: told to drain by %s", request.name, context.peer())
            return wire.DrainResponse()

    async def Trace(self, request: wire.TraceRequest, context: Context) -> wire.TraceResponse:
        async with answering(context):
            found = self._service.history.log.find(request.id)
            if not found:
                message = f"this master remembers no request {request.id!r}"
                raise ServingError(ErrorKind.NOT_FOUND, message, field="id")
            return wire.TraceResponse(requests=[encode_story(record) for record in found])


def _encode_instance(view: InstanceView) -> wire.Instance:
    return wire.Instance(
        name=view.name,
        role=encode_role(view.role),
        address=view.address,
        model=view.model,
        incarnation=view.incarnation,
        is_connected=view.is_connected,
        state=view.state,
        trouble=view.trouble,
        load=encode_load(view.load),
        num_blocks=view.num_blocks,
        block_size=view.block_size,
        cached_blocks_known=view.cached_blocks_known,
        legs_in_flight=view.legs_in_flight,
        circuit=view.circuit.value,
        cut_from=view.cut_from,
    )
