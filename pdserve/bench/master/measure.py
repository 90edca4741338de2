"""`pdserve bench master`: what a master costs by itself.

A master, one stand-in prefill and one stand-in decode worker, and the load are processes of their own on this machine.
The workers compute nothing, so that what is measured is the master's.
"""

import asyncio
import contextlib
import os
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from config import checks
from config.address import join_host_port
from config.flags import flag
from pdserve.bench.master.load import HOST, LoadPlan
from pdserve.child_process import ChildProcess
from pdserve.demo_model import default_cache_dir, ensure_demo_model
from pdserve.free_port import free_port
from pdserve.readiness import is_serving

READY_S = 30.0
LOAD_S = 300.0


@dataclass(frozen=True)
class MasterBenchConfig:
    tokenizer_path: Path | None = flag(None, "Folder with tokenizer; by default the demo model's", group="Model")
    streams: int = flag(64, "Streams at once", group="Load", check=checks.at_least(1))
    tokens: int = flag(64, "Tokens of each stream", group="Load", check=checks.at_least(2))
    rounds: int = flag(4, "How often they all run", group="Load", check=checks.at_least(1))
    pace_ms: int = flag(10, "Between two tokens of a stream where it is paced", group="Load", check=checks.at_least(1))
    chats: int = flag(4000, "Short chats that are not streamed", group="Load", check=checks.at_least(1))
    chat_clients: int = flag(
        16, "Clients that send them, and few paced streams", group="Load", check=checks.at_least(1)
    )
    chat_tokens: int = flag(4, "Tokens of each short chat", group="Load", check=checks.at_least(1))
    open_streams: int = flag(500, "Streams that are open while memory is read", group="Load", check=checks.at_least(1))
    master_flags: str = flag("", "Further flags for the master, separated by spaces", group="Operation")

    def plan(self) -> LoadPlan:
        return msgspec.convert(self, LoadPlan, from_attributes=True)


async def bench_master(config: MasterBenchConfig) -> int:
    """Prints JSON, or why there is none and returns 1."""
    model = config.tokenizer_path or ensure_demo_model(default_cache_dir(), partial(print, flush=True))
    http_port, rpc_port, etcd_port = free_port(), free_port(), free_port()
    flags = [
        f"--tokenizer_path={model}",
        f"--http_server_port={http_port}",
        f"--rpc_server_port={rpc_port}",
        f"--builtin_etcd_port={etcd_port}",
        f"--max_requests={2 * max(config.open_streams, config.streams, config.chat_clients)}",
        "--lame_duck_s=0",
        *config.master_flags.split(),
    ]
    async with contextlib.AsyncExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pdserve-bench-")))
        master = ChildProcess("master", "master.main", flags, logs / "master.log")
        children = [master]
        for role in ("PREFILL", "DECODE"):
            of_role = [role, f"{HOST}:{etcd_port}"]
            children.append(ChildProcess(role, "pdserve.bench.master.stand_in", of_role, logs / f"{role}.log"))
        for child in children:
            await child.start(os.environ)
            stack.push_async_callback(child.stop)
        try:
            async with asyncio.timeout(READY_S):
                await is_serving(join_host_port(HOST, rpc_port))
        except TimeoutError:
            print("\n".join(f"{child.name}: {child.log_tail()}" for child in children), file=sys.stderr)
            return 1
        return await _load(http_port, master.pid, config.plan())


async def _load(port: int, pid: int, plan: LoadPlan) -> int:
    command = (sys.executable, "-m", "pdserve.bench.master.load", str(port), str(pid), msgspec.json.encode(plan))
    process = await asyncio.create_subprocess_exec(*command)
    try:
        async with asyncio.timeout(LOAD_S):
            return await process.wait()
    except TimeoutError:
        process.kill()
        raise
