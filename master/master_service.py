"""The master behind its edges: the `Service` that they ask."""

import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

from master.dispatch.dispatcher import Dispatcher
from master.errors import ErrorKind, ServingError
from master.grammar.check import GrammarCheck
from master.grammar.token_ids import with_stand_ins
from master.history.history import History
from master.model_info import ModelInfo
from master.output import GenerationOutput
from master.request import GenerationRequest, RequestOptions
from master.routing.router import largest_room, most_sequences
from master.service import InstanceView, ModelCard
from master.text.chat_template import ChatTemplate
from master.text.text_pool import TextPool
from master.text.tokenizer import Tokenizer
from master.text.user_markers import UserMarkers
from master.validation import Limits, build_generation_request
from master.workers.session import WorkerSession
from master.workers.workers import Workers
from protos.sampling_messages import Grammar
from protos.session_messages import Role

LEAVING = "this master is about to end"
# a bad word is tokenised twice: some of them take as long as a prompt of 10,000 tokens
WORD_COST = 500


class MasterService:
    """Implements `master.service.Service`."""

    def __init__(
        self,
        model: ModelInfo,
        workers: Workers,
        dispatcher: Dispatcher,
        grammar_check: GrammarCheck,
        text_pool: TextPool,
        history: History,
        *,
        request_timeout_s: float,
        user_markers: UserMarkers | None = None,
        isolates_caches: bool = False,
    ) -> None:
        self._tokenizer = model.tokenizer
        self._chat_template = model.template
        self._workers = workers
        self._dispatcher = dispatcher
        self._grammar_check = grammar_check
        self._text_pool = text_pool
        self._history = history
        self._user_markers = user_markers
        self._max_context = model.max_context
        self._request_timeout_s = request_timeout_s
        self._isolates_caches = isolates_caches
        created = int(time.time())
        self._cards = {name: ModelCard(name, model.max_context, created) for name in model.names}
        self._known_limits: tuple[int, Limits] | None = None  # as of so many changes of workers
        self.is_leaving = False

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @property
    def chat_template(self) -> ChatTemplate:
        return self._chat_template

    @property
    def text_pool(self) -> TextPool:
        return self._text_pool

    @property
    def user_markers(self) -> UserMarkers | None:
        return self._user_markers

    @property
    def history(self) -> History:
        return self._history

    def models(self) -> Sequence[ModelCard]:
        return list(self._cards.values())

    def resolve_model(self, name: str | None) -> ModelCard:
        if name is None:
            return next(iter(self._cards.values()))
        card = self._cards.get(name)
        if card is None:
            message = f"the model {name!r} does not exist; served here: {', '.join(self._cards)}"
            raise ServingError(ErrorKind.NOT_FOUND, message, field="model", code="model_not_found")
        return card

    async def build_request(self, prompt_ids: Sequence[int], options: RequestOptions) -> GenerationRequest:
        words = options.sampling.get("bad_words") or ()
        request = await self._text_pool.run(
            len(prompt_ids) + WORD_COST * (1 if isinstance(words, str) else len(words)),
            build_generation_request,
            prompt_ids,
            options,
            model=self.resolve_model(options.model),
            vocab_size=self._tokenizer.vocab_size,
            eos_token_ids=self._tokenizer.eos_ids,
            limits=self._limits(),
            encode=lambda text: self._tokenizer.encode(text, add_special_tokens=False),
            new_id=lambda: f"req-{secrets.token_hex(8)}",
            now=time.monotonic,
        )
        if options.grammar is not None:
            await self.check_grammar(options.grammar_field, options.grammar)
        return request

    async def check_grammar(self, field: str, grammar: Grammar) -> None:
        await self._grammar_check.check(field, with_stand_ins(grammar, self._tokenizer.vocab_size))

    def generate(self, request: GenerationRequest) -> AsyncGenerator[GenerationOutput, None]:
        if self._isolates_caches:
            request = replace(request, cache_salt=f"{request.client}:{request.cache_salt}")
        return self._dispatcher.generate(request)

    async def cancel(self, request_id: str, client: str = "") -> None:
        await self._dispatcher.cancel(request_id, client)

    @property
    def num_in_flight(self) -> int:
        return self._dispatcher.num_in_flight

    def not_ready_reason(self) -> str | None:
        return LEAVING if self.is_leaving else self._dispatcher.not_ready_reason()

    def instances(self) -> Sequence[InstanceView]:
        return [
            InstanceView(
                name=session.name,
                role=self._role(session),
                address=session.address,
                model=session.welcome.model.identity if session.welcome else "",
                incarnation=session.welcome.incarnation if session.welcome else 0,
                is_connected=session.is_open,
                state=session.shown_state,
                trouble=session.shown_trouble,
                load=session.load,
                num_blocks=session.welcome.num_blocks if session.welcome else 0,
                block_size=session.welcome.block_size if session.welcome else 0,
                cached_blocks_known=session.num_cached_blocks,
                legs_in_flight=session.num_legs,
                circuit=self._dispatcher.health.circuit_of(session.name),
                cut_from=tuple(p for p, d in self._dispatcher.health.cut_pairs if d == session.name),
                version=session.welcome.version if session.welcome else "",
            )
            for session in self._workers.sessions
        ]

    async def drain_instance(self, name: str) -> None:
        session = self._workers.session(name)
        if session is None:
            raise ServingError(ErrorKind.NOT_FOUND, f"no instance is named {name!r}", field="instance")
        if not session.is_open:
            message = f"{name} is not connected, so it can't be told to drain"
            raise ServingError(ErrorKind.UNAVAILABLE, message)
        session.drain()

    def _role(self, session: WorkerSession) -> Role:
        """The worker's own word counts, and before it was ever heard the registry's."""
        record = self._workers.record(session.name)
        return record.role if session.welcome is None and record is not None else session.load.role

    def _limits(self) -> Limits:
        """They change with the workers, not with each request."""
        if self._known_limits is not None and self._known_limits[0] == self._workers.num_changes:
            return self._known_limits[1]
        known = self._workers.known_views()
        limits = Limits(
            max_context=self._max_context,
            max_worker_tokens=largest_room(known),
            max_worker_sequences=most_sequences(known),
            present_tokens=largest_room(self._workers.views()),
            time_limit_s=self._request_timeout_s,
        )
        self._known_limits = self._workers.num_changes, limits
        return limits
