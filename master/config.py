"""The master's flags."""

from dataclasses import dataclass
from pathlib import Path

from config import checks
from config.address import parse_addresses
from config.flags import FlagError, flag
from config.log_setup import LogFormat, LogLevel
from config.value import BYTES
from master.dispatch.flags import DispatchFlags
from master.parsing.formats import call_format_names, reasoning_names
from master.routing.policies import POLICIES
from master.routing.prefix_index import DEFAULT_MAX_BLOCKS
from master.security_flags import SecurityFlags
from registry.etcd.flags import EtcdFlags


def _policy(name: str) -> None:
    if name not in POLICIES:
        raise ValueError(f"must be one of {', '.join(POLICIES)}")


def _root_path(value: str) -> None:
    if value and not (value.startswith("/") and value.isascii() and not value.endswith("/")):
        raise ValueError("must begin with a slash and not end with one")


@dataclass(frozen=True)
class MasterConfig(SecurityFlags, EtcdFlags, DispatchFlags):
    """Without --etcd_addr and --workers the master runs a registry of its own, for one machine."""

    workers: tuple[str, ...] = flag((), "gRPC addresses of workers, instead of a registry", group="Registry")
    builtin_etcd_port: int = flag(
        12389, "Port of the built-in registry, used without etcd_addr", group="Registry", check=checks.port
    )

    tokenizer_path: Path | None = flag(None, "Folder with tokenizer and chat template", group="Model")
    served_model_name: tuple[str, ...] = flag(
        (), "Names clients may use, the first is shown; by default the folder's", group="Model"
    )
    max_context: int | None = flag(
        None,
        "Tokens of prompt and completion together; by default the model's",
        group="Model",
        check=checks.at_least(2),
    )

    tool_call_parser: str = flag(
        "auto",
        f"How the model writes tool calls; auto goes by its chat template: {', '.join(call_format_names())}",
        group="Model",
    )
    reasoning_parser: str = flag(
        "auto",
        f"How the model marks reasoning; auto goes by its chat template: {', '.join(reasoning_names())}",
        group="Model",
    )

    max_stored_responses: int = flag(
        0,
        "Answers of /v1/responses kept in this master's memory for previous_response_id; 0: none. "
        "With several masters a balancer must send a conversation to the same one",
        group="Model",
        check=checks.at_least(0),
    )
    keep_responses_s: float = flag(
        3600.0, "How long they are kept", group="Model", unit="s", check=checks.more_than(0.0)
    )
    enable_tokenizer_info: bool = flag(False, "Answer GET /tokenizer_info, chat template included", group="Model")
    parse_special_in_user_text: bool = flag(
        False, "Markers such as <|im_end|> in what users and tools say become control tokens", group="Model"
    )

    host: str = flag("127.0.0.1", "Address that every port below is bound to", group="Network")
    http_server_port: int = flag(28888, "OpenAI API, health, metrics", group="Network", check=checks.port)
    uds: Path | None = flag(None, "Unix socket to serve HTTP on, instead of host and http_server_port", group="Network")
    root_path: str = flag(
        "",
        "Prefix that a proxy serves the HTTP API under; requests may come with or without it",
        group="Network",
        check=_root_path,
    )
    keep_alive_s: int = flag(
        75,
        "How long an idle HTTP connection is kept; longer than balancers do",
        group="Network",
        unit="s",
        check=checks.at_least(1),
    )
    rpc_server_port: int = flag(28889, "gRPC API", group="Network", check=checks.port)
    advertise_host: str | None = flag(None, "Host that others reach this master at; by default host", group="Network")
    max_body_bytes: int = flag(
        32 << 20, "Largest HTTP request body", group="Network", unit=BYTES, check=checks.at_least(1)
    )
    slow_reader_timeout_s: float = flag(
        60.0,
        "A client that reads nothing of its stream for so long is cut",
        group="Network",
        unit="s",
        check=checks.more_than(0.0),
    )

    routing_policy: str = flag(
        "soonest",
        "Which worker takes a request: soonest (by load and cached prefix) or round_robin",
        group="Scheduling",
        check=_policy,
    )
    max_indexed_blocks: int = flag(
        DEFAULT_MAX_BLOCKS,
        "KV blocks of all workers' prefix caches that routing knows of; each takes some 250 bytes",
        group="Scheduling",
        check=checks.at_least(0),
    )
    request_timeout_s: float = flag(
        600.0, "Longest a request may take", group="Scheduling", unit="s", check=checks.more_than(0.0)
    )
    heartbeat_timeout_s: float = flag(
        5.0, "A worker silent for this long is lost", group="Operation", unit="s", check=checks.more_than(1.0)
    )
    connect_timeout_s: float = flag(
        3.0, "How long a worker may take to greet", group="Operation", unit="s", check=checks.more_than(0.0)
    )
    lame_duck_s: float = flag(
        5.0,
        "How long a master that was told to end is not ready but serves on, for balancers to notice",
        group="Operation",
        unit="s",
        check=checks.at_least(0.0),
    )
    drain_timeout_s: float = flag(
        60.0, "How long requests may go on after that", group="Operation", unit="s", check=checks.at_least(0.0)
    )
    dashboard: bool = flag(True, "Serve the page /dashboard", group="Operation")
    log_level: LogLevel = flag(LogLevel.INFO, "Least level of log lines", group="Operation")
    log_format: LogFormat = flag(LogFormat.TEXT, "Log lines as text or as JSON objects", group="Operation")

    def __post_init__(self) -> None:
        if self.workers:
            try:
                parse_addresses(",".join(self.workers))
            except ValueError as error:
                raise FlagError("workers", str(error)) from error
