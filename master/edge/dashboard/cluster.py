"""The cluster as the page shows it."""

from collections import defaultdict
from dataclasses import dataclass
from importlib.metadata import version

from master.history.log import RequestLog
from master.service import InstanceView, Service


@dataclass(frozen=True, slots=True)
class Instance:
    """`cached_blocks` are those that this master knows to be cached; `free_blocks` may be had, cached ones included."""

    name: str
    role: str
    state: str
    trouble: str | None
    address: str
    model: str
    version: str
    incarnation: int
    circuit: str
    queued_requests: int
    queued_prefill_tokens: int
    running_sequences: int
    legs: int
    blocks: int
    held_blocks: int
    free_blocks: int
    cached_blocks: int
    decode_step_s: float
    exports: int
    received_bytes: int
    cut_from: tuple[str, ...]


@dataclass(slots=True)
class Pair:
    """Requests that were handed over from one worker to another, of those that are remembered."""

    requests: int = 0
    bytes: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Hop:
    prefill: str
    decode: str
    requests: int
    bytes: int
    mean_s: float


@dataclass(frozen=True, slots=True)
class Master:
    id: str
    http_address: str
    rpc_address: str
    is_this: bool


@dataclass(frozen=True, slots=True)
class Cluster:
    model: str
    version: str
    not_ready_reason: str | None
    in_flight: int
    instances: list[Instance]
    hops: list[Hop]
    masters: list[Master]


def cluster_of(service: Service) -> Cluster:
    masters = service.history.masters
    return Cluster(
        model=service.resolve_model(None).id,
        version=version("pdserve"),
        not_ready_reason=service.not_ready_reason(),
        in_flight=service.num_in_flight,
        instances=[_instance(view) for view in service.instances()],
        hops=_hops(service.history.log),
        masters=[
            Master(one.id, one.http_address, one.rpc_address, one.id == masters.own_id) for one in masters.records
        ],
    )


def _instance(view: InstanceView) -> Instance:
    load = view.load
    return Instance(
        name=view.name,
        role=view.role.name,
        state="stalled" if view.is_connected and load.is_stalled else view.state,
        trouble=view.trouble,
        address=view.address,
        model=view.model,
        version=view.version,
        incarnation=view.incarnation,
        circuit=view.circuit.value,
        queued_requests=load.queued_requests,
        queued_prefill_tokens=load.queued_prefill_tokens,
        running_sequences=load.running_sequences,
        legs=view.legs_in_flight,
        blocks=view.num_blocks,
        held_blocks=load.held_blocks,
        free_blocks=load.available_blocks,
        cached_blocks=view.cached_blocks_known,
        decode_step_s=load.decode_step_s,
        exports=load.exports,
        received_bytes=load.transfer.bytes_received,
        cut_from=view.cut_from,
    )


def _hops(log: RequestLog) -> list[Hop]:
    pairs: dict[tuple[str, str], Pair] = defaultdict(Pair)
    for record in log.recent:
        timeline = record.timeline
        if timeline.transport:
            pair = pairs[timeline.prefill_instance, timeline.decode_instance]
            pair.requests += 1
            pair.bytes += timeline.transfer_bytes
            pair.seconds += timeline.transfer_s
    return [
        Hop(prefill, decode, pair.requests, pair.bytes, pair.seconds / pair.requests)
        for (prefill, decode), pair in sorted(pairs.items())
    ]
