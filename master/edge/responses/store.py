"""Responses that clients asked to keep: in this master's memory, bounded in number, size and time."""

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from master.edge.responses.body import ResponsesBody
from master.edge.responses.input_items import InputItem
from master.errors import ErrorKind, ServingError

MAX_STORED_BYTES = 256 << 20

Keep = Callable[[Mapping[str, object]], None]


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """`items` is the whole conversation, the answer's own items last; `answer` is the response object as JSON."""

    items: tuple[InputItem, ...]
    answer: bytes
    num_bytes: int
    expires_s: float  # time.monotonic()


class ResponseStore:
    """`max_responses` 0 stores nothing. Those that were not used for longest make room, and all go after `keep_s`.

    An id is random, and whoever has it may read what is stored under it.
    """

    def __init__(
        self,
        max_responses: int,
        keep_s: float,
        *,
        max_bytes: int = MAX_STORED_BYTES,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_responses = max_responses
        self._keep_s = keep_s
        self._max_bytes = max_bytes
        self._now = now
        self._responses: OrderedDict[str, StoredResponse] = OrderedDict()
        self._num_bytes = 0

    def __len__(self) -> int:
        return len(self._responses)

    def stores(self, body: ResponsesBody) -> bool:
        """OpenAI stores what is not declined, and so does this."""
        return self._max_responses > 0 and body.store is not False

    def continued(self, body: ResponsesBody) -> ResponsesBody:
        """The body with the conversation that it goes on with. Raises ServingError where that is not stored."""
        if body.previous_response_id is None:
            return body
        if self._max_responses == 0:
            raise _refused("nothing is stored here, send the whole conversation as input")
        try:
            stored = self.find(body.previous_response_id)
        except ServingError as error:
            raise _refused(error.message) from error
        return msgspec.structs.replace(body, input=[*stored.items, *body.items()])

    def keep(self, body: ResponsesBody, num_body_bytes: int, answer: Mapping[str, object]) -> None:
        """Stores an answer that is whole, under its id."""
        encoded = msgspec.json.encode(answer)
        own_items = msgspec.convert(answer["output"], list[InputItem])
        num_bytes = num_body_bytes + len(encoded)
        stored = StoredResponse((*body.items(), *own_items), encoded, num_bytes, self._now() + self._keep_s)
        self._responses[str(answer["id"])] = stored
        self._num_bytes += num_bytes
        self._make_room()

    def find(self, response_id: str) -> StoredResponse:
        """Raises ServingError NOT_FOUND."""
        self._make_room()
        stored = self._responses.get(response_id)
        if stored is None:
            raise not_stored(response_id)
        self._responses.move_to_end(response_id)
        return stored

    def forget(self, response_id: str) -> None:
        """Raises ServingError NOT_FOUND."""
        self.find(response_id)
        self._remove(response_id)

    def _make_room(self) -> None:
        now_s = self._now()
        for response_id in [name for name, stored in self._responses.items() if stored.expires_s <= now_s]:
            self._remove(response_id)
        while len(self._responses) > self._max_responses or self._num_bytes > self._max_bytes:
            self._remove(next(iter(self._responses)))

    def _remove(self, response_id: str) -> None:
        self._num_bytes -= self._responses.pop(response_id).num_bytes


def not_stored(response_id: str) -> ServingError:
    reasons = "it was not to be stored, its time is over, or another master answered it"
    return ServingError(ErrorKind.NOT_FOUND, f"response {response_id[:200]!r} is not stored here: {reasons}")


def _refused(why: str) -> ServingError:
    field = "previous_response_id"
    return ServingError(
        ErrorKind.INVALID_REQUEST, f"{field} is set; {why}", field=field, code="previous_response_not_found"
    )
