import grpc

from protos import cluster_pb2, session_pb2
from protos.cluster_pb2_grpc import ClusterStub
from tests.scripted_service import ScriptedService

TIMEOUT_S = 30.0


async def test_instances_are_listed_with_load_and_readiness(
    channel: grpc.aio.Channel, service: ScriptedService
) -> None:
    list_instances = ClusterStub(channel).ListInstances
    response = await list_instances(cluster_pb2.ListInstancesRequest(), timeout=TIMEOUT_S)
    (instance,) = response.instances
    assert (instance.name, instance.role, instance.incarnation) == ("prefill-0", session_pb2.ROLE_PREFILL, 3)
    assert (instance.load.held_blocks, instance.load.transfer.blocks_skipped) == (36, 73)
    assert (instance.num_blocks, instance.cached_blocks_known, instance.legs_in_flight) == (96, 12, 9)
    assert (response.is_ready, response.not_ready_reason) == (True, "")
    service.reason = "no decode worker"
    response = await list_instances(cluster_pb2.ListInstancesRequest(), timeout=TIMEOUT_S)
    assert (response.is_ready, response.not_ready_reason) == (False, "no decode worker")
