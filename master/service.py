"""What the edges may ask of the master; `master.master_service` answers."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol

from master.history.history import History
from master.output import GenerationOutput
from master.request import GenerationRequest, RequestOptions
from master.routing.circuit import CircuitState
from master.text.chat_template import ChatTemplate
from master.text.text_pool import TextPool
from master.text.tokenizer import Tokenizer
from master.text.user_markers import UserMarkers
from protos.sampling_messages import Grammar
from protos.session_messages import LoadReport, Role


@dataclass(frozen=True, slots=True)
class ModelCard:
    id: str
    max_context: int  # tokens, prompt and completion together
    created: int  # unix seconds
    owner: str = "pdserve"


@dataclass(frozen=True, slots=True)
class InstanceView:
    """One worker as this master sees it."""

    name: str
    role: Role
    address: str
    model: str
    incarnation: int
    is_connected: bool
    state: str  # in a word
    trouble: str | None  # why it is not used
    load: LoadReport
    num_blocks: int
    block_size: int
    cached_blocks_known: int
    legs_in_flight: int
    circuit: CircuitState = CircuitState.CLOSED
    cut_from: tuple[str, ...] = ()  # prefill workers whose KV does not get here
    version: str = ""


class Service(Protocol):
    """The master behind its edges."""

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def chat_template(self) -> ChatTemplate: ...

    @property
    def text_pool(self) -> TextPool: ...

    @property
    def user_markers(self) -> UserMarkers | None:
        """Keeps control tokens out of what users say; None where they may write them."""
        ...

    def models(self) -> Sequence[ModelCard]:
        """The served model under its name, then its aliases."""
        ...

    def resolve_model(self, name: str | None) -> ModelCard:
        """None is the served model. Raises ServingError NOT_FOUND for a name that is not served."""
        ...

    async def build_request(self, prompt_ids: Sequence[int], options: RequestOptions) -> GenerationRequest:
        """Check everything that needs no worker. Raises ServingError naming the field."""
        ...

    async def check_grammar(self, field: str, grammar: Grammar) -> None:
        """Raises ServingError naming `field` for one that outputs can't be kept to."""
        ...

    def generate(self, request: GenerationRequest) -> AsyncGenerator[GenerationOutput, None]:
        """Serve a request. Closing the generator cancels it on every worker. Raises ServingError."""
        ...

    async def cancel(self, request_id: str, client: str = "") -> None:
        """End the request of exactly this id, its own or its answer's, or those that this client calls so.

        Returns when no worker holds anything for it. Raises ServingError NOT_FOUND, or DEADLINE_EXCEEDED when that was
        not confirmed in time.
        """
        ...

    @property
    def num_in_flight(self) -> int:
        """Requests that were admitted and have not ended."""
        ...

    def not_ready_reason(self) -> str | None:
        """None when a request would succeed now."""
        ...

    def instances(self) -> Sequence[InstanceView]: ...

    @property
    def history(self) -> History: ...

    async def drain_instance(self, name: str) -> None:
        """Ask a worker to take no new work. Raises ServingError NOT_FOUND, or UNAVAILABLE if it is not connected."""
        ...
