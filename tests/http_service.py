"""A master behind the HTTP edge whose generations follow a script: real tokenizer, template, validation and server."""

import asyncio
import itertools
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import openai
from prometheus_client import CollectorRegistry
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from master.edge.app import create_app
from master.edge.http.config import HttpConfig
from master.errors import ErrorKind, ServingError
from master.grammar.check import GrammarCheck
from master.output import GenerationOutput, SequenceDelta, Timeline, Usage
from master.request import GenerationRequest, RequestOptions
from master.service import InstanceView, ModelCard
from master.text.chat_template import ChatTemplate
from master.text.detokenizer import IncrementalDetokenizer
from master.text.text_pool import TextPool
from master.text.tokenizer import Tokenizer, load_tokenizer
from master.text.user_markers import UserMarkers
from master.validation import Limits, build_generation_request
from protos.sampling_messages import FinishReason, Grammar, TokenLogprobs
from serving.http_server import HttpServer
from serving.keys import Keys
from tests.http_client import Client

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


@cache
def texts(adds_bos: bool) -> tuple[Tokenizer, ChatTemplate]:
    """Loaded from a folder laid out as a model's."""
    library = LibraryTokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[BOS, EOS],
        show_progress=False,
    )
    library.train_from_iterator(["the quick brown fox jumps over the lazy dog", "hello world"], trainer)
    if adds_bos:
        library.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 0)])
    with TemporaryDirectory() as name:
        folder = Path(name)
        library.save(str(folder / "tokenizer.json"))
        config = {"bos_token": BOS, "eos_token": EOS, "chat_template": TEMPLATE}
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
        return load_tokenizer(folder), ChatTemplate.load(folder)


class HttpService:
    """Answers every request with REPLY, a token an output, unless `script` says otherwise.

    `num_open` counts generations that run, and `opened` can be acquired once for each that began; `all_closed` is
    set when the last has ended in whatever way.
    """

    def __init__(self, adds_bos: bool = False) -> None:
        self.tokenizer, self.chat_template = texts(adds_bos)
        self.text_pool = TextPool()
        self.user_markers: UserMarkers | None = UserMarkers(self.tokenizer.marker_ids)
        self.grammar_check = GrammarCheck()
        self.script: Script = self.response
        self.requests: list[GenerationRequest] = []
        self.reason: str | None = None
        self.num_open = 0
        self.opened = asyncio.Semaphore(0)
        self.all_closed = asyncio.Event()
        self.running_ids: set[str] = set()
        self.cancelled: list[str] = []
        self.cancellers: list[str] = []
        self.drained: list[str] = []
        self._numbers = itertools.count(1)

    def models(self) -> Sequence[ModelCard]:
        return [ModelCard(MODEL, MAX_CONTEXT, 1_700_000_000), ModelCard("alias", MAX_CONTEXT, 1_700_000_000)]

    def resolve_model(self, name: str | None) -> ModelCard:
        for card in self.models():
            if name in (None, card.id):
                return card
        raise ServingError(ErrorKind.NOT_FOUND, f"model {name!r} is not served", field="model", code="model_not_found")

    async def build_request(self, prompt_ids: Sequence[int], options: RequestOptions) -> GenerationRequest:
        return build_generation_request(
            prompt_ids,
            options,
            model=self.resolve_model(options.model),
            vocab_size=self.tokenizer.vocab_size,
            eos_token_ids=self.tokenizer.eos_ids,
            limits=Limits(MAX_CONTEXT),
            encode=lambda text: self.tokenizer.encode(text, add_special_tokens=False),
            new_id=lambda: f"r{next(self._numbers)}",
            now=time.monotonic,
        )

    async def check_grammar(self, field: str, grammar: Grammar) -> None:
        await self.grammar_check.check(field, grammar)

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

    def _logprobs(self, token_id: int, sample: int) -> TokenLogprobs:
        """The later the sample, the likelier."""
        logprob = -1 / (sample + 1)
        return TokenLogprobs(token_id, logprob, 1, ((token_id, logprob), (10, -3.0)))

    @property
    def num_in_flight(self) -> int:
        return self.num_open

    def not_ready_reason(self) -> str | None:
        return self.reason

    def instances(self) -> Sequence[InstanceView]:
        return []

    async def cancel(self, request_id: str, client: str = "") -> None:
        self.cancellers.append(client)
        if request_id not in self.running_ids:
            raise ServingError(ErrorKind.NOT_FOUND, f"no request {request_id!r} is running here", field="id")
        self.cancelled.append(request_id)

    async def drain_instance(self, name: str) -> None:
        if name != "decode-0":
            raise ServingError(ErrorKind.NOT_FOUND, f"instance {name!r} is not known", field="instance")
        self.drained.append(name)


@dataclass(frozen=True, slots=True)
class HttpEdge:
    """A server that runs, and a client of it."""

    service: HttpService
    server: HttpServer
    client: Client
    registry: CollectorRegistry


@asynccontextmanager
async def serving(
    service: HttpService, config: HttpConfig | None = None, keys: Keys | None = None
) -> AsyncIterator[HttpEdge]:
    registry = CollectorRegistry()
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
