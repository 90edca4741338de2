"""The worker's flags."""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from config import checks
from config.address import split_host_port
from config.cores import usable_cores
from config.flags import FlagError, flag
from config.log_setup import LogFormat, LogLevel
from config.value import BYTES
from kvcache.transfer.transports.table import TRANSPORTS, named
from protos.session_messages import Role
from registry.etcd.flags import EtcdFlags
from serving.cluster_flags import ClusterFlags
from serving.server_tls import ServerTls, server_tls
from worker.faults.plan import FaultPlan
from worker.legs.leg_limits import LegLimits

TRANSPORT_NAMES = tuple(transport.name for transport in TRANSPORTS)


class Engine(Enum):
    """`worker.engines.table` says where each is."""

    TORCH = "torch"


class DType(Enum):
    AUTO = "auto"
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


class Quantization(Enum):
    NONE = "none"
    INT8 = "int8"


def _address(value: str) -> None:
    split_host_port(value)


def _faults(values: tuple[str, ...]) -> None:
    FaultPlan.parse(values)


@dataclass(frozen=True)
class WorkerConfig(ClusterFlags, EtcdFlags):
    etcd_addr: str | None = flag(
        "127.0.0.1:12389",
        "etcd endpoints, host:port, comma-separated; empty: register nowhere, masters then need --workers",
        group="Registry",
    )

    model: Path | None = flag(None, "Folder of the model, in Hugging Face layout", group="Model")
    engine: Engine = flag(Engine.TORCH, "What computes the model", group="Model")
    devices: str = flag("cpu", "Torch device the model runs on, such as cpu or cuda:0", group="Model")
    dtype: DType = flag(DType.AUTO, "Type of weights; auto: float32 on a CPU, else the model's", group="Model")
    quantization: Quantization = flag(
        Quantization.NONE, "int8: round weights, and activations row by row, to 8 bits; CPU only", group="Model"
    )
    batch_invariant: bool = flag(
        False, "The same bits whatever is computed together; slower, see docs/exactness.md", group="Model"
    )
    num_threads: int = flag(
        0, "CPU threads for the model; 0: the cores this process may use", group="Model", check=checks.between(0, 4096)
    )

    host: str = flag("127.0.0.1", "Address that every port below is bound to", group="Network")
    port: int = flag(8010, "HTTP port: health and metrics; 0 picks a free one", group="Network", check=checks.port)
    disagg_pd_port: int = flag(7777, "gRPC port: sessions with masters", group="Network", check=checks.port)
    transfer_listen_port: int = flag(26000, "Port for KV transfer, plus node_rank", group="Network", check=checks.port)
    advertise_host: str | None = flag(None, "Host that others reach this worker at; by default host", group="Network")

    worker_tls_cert_file: Path | None = flag(
        None, "This worker's certificate; turns TLS on for masters", group="Security"
    )
    worker_tls_key_file: Path | None = flag(None, "Key of that certificate", group="Security")
    worker_tls_client_ca_file: Path | None = flag(
        None, "CA that masters' certificates must be of; by default they need none", group="Security"
    )

    instance_name: str | None = flag(
        None, "Name in the registry; by default host name and disagg_pd_port", group="Cluster"
    )
    instance_role: Role = flag(Role.DEFAULT, "Stages that masters may send here", group="Cluster")
    enable_disagg_pd: bool = flag(True, "Off: take only whole requests, whatever the role", group="Cluster")
    master_node_addr: str = flag(
        "127.0.0.1:18888", "Rendezvous of the ranks of one instance", group="Cluster", check=_address
    )
    nnodes: int = flag(1, "Ranks of this instance", group="Cluster", check=checks.at_least(1))
    node_rank: int = flag(0, "This process's rank", group="Cluster", check=checks.at_least(0))

    kv_dtype: DType = flag(DType.AUTO, "Type of keys and values in the pool; auto: that of weights", group="KV cache")
    block_size: int = flag(16, "Tokens in a block of KV", group="KV cache", check=checks.between(1, 1024))
    max_memory: int = flag(
        1 << 30, "Memory of the KV pool, such as 4GiB", group="KV cache", unit=BYTES, check=checks.at_least(1)
    )
    num_blocks: int | None = flag(
        None, "Blocks in the pool, instead of max_memory", group="KV cache", check=checks.at_least(1)
    )
    enable_prefix_cache: bool = flag(True, "Reuse the KV of equal prompt beginnings", group="KV cache")
    kv_lease_s: float = flag(
        60.0,
        "How long KV waits for a decode worker that shows no progress",
        group="KV cache",
        unit="s",
        check=checks.more_than(0.0),
    )
    max_exports: int = flag(
        1024,
        "Legs that may be computed, or wait, for decode workers; more are refused",
        group="KV cache",
        check=checks.at_least(1),
    )
    max_queued_pulls: int = flag(
        16,
        "Legs that may wait for room to pull their KV; more are refused, and decoded elsewhere",
        group="KV cache",
        check=checks.at_least(0),
    )
    max_pull_wait_s: float = flag(
        5.0,
        "How long such a leg may wait, but never above a quarter of the prefill worker's lease",
        group="KV cache",
        unit="s",
        check=checks.more_than(0.0),
    )
    transfer_connect_timeout_s: float = flag(
        2.0,
        "How long connecting to a prefill worker's transfer port may take, and its first answer",
        group="KV cache",
        unit="s",
        check=checks.more_than(0.0),
    )
    transfer_silence_timeout_s: float = flag(
        3.0,
        "A prefill worker silent for this long during a pull is cut off; it says something every second",
        group="KV cache",
        unit="s",
        check=checks.more_than(1.0),
    )
    transports: tuple[str, ...] = flag(
        TRANSPORT_NAMES, f"Ways to pull KV, best first, of: {', '.join(TRANSPORT_NAMES)}", group="KV cache"
    )

    max_tokens_per_step: int = flag(
        512, "Tokens computed in one step, of all sequences", group="Scheduling", check=checks.at_least(1)
    )
    max_step_s: float | None = flag(
        None,
        "How long a step may take that has prompts beside streams, as far as measured; by default whatever it takes",
        group="Scheduling",
        unit="s",
        check=checks.more_than(0.0),
    )
    max_num_seqs: int = flag(64, "Sequences that run at once", group="Scheduling", check=checks.at_least(1))
    max_queued: int = flag(1024, "Legs that may wait; more are refused", group="Scheduling", check=checks.at_least(1))
    max_context: int | None = flag(
        None,
        "Tokens of prompt and completion together; by default the model's",
        group="Scheduling",
        check=checks.at_least(2),
    )
    enable_chunked_prefill: bool = flag(True, "Compute long prompts over several steps", group="Scheduling")

    drain_timeout_s: float = flag(
        60.0, "How long work may go on after SIGTERM", group="Operation", unit="s", check=checks.at_least(0.0)
    )
    stall_timeout_s: float = flag(
        10.0,
        "A step longer than this makes the worker not ready",
        group="Operation",
        unit="s",
        check=checks.more_than(0.0),
    )
    heartbeat_timeout_s: float = flag(
        5.0,
        "A master whose process is silent for so long is gone",
        group="Operation",
        unit="s",
        check=checks.more_than(1.0),
    )
    master_stall_timeout_s: float = flag(
        30.0,
        "A master that lives but is too busy to say anything for so long is gone",
        group="Operation",
        unit="s",
        check=checks.more_than(1.0),
    )
    inject_faults: tuple[str, ...] = flag(
        (), "Faults to suffer, as in worker/faults/plan.py", group="Operation", check=_faults, is_hidden=True
    )
    log_level: LogLevel = flag(LogLevel.INFO, "Least level of log lines", group="Operation")
    log_format: LogFormat = flag(LogFormat.TEXT, "Log lines as text or as JSON objects", group="Operation")

    def __post_init__(self) -> None:
        if self.nnodes > 1 or self.node_rank > 0:
            raise FlagError("nnodes", f"{self.nnodes} ranks: an instance of several ranks is not supported yet, use 1")
        if self.max_tokens_per_step < self.max_num_seqs:
            problem = f"{self.max_tokens_per_step}: below max_num_seqs {self.max_num_seqs}, streams would starve"
            raise FlagError("max_tokens_per_step", problem)
        try:
            named(self.transports)
        except ValueError as error:
            raise FlagError("transports", f"{','.join(self.transports)!r}: {error}") from error

    def master_tls(self) -> ServerTls | None:
        """None when masters connect without TLS. Raises FlagError for files that can't be used."""
        return server_tls(
            "worker_tls_", self.worker_tls_cert_file, self.worker_tls_key_file, self.worker_tls_client_ca_file
        )

    @property
    def leg_limits(self) -> LegLimits:
        return LegLimits(self.max_queued, self.max_exports, self.max_queued_pulls, self.max_pull_wait_s)

    @property
    def effective_role(self) -> Role:
        return self.instance_role if self.enable_disagg_pd else Role.DEFAULT

    @property
    def threads(self) -> int:
        return self.num_threads or usable_cores()
