"""`pdserve serve`: a cluster on this machine, until Ctrl-C or, with --once, for one prompt."""

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from client.async_client import AsyncClient
from client.results import Timeline
from config import checks
from config.flags import FlagError, flag
from pdserve.demo_model import DemoModelMissing, default_cache_dir, ensure_demo_model
from pdserve.local_cluster import LocalCluster, LocalPlan
from serving.stop_signal import StopSignal

ANSWER_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class ServeConfig:
    model: Path | None = flag(None, "Folder of the model; by default the demo model SmolLM2-135M", group="Model")
    served_model_name: str | None = flag(None, "Name clients use; by default the folder's", group="Model")

    prefill: int = flag(1, "PREFILL workers", group="Cluster", check=checks.between(0, 64))
    decode: int = flag(1, "DECODE workers", group="Cluster", check=checks.between(0, 64))
    mix: int = flag(0, "MIX workers", group="Cluster", check=checks.between(0, 64))
    worker_flags: tuple[str, ...] = flag((), "Further flags for every worker, such as --block_size=32", group="Cluster")
    master_flags: tuple[str, ...] = flag(
        (), "Further flags for the master, such as --tool_call_parser=hermes,--max_requests=64", group="Cluster"
    )

    http_server_port: int = flag(28888, "OpenAI API", group="Network", check=checks.port)
    rpc_server_port: int = flag(28889, "gRPC API", group="Network", check=checks.port)
    builtin_etcd_port: int = flag(12389, "Registry", group="Network", check=checks.port)

    once: str | None = flag(None, "Answer this prompt on free ports, print its timeline, and end", group="Once")
    max_tokens: int = flag(256, "Longest answer", group="Once", unit="tokens", check=checks.at_least(1))
    temperature: float = flag(0.0, "Of the answer", group="Once", check=checks.between(0.0, 2.0))

    def __post_init__(self) -> None:
        if self.mix == 0 and (self.prefill == 0 or self.decode == 0):
            given = f"{self.prefill} PREFILL, {self.decode} DECODE and no MIX worker"
            raise FlagError("prefill", f"{given} can serve nothing; take both PREFILL and DECODE, or MIX")


async def serve(config: ServeConfig) -> int:
    """Returns the exit status. Raises FlagError and ClusterFailed."""
    stop = StopSignal()
    model = config.model if config.model is not None else await _demo_model()
    working = asyncio.create_task(_serve_cluster(config, model))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not working.done():
        tell("stopping")
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        return 0 if config.once is None else 130
    return working.result()


async def _demo_model() -> Path:
    try:
        return await asyncio.to_thread(ensure_demo_model, default_cache_dir(), tell)
    except DemoModelMissing as error:
        raise FlagError("model", str(error)) from error


async def _serve_cluster(config: ServeConfig, model: Path) -> int:
    is_once = config.once is not None
    plan = LocalPlan(
        model=model,
        num_prefill=config.prefill,
        num_decode=config.decode,
        num_mix=config.mix,
        http_port=0 if is_once else config.http_server_port,
        rpc_port=0 if is_once else config.rpc_server_port,
        etcd_port=0 if is_once else config.builtin_etcd_port,
        served_model_name=config.served_model_name,
        worker_flags=config.worker_flags,
        master_flags=config.master_flags,
    )
    async with LocalCluster(plan, tell) as cluster:
        if config.once is not None:
            answering = asyncio.create_task(_answer(cluster, config.once, config))
            failing = asyncio.create_task(cluster.failed())
            await asyncio.wait({answering, failing}, return_when=asyncio.FIRST_COMPLETED)
            failing.cancel()
            if not answering.done():
                answering.cancel()
                raise failing.result()
            answering.result()
            return 0
        _tell_urls(cluster, config.served_model_name or plan.model.name)
        raise await cluster.failed()


async def _answer(cluster: LocalCluster, prompt: str, config: ServeConfig) -> None:
    """The answer to stdout as it comes, its timeline to stderr."""
    async with (
        AsyncClient(cluster.grpc_address, timeout_s=ANSWER_TIMEOUT_S) as client,
        client.chat_stream(
            [{"role": "user", "content": prompt}], temperature=config.temperature, max_tokens=config.max_tokens
        ) as stream,
    ):
        async for delta in stream:
            print(delta.text, end="", flush=True)
        print(flush=True)
        if stream.timeline is not None:
            tell(_describe(stream.timeline))


def _describe(timeline: Timeline) -> str:
    rows: Sequence[tuple[str, str]] = (
        ("master", f"{_milliseconds(timeline.admit_s)} before, {_milliseconds(timeline.answer_s)} after"),
        ("waiting", f"{_milliseconds(timeline.route_wait_s + timeline.retry_s)} for a worker"),
        ("queue", _milliseconds(timeline.queue_s)),
        ("prefill", f"{_milliseconds(timeline.prefill_s)} on {timeline.prefill_instance}"),
        (
            "transfer",
            f"{_milliseconds(timeline.transfer_s)} ({_milliseconds(timeline.transfer_wait_s)} waiting for prefill), "
            f"{timeline.blocks_sent} blocks transferred, {timeline.blocks_skipped} skipped, "
            f"{timeline.transfer_bytes} bytes by {timeline.transport or 'no transport'}",
        ),
        ("first token", f"{_milliseconds(timeline.first_token_s)} after arrival"),
        ("decode", f"{_milliseconds(timeline.decode_s)} on {timeline.decode_instance}"),
        ("total", _milliseconds(timeline.total_s)),
    )
    return "timeline\n" + "\n".join(f"  {name:<12} {text}" for name, text in rows)


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


def _tell_urls(cluster: LocalCluster, model: str) -> None:
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "What is the capital of France?"}]})
    tell(
        f"ready\n"
        f"  OpenAI API  {cluster.http_url}/v1\n"
        f"  gRPC API    {cluster.grpc_address}\n"
        f"  registry    {cluster.etcd_address}\n"
        f"try it:\n"
        f"  curl {cluster.http_url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'\n"
        f"Ctrl-C ends everything"
    )


def tell(text: str) -> None:
    """What a person at the terminal wants to know; stdout is for answers."""
    print(text, file=sys.stderr, flush=True)
