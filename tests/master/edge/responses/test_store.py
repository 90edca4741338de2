"""Responses that are kept for who goes on with them, on a clock of the test's."""

import msgspec
import openai
import pytest

from master.edge.http.config import HttpConfig
from master.edge.responses.body import ResponsesBody
from master.edge.responses.store import ResponseStore
from master.errors import ServingError
from tests.http_service import MODEL, REPLY, HttpService, official_client, serving

KEEPING = HttpConfig(max_stored_responses=2)


def body(**fields: object) -> ResponsesBody:
    return msgspec.convert({"input": "hi", **fields}, ResponsesBody)


def answer(response_id: str) -> dict[str, object]:
    text = {"type": "output_text", "text": "hello", "annotations": [], "logprobs": []}
    return {"id": response_id, "output": [{"type": "message", "role": "assistant", "content": [text]}]}


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_the_least_used_makes_room() -> None:
    store = ResponseStore(2, 60.0)
    for name in ("a", "b"):
        store.keep(body(), 10, answer(name))
    store.find("a")
    store.keep(body(), 10, answer("c"))
    with pytest.raises(ServingError, match="'b' is not stored here"):
        store.find("b")
    assert store.find("a") and store.find("c") and len(store) == 2


def test_memory_is_bounded_whatever_the_number() -> None:
    store = ResponseStore(1000, 60.0, max_bytes=10_000)
    for number in range(100):
        store.keep(body(input="x" * 900), 900, answer(str(number)))
    assert 0 < len(store) <= 11


def test_what_is_kept_expires() -> None:
    clock = Clock()
    store = ResponseStore(2, 60.0, now=clock)
    store.keep(body(), 10, answer("a"))
    clock.now_s = 59.0
    assert store.find("a")
    clock.now_s = 60.0
    with pytest.raises(ServingError, match="its time is over"):
        store.find("a")
    assert len(store) == 0


async def test_a_conversation_goes_on_where_it_was() -> None:
    async with serving(HttpService(), KEEPING) as edge, official_client(edge) as official:
        first = await official.responses.create(model=MODEL, input="one", instructions="be kind")
        second = await official.responses.create(model=MODEL, input="two", previous_response_id=first.id)
        await official.responses.create(model=MODEL, input="three", previous_response_id=second.id)
        whole = [
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": REPLY},
            {"role": "user", "content": "two"},
            {"role": "assistant", "content": REPLY},
            {"role": "user", "content": "three"},
        ]
        await official.responses.create(model=MODEL, input=whole)  # type: ignore[arg-type]  # the client's own types
        *_, continued, sent_whole = edge.service.requests
        assert continued.prompt_ids == sent_whole.prompt_ids
        assert second.previous_response_id == first.id


async def test_what_is_stored_can_be_read_and_deleted() -> None:
    async with serving(HttpService(), KEEPING) as edge, official_client(edge) as official:
        stored = await official.responses.create(model=MODEL, input="hi")
        assert (await official.responses.retrieve(stored.id)).output_text == REPLY
        await official.responses.delete(stored.id)
        with pytest.raises(openai.NotFoundError):
            await official.responses.retrieve(stored.id)
        with pytest.raises(openai.BadRequestError, match="not stored here") as caught:
            await official.responses.create(model=MODEL, input="on", previous_response_id=stored.id)
        assert caught.value.param == "previous_response_id"


async def test_a_client_can_decline_and_a_stream_is_stored_too() -> None:
    async with serving(HttpService(), KEEPING) as edge, official_client(edge) as official:
        declined = await official.responses.create(model=MODEL, input="hi", store=False)
        with pytest.raises(openai.NotFoundError):
            await official.responses.retrieve(declined.id)
        async with official.responses.stream(model=MODEL, input="hi") as stream:
            final = await stream.get_final_response()
        assert (await official.responses.retrieve(final.id)).output_text == REPLY
