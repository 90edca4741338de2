"""A master behind the HTTP edge whose generations follow a script, and its real server."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import openai
from prometheus_client import CollectorRegistry

from master.edge.app import create_app
from master.edge.http.config import HttpConfig
from master.output import GenerationOutput, SequenceDelta, Timeline, Usage
from master.request import GenerationRequest
from master.service import ModelCard
from master.text.detokenizer import IncrementalDetokenizer
from protos.sampling_messages import FinishReason, TokenLogprobs
from serving.http_server import HttpServer
from serving.keys import Keys
from tests.http_client import Client
from tests.small_master import Language, SmallMaster

MODEL = "demo/model"
MAX_CONTEXT = 2000
REPLY = "Hello wörld, 你好🙂!"
BOS, EOS = "<s>", "</s>"
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.role == 'assistant' and loop.first %}{{ raise_exception('roles must alternate') }}{% endif %}"
    "[{{ message.role }}]{{ message.content }}\n{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}{% if shout %}SHOUT{% endif %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)

Script = Callable[[GenerationRequest], AsyncGenerator[GenerationOutput, None]]


CARDS = tuple(ModelCard(name, MAX_CONTEXT, 1_700_000_000) for name in (MODEL, "alias"))


def language(adds_bos: bool) -> Language:
    return Language(("the quick brown fox jumps over the lazy dog", "hello world"), BOS, EOS, TEMPLATE, adds_bos)


class HttpService(SmallMaster):
    """Answers every request with REPLY, a token an output, unless `script` says otherwise.

    `num_open` counts generations that run, and `opened` can be acquired once for each that began; `all_closed` is
    set when the last has ended in whatever way.
    """

    def __init__(self, adds_bos: bool = False) -> None:
        super().__init__(language(adds_bos), CARDS, "r")
        self.script: Script = self.response
        self.num_open = 0
        self.opened = asyncio.Semaphore(0)
        self.all_closed = asyncio.Event()

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[GenerationOutput, None]:
        self.requests.append(request)
        self.num_open += 1
        self.opened.release()
        self.all_closed.clear()
        generator = self.script(request)
        try:
            async for output in generator:
                yield output
        finally:
            await generator.aclose()
            self.num_open -= 1
            if self.num_open == 0:
                self.all_closed.set()

    async def response(self, request: GenerationRequest) -> AsyncGenerator[GenerationOutput, None]:
        ids = self.tokenizer.encode(REPLY, add_special_tokens=False)
        reason = FinishReason.STOP if len(ids) < request.sampling.max_tokens else FinishReason.LENGTH
        ids = ids[: request.sampling.max_tokens]
        detokenizer = IncrementalDetokenizer(self.tokenizer, request.prompt_ids, request.skip_special_tokens)
        prompt_logprobs: tuple[TokenLogprobs, ...] = ()
        if request.sampling.prompt_logprobs is not None:
            prompt_logprobs = (TokenLogprobs(), *(self._logprobs(token_id, 0) for token_id in request.prompt_ids[1:]))
        for position, token_id in enumerate(ids):
            is_last = position == len(ids) - 1
            text = detokenizer.push((token_id,)) + (detokenizer.finish() if is_last else "")
            has_logprobs = request.sampling.logprobs is not None
            yield GenerationOutput(
                deltas=tuple(
                    SequenceDelta(
                        index=index,
                        text=text,
                        token_ids=(token_id,),
                        logprobs=(self._logprobs(token_id, index),) if has_logprobs else (),
                        finish_reason=reason if is_last else None,
                    )
                    for index in range(request.n)
                ),
                usage=Usage(len(request.prompt_ids), len(ids) * request.n, 3) if is_last else None,
                timeline=Timeline(total_s=1.5, transport="tcp", blocks_sent=3, attempts=1) if is_last else None,
                prompt_logprobs=prompt_logprobs if position == 0 else (),
                cached_tokens=3,
            )

    def _logprobs(self, token_id: int, index: int) -> TokenLogprobs:
        """The later the choice, the likelier."""
        logprob = -1 / (index + 1)
        return TokenLogprobs(token_id, logprob, 1, ((token_id, logprob), (10, -3.0)))

    @property
    def num_in_flight(self) -> int:
        return self.num_open


@dataclass(frozen=True, slots=True)
class HttpEdge:
    """A server that runs, and a client of it."""

    service: HttpService
    server: HttpServer
    client: Client
    registry: CollectorRegistry

    @property
    def prompt(self) -> str:
        """What the latest request asks the model to go on from, with its special tokens."""
        return self.service.tokenizer.decode(self.service.requests[-1].prompt_ids, skip_special_tokens=False)


@asynccontextmanager
async def serving(
    service: HttpService, config: HttpConfig | None = None, keys: Keys | None = None
) -> AsyncIterator[HttpEdge]:
    registry = service.registry
    config = config or HttpConfig()
    server = HttpServer(create_app(service, config, registry, keys=keys), "127.0.0.1", 0)
    await server.start()
    try:
        yield HttpEdge(service, server, Client("127.0.0.1", server.port), registry)
    finally:
        await server.stop(deadline_s=5)


def official_client(edge: HttpEdge) -> openai.AsyncOpenAI:
    """OpenAI's own client of `edge`; a proxy of the environment is none of its business."""
    http_client = openai.DefaultAsyncHttpxClient(trust_env=False)
    return openai.AsyncOpenAI(base_url=f"{edge.server.url}/v1", api_key="any", max_retries=0, http_client=http_client)
