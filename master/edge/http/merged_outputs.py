"""The outputs of several requests as one stream."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from master.output import GenerationOutput

Numbered = tuple[int, GenerationOutput]  # the request's number, its output
Outputs = AsyncGenerator[GenerationOutput, None]


async def merged_outputs(requests: Sequence[Outputs]) -> AsyncGenerator[Numbered, None]:
    """Run all requests at once, each at the consumer's pace. When one fails, the others are closed and its error is
    raised; closing this closes all."""
    queue: asyncio.Queue[Numbered | Exception | None] = asyncio.Queue(maxsize=len(requests))
    tasks = [asyncio.create_task(_pump(number, outputs, queue)) for number, outputs in enumerate(requests)]
    num_running = len(tasks)
    try:
        while num_running:
            item = await queue.get()
            if item is None:
                num_running -= 1
            elif isinstance(item, Exception):
                raise item
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(number: int, outputs: Outputs, queue: asyncio.Queue[Numbered | Exception | None]) -> None:
    try:
        async with aclosing(outputs):
            async for output in outputs:
                await queue.put((number, output))
    except Exception as error:  # whatever it is, the consumer raises it
        await queue.put(error)
    else:
        await queue.put(None)
