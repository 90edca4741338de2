"""The other worker: a process with a pool, told what to do by JSON lines on stdin; answers by JSON lines on stdout.

peer.py produce NUM_BLOCKS BLOCK_SIZE SEED [lease_s]     open, publish, seal, abort, next_release
peer.py consume NUM_BLOCKS BLOCK_SIZE                    pull: in a forked child, which tells of its progress
peer.py mortal NUM_BLOCKS BLOCK_SIZE SEED                offer all: in a forked child, which dies at one of its frames
"""

import base64
import itertools
import json
import os
import queue
import signal
import sys
import time
from typing import Any

import torch

from kvcache.layout import KvLayout
from kvcache.pool_memory import PoolMemory
from kvcache.transfer.client import TransferClient
from kvcache.transfer.errors import TransferError
from kvcache.transfer.export import Export, ReleaseReason
from kvcache.transfer.frame_tap import FrameTap
from kvcache.transfer.frames import Frame, FrameType
from kvcache.transfer.handle import KvHandle
from kvcache.transfer.payloads import Verified
from kvcache.transfer.server import TransferServer
from kvcache.transfer.transports.table import named


def layout(block_size: int) -> KvLayout:
    return KvLayout(2, block_size, 2, 8, torch.float32, "test")


def filled_memory(num_blocks: int, block_size: int, seed: int) -> PoolMemory:
    memory = PoolMemory(layout(block_size), num_blocks)
    memory.tensor.view(-1).view(torch.int32).random_(generator=torch.Generator().manual_seed(seed))
    return memory


def say(**answer: Any) -> None:
    os.write(1, json.dumps(answer).encode() + b"\n")


def produce(num_blocks: int, block_size: int, seed: int, lease_s: float) -> None:
    memory = filled_memory(num_blocks, block_size, seed)
    server = TransferServer(
        memory,
        memory.layout.fingerprint(),
        "127.0.0.1",
        0,
        lease_s=lease_s,
        batch_bytes=memory.layout.block_bytes,
        ping_interval_s=0.1,
    )
    server.start()
    exports: dict[int, Export] = {}
    releases: queue.SimpleQueue[tuple[int, ReleaseReason]] = queue.SimpleQueue()
    for line in sys.stdin:
        command = json.loads(line)
        leg = command.get("leg")
        if command["do"] == "open":

            def on_release(reason: ReleaseReason, leg: int = leg) -> None:
                releases.put((leg, reason))

            exports[leg] = server.open(leg, on_release)
            say(handle=base64.b64encode(exports[leg].handle.encode()).decode())
            continue
        if command["do"] == "next_release":
            leg, reason = releases.get(timeout=20)
            say(leg=leg, reason=reason.value)
            continue
        if command["do"] == "publish":
            exports[leg].publish(command["blocks"])
        elif command["do"] == "seal":
            exports[leg].seal(command["record"].encode())
        elif command["do"] == "abort":
            exports[leg].abort(command["text"])
        say(done=command["do"])
    server.close()


def mortal(num_blocks: int, block_size: int, seed: int) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    say(ready=True)
    parent = os.getpid()
    for line in sys.stdin:
        if os.fork() == 0:
            offer_all(num_blocks, block_size, seed, json.loads(line)["die_at"])
            while os.getppid() == parent:
                time.sleep(0.05)
            os._exit(0)


def offer_all(num_blocks: int, block_size: int, seed: int, die_at: int) -> None:
    memory = filled_memory(num_blocks, block_size, seed)
    server = TransferServer(
        memory,
        memory.layout.fingerprint(),
        "127.0.0.1",
        0,
        batch_bytes=memory.block_bytes,
        tap=dying_at(die_at),
    )
    server.start()
    export = server.open(1, lambda _: None)
    export.publish(range(num_blocks))
    export.seal(b"record")
    say(handle=base64.b64encode(export.handle.encode()).decode())


def dying_at(number: int | None) -> FrameTap:
    """Ends this process, as a crash would, when the frame of that number is to be sent."""
    frames = itertools.count(1)

    def tap(_: Frame, ranges: list[memoryview]) -> list[memoryview]:
        if next(frames) == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return ranges

    return tap


def consume(num_blocks: int, block_size: int) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    memory = PoolMemory(layout(block_size), num_blocks)
    say(ready=True)
    for line in sys.stdin:
        command = json.loads(line)
        if os.fork() == 0:
            pull(memory, command)
            os._exit(0)


def pull(memory: PoolMemory, command: dict[str, Any]) -> None:
    say(pid=os.getpid())
    handle = KvHandle.decode(base64.b64decode(command["handle"]))
    num_blocks = command["num_blocks"]

    die = dying_at(command.get("die_at"))

    def tap(frame: Frame, ranges: list[memoryview]) -> list[memoryview] | None:
        if frame.type is FrameType.VERIFIED:
            num_verified = Verified.parse(frame.payload).num_blocks
            say(progress=num_verified)
            if num_verified == command.get("stop_at"):
                os.kill(os.getpid(), signal.SIGSTOP)
        return die(frame, ranges)

    client = TransferClient(memory, memory.layout.fingerprint(), transports=named(command["transports"]), tap=tap)
    try:
        result = client.pull(handle, 0, range(num_blocks)).run()
    except TransferError as error:
        say(failure=error.reason.name)
    else:
        content = [memory.tensor[block].view(-1).view(torch.int32).sum().item() for block in range(num_blocks)]
        say(record=result.record.decode(), transport=result.transport, content=content)


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[2:5]]
    if sys.argv[1] == "produce":
        produce(numbers[0], numbers[1], numbers[2], float(sys.argv[5]))
    elif sys.argv[1] == "mortal":
        mortal(numbers[0], numbers[1], numbers[2])
    else:
        consume(numbers[0], numbers[1])
