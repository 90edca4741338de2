"""Listings of models and instances out of protobuf."""

from client.results import ClusterInfo, InstanceInfo, ModelInfo
from protos import cluster_pb2, inference_pb2
from protos.load_codec import decode_load, decode_role


def decode_models(response: inference_pb2.ListModelsResponse) -> list[ModelInfo]:
    return [
        ModelInfo(id=model.id, max_context=model.max_context, created=model.created, owner=model.owner)
        for model in response.models
    ]


def decode_cluster(response: cluster_pb2.ListInstancesResponse) -> ClusterInfo:
    return ClusterInfo(
        instances=tuple(_decode_instance(instance) for instance in response.instances),
        is_ready=response.is_ready,
        not_ready_reason=response.not_ready_reason or None,
    )


def _decode_instance(instance: cluster_pb2.Instance) -> InstanceInfo:
    return InstanceInfo(
        name=instance.name,
        role=decode_role(instance.role),
        address=instance.address,
        model=instance.model,
        incarnation=instance.incarnation,
        is_connected=instance.is_connected,
        state=instance.state,
        trouble=instance.trouble if instance.HasField("trouble") else None,
        load=decode_load(instance.load),
        num_blocks=instance.num_blocks,
        block_size=instance.block_size,
        cached_blocks_known=instance.cached_blocks_known,
        legs_in_flight=instance.legs_in_flight,
        circuit=instance.circuit,
        cut_from=tuple(instance.cut_from),
    )
