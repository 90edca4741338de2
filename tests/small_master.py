"""What is real in the masters behind edges under test: tokenizer, template and validation; generation is made up."""

import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from prometheus_client import CollectorRegistry
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from master.errors import ErrorKind, ServingError
from master.grammar.check import GrammarCheck
from master.history.history import History
from master.history.log import RequestLog
from master.history.masters import Masters
from master.history.samples import Samples
from master.request import GenerationRequest, RequestOptions
from master.service import InstanceView, ModelCard
from master.text.chat_template import ChatTemplate
from master.text.text_pool import TextPool
from master.text.tokenizer import Tokenizer, load_tokenizer
from master.text.user_markers import UserMarkers
from master.validation import Limits, build_generation_request
from protos.sampling_messages import Grammar


@dataclass(frozen=True)
class Language:
    """What a tokenizer is trained on, the tokens that begin and end a text, and the chat template."""

    corpus: tuple[str, ...]
    bos: str
    eos: str
    template: str
    adds_bos: bool

    @cache  # noqa: B019  there are three of them
    def load(self) -> tuple[Tokenizer, ChatTemplate]:
        """From a folder laid out as a model's."""
        library = LibraryTokenizer(models.BPE())
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        library.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=300,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=[self.bos, self.eos],
            show_progress=False,
        )
        library.train_from_iterator(self.corpus, trainer)
        if self.adds_bos:
            library.post_processor = processors.TemplateProcessing(
                single=f"{self.bos} $A", special_tokens=[(self.bos, 0)]
            )
        with TemporaryDirectory() as name:
            folder = Path(name)
            library.save(str(folder / "tokenizer.json"))
            config = {"bos_token": self.bos, "eos_token": self.eos, "chat_template": self.template}
            (folder / "tokenizer_config.json").write_text(json.dumps(config))
            return load_tokenizer(folder), ChatTemplate.load(folder)


class SmallMaster:
    """A service that lacks `generate` and `num_in_flight`. It notes what is asked of it."""

    def __init__(self, language: Language, cards: Sequence[ModelCard], id_prefix: str) -> None:
        self.tokenizer, self.chat_template = language.load()
        self.text_pool = TextPool()
        self.user_markers: UserMarkers | None = UserMarkers(self.tokenizer.marker_ids)
        self.grammar_check = GrammarCheck()
        self.options: list[RequestOptions] = []
        self.requests: list[GenerationRequest] = []
        self.reason: str | None = None
        self.views: list[InstanceView] = []
        self.running_ids: set[str] = set()
        self.cancelled: list[str] = []
        self.cancellers: list[str] = []
        self.drained: list[str] = []
        self.registry = CollectorRegistry()
        log = RequestLog()
        self.history = History(log, Samples(log, self.registry, dict), Masters("this"))
        self._cards = cards
        self._id_prefix = id_prefix
        self._numbers = itertools.count(1)

    def models(self) -> Sequence[ModelCard]:
        return self._cards

    def resolve_model(self, name: str | None) -> ModelCard:
        for card in self.models():
            if name in (None, card.id):
                return card
        raise ServingError(ErrorKind.NOT_FOUND, f"model {name!r} is not served", field="model", code="model_not_found")

    async def build_request(self, prompt_ids: Sequence[int], options: RequestOptions) -> GenerationRequest:
        self.options.append(options)
        model = self.resolve_model(options.model)
        return build_generation_request(
            prompt_ids,
            options,
            model=model,
            vocab_size=self.tokenizer.vocab_size,
            eos_token_ids=self.tokenizer.eos_ids,
            limits=Limits(model.max_context),
            encode=lambda text: self.tokenizer.encode(text, add_special_tokens=False),
            new_id=lambda: f"{self._id_prefix}{next(self._numbers)}",
            now=time.monotonic,
        )

    async def check_grammar(self, field: str, grammar: Grammar) -> None:
        await self.grammar_check.check(field, grammar)

    def not_ready_reason(self) -> str | None:
        return self.reason

    def instances(self) -> Sequence[InstanceView]:
        return self.views

    async def cancel(self, request_id: str, client: str = "") -> None:
        self.cancellers.append(client)
        if request_id not in self.running_ids:
            raise ServingError(ErrorKind.NOT_FOUND, f"no request {request_id!r} is running here", field="id")
        self.cancelled.append(request_id)

    async def drain_instance(self, name: str) -> None:
        if name != "decode-0":
            raise ServingError(ErrorKind.NOT_FOUND, f"instance {name!r} is not known", field="instance")
        self.drained.append(name)
