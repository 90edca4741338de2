"""A master behind the gRPC edge that answers with the prompt, and its real server."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager

from master.edge.grpc.server import client_server
from master.output import GenerationOutput, SequenceDelta, Timeline, Usage
from master.request import GenerationRequest
from master.service import InstanceView, ModelCard
from protos.sampling_messages import FinishReason, TokenLogprobs
from protos.session_messages import LoadReport, Role, TransferCounters
from serving.grpc_server import GrpcServer
from serving.keys import Keys
from serving.server_tls import ServerTls
from tests.small_master import Language, SmallMaster

TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'critic' %}{{ raise_exception('critics are not welcome') }}{% endif %}"
    "<{{ message.role }}>{{ message.content }}{% endfor %}"
    "{% if tools %}[{{ tools | length }} tools]{% endif %}{{ suffix }}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
CORPUS = ("the quick brown fox jumps over the lazy dog", "hello world, how are you today?", "you are a helpful fox")
LANGUAGE = Language(CORPUS, "<|begin|>", "<|end|>", TEMPLATE, adds_bos=True)
MAX_CONTEXT = 100_000
CARDS = (
    ModelCard("tiny", MAX_CONTEXT, 1_700_000_000),
    ModelCard("alias", MAX_CONTEXT, 1_700_000_000, "someone"),
)
INSTANCE = InstanceView(
    name="prefill-0",
    role=Role.PREFILL,
    address="127.0.0.1:7777",
    model="tiny",
    incarnation=3,
    is_connected=True,
    state="open",
    trouble=None,
    load=LoadReport(
        role=Role.PREFILL,
        queued_requests=4,
        running_sequences=5,
        available_blocks=60,
        held_blocks=36,
        transfer=TransferCounters(
            blocks_sent=71, blocks_received=72, blocks_skipped=73, bytes_received=5 * 2**20, failures=74
        ),
    ),
    num_blocks=96,
    block_size=16,
    cached_blocks_known=12,
    legs_in_flight=9,
)


class ScriptedService(SmallMaster):
    """Answers with the prompt's own tokens, one an output.

    `refusals` are raised one a request, before any output. While `resume` is clear a request stops after its first
    output; `paused` says that one has, `closed` that a generation has ended in whatever way.
    """

    def __init__(self) -> None:
        super().__init__(LANGUAGE, CARDS, "request-")
        self.refusals: deque[Exception] = deque()
        self.failure_after_output: Exception | None = None
        self.views = [INSTANCE]
        self.times_listed = 0
        self.listed_twice = asyncio.Event()
        self.resume = asyncio.Event()
        self.resume.set()
        self.paused = asyncio.Event()
        self.closed = asyncio.Event()

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[GenerationOutput, None]:
        self.requests.append(request)
        if self.refusals:
            raise self.refusals.popleft()
        output_ids = request.prompt_ids[: request.sampling.max_tokens]
        reason = FinishReason.LENGTH if len(output_ids) == request.sampling.max_tokens else FinishReason.STOP
        try:
            for position, token_id in enumerate(output_ids):
                is_last = position == len(output_ids) - 1
                yield GenerationOutput(
                    deltas=tuple(
                        self._delta(request, index, token_id, reason if is_last else None) for index in range(request.n)
                    ),
                    usage=Usage(len(request.prompt_ids), len(output_ids) * request.n, 2) if is_last else None,
                    timeline=Timeline(total_s=1.5, transport="tcp", blocks_sent=3, attempts=1) if is_last else None,
                    prompt_logprobs=_prompt_logprobs(request) if position == 0 else (),
                )
                if not self.resume.is_set():
                    self.paused.set()
                    await self.resume.wait()
                if self.failure_after_output is not None:
                    raise self.failure_after_output
        finally:
            self.closed.set()

    def _delta(
        self, request: GenerationRequest, index: int, token_id: int, finish_reason: FinishReason | None
    ) -> SequenceDelta:
        has_logprobs = request.sampling.logprobs is not None
        return SequenceDelta(
            index=index,
            text=self.tokenizer.decode([token_id], request.skip_special_tokens),
            token_ids=(token_id,),
            logprobs=(TokenLogprobs(token_id, -0.5, 1, ((token_id, -0.5), (7, -1.5))),) if has_logprobs else (),
            finish_reason=finish_reason,
            matched_stop=1 if finish_reason is FinishReason.STOP else None,
        )

    @property
    def num_in_flight(self) -> int:
        return len(self.running_ids)

    def instances(self) -> Sequence[InstanceView]:
        self.times_listed += 1
        if self.times_listed >= 2:
            self.listed_twice.set()
        return super().instances()


def _prompt_logprobs(request: GenerationRequest) -> tuple[TokenLogprobs, ...]:
    if request.sampling.prompt_logprobs is None:
        return ()
    return (TokenLogprobs(), *(TokenLogprobs(token_id, -0.25, 1) for token_id in request.prompt_ids[1:]))


@asynccontextmanager
async def serving(
    service: ScriptedService, host: str = "127.0.0.1", keys: Keys | None = None, tls: ServerTls | None = None
) -> AsyncIterator[GrpcServer]:
    """The real gRPC server on a free port."""
    credentials = None if tls is None else tls.grpc_credentials()
    server = client_server(service, host, 0, credentials=credentials, keys=keys, health_interval_s=0.01)
    await server.start()
    try:
        yield server
    finally:
        await server.close(grace_s=0)
