"""/v1/responses, through OpenAI's own client where that can say it."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator

import openai
import pytest
from openai.types.responses import (
    FunctionToolParam,
    Response,
    ResponseFunctionToolCall,
    ResponseInputItemParam,
    ResponseOutputMessage,
    ResponseReasoningItem,
    ResponseStreamEvent,
)

from master.edge.http.config import HttpConfig
from master.errors import ErrorKind, ServingError
from master.output import GenerationOutput, SequenceDelta
from master.parsing.formats import ParserChoice
from master.parsing.hermes import HERMES
from master.parsing.reasoning import THINK
from master.request import GenerationRequest
from protos.sampling_messages import GrammarKind
from tests.http_service import MODEL, REPLY, HttpEdge, HttpService, serving
from tests.scripted_text import says

PATH = "/v1/responses"
TIMEOUT_S = 30.0
ADD: FunctionToolParam = {
    "type": "function",
    "name": "add",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    "strict": False,
}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
THOUGHT = "<think>\nHm.\n</think>\n\n"
TEXT_EVENTS = [
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
]


@pytest.fixture
async def edge() -> AsyncIterator[HttpEdge]:
    """The model thinks, and calls as Hermes does."""
    async with serving(HttpService(), HttpConfig(parsers=ParserChoice(HERMES, THINK))) as running:
        yield running


def without_repeats(names: list[str]) -> list[str]:
    return [name for index, name in enumerate(names) if index == 0 or names[index - 1] != name]


async def events_of(client: openai.AsyncOpenAI, **fields: object) -> list[ResponseStreamEvent]:
    stream = await client.responses.create(model=MODEL, input="hi", stream=True, extra_body=fields)
    events = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    return events


async def test_a_response_has_openais_form(official: openai.AsyncOpenAI) -> None:
    answer = await official.responses.create(
        model=MODEL, input="hi", instructions="be kind", metadata={"a": "b"}, store=True, temperature=0.5, user="me"
    )
    Response.model_validate(answer.model_dump())
    assert answer.id.startswith("resp_") and answer.object == "response" and answer.created_at > 1_700_000_000
    assert (answer.status, answer.error, answer.incomplete_details) == ("completed", None, None)
    assert answer.output_text == REPLY
    (message,) = answer.output
    assert isinstance(message, ResponseOutputMessage)
    assert (message.role, message.status, len(message.content)) == ("assistant", "completed", 1)
    assert (answer.model, answer.instructions, answer.metadata) == (MODEL, "be kind", {"a": "b"})
    assert (answer.temperature, answer.top_p, answer.user, answer.tools) == (0.5, 1.0, "me", [])
    assert answer.usage is not None and answer.usage.input_tokens_details.cached_tokens == 3
    assert answer.usage.output_tokens == 23 and answer.usage.output_tokens_details.reasoning_tokens == 0
    assert answer.usage.total_tokens == answer.usage.input_tokens + 23


async def test_what_is_not_stored_is_said_not_to_be(edge: HttpEdge, official: openai.AsyncOpenAI) -> None:
    answer = (await edge.client.post(PATH, input="hi", store=True)).json()
    assert answer["store"] is False
    with pytest.raises(openai.NotFoundError, match="not stored here"):
        await official.responses.retrieve(str(answer["id"]))
    with pytest.raises(openai.NotFoundError, match="not stored here"):
        await official.responses.delete("resp_1")
    with pytest.raises(openai.NotFoundError, match="not stored here"):
        await official.responses.cancel("resp_1")


async def test_a_stream_has_openais_events_in_their_order(official: openai.AsyncOpenAI) -> None:
    events = await events_of(official)
    assert without_repeats([event.type for event in events]) == [
        "response.created",
        "response.in_progress",
        *TEXT_EVENTS,
        "response.completed",
    ]
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert "".join(event.delta for event in deltas) == REPLY and len(deltas) > 5
    assert len({(event.item_id, event.output_index, event.content_index) for event in deltas}) == 1
    first, last = events[0], events[-1]
    assert first.type == "response.created" and last.type == "response.completed"
    assert (first.response.status, first.response.output, first.response.usage) == ("in_progress", [], None)
    assert last.response.id == first.response.id and last.response.output_text == REPLY
    assert last.response.usage is not None and last.response.usage.output_tokens == 23


async def test_the_clients_own_accumulation_agrees(edge: HttpEdge, official: openai.AsyncOpenAI) -> None:
    edge.service.script = says(edge.service, THOUGHT + "So: " + CALL)
    async with official.responses.stream(model=MODEL, input="hi", tools=[ADD]) as stream:
        final = await stream.get_final_response()
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call"]
    assert final.output_text == "So:"


async def test_events_carry_their_names_for_clients_that_go_by_them(edge: HttpEdge) -> None:
    response = await edge.client.post(PATH, input="hi", stream=True)
    for event in response.text.removesuffix("\n\n").split("\n\n"):
        name, data = event.split("\n")
        assert name == f"event: {json.loads(data.removeprefix('data: '))['type']}"


async def test_length_makes_it_incomplete(edge: HttpEdge, official: openai.AsyncOpenAI) -> None:
    answer = await official.responses.create(model=MODEL, input="hi", max_output_tokens=3)
    assert answer.status == "incomplete" and answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens" and answer.max_output_tokens == 3
    assert isinstance(answer.output[0], ResponseOutputMessage) and answer.output[0].status == "incomplete"
    *_, done, last = await events_of(official, max_output_tokens=3)
    assert done.type == "response.output_item.done" and isinstance(done.item, ResponseOutputMessage)
    assert done.item.status == "incomplete"
    assert last.type == "response.incomplete" and last.response.status == "incomplete"


@pytest.mark.parametrize("tokens_per_output", [1, 1000])
async def test_reasoning_and_calls_are_items(
    edge: HttpEdge, official: openai.AsyncOpenAI, tokens_per_output: int
) -> None:
    edge.service.script = says(edge.service, THOUGHT + CALL, tokens_per_output=tokens_per_output)
    answer = await official.responses.create(model=MODEL, input="hi", tools=[ADD])
    reasoning, call = answer.output
    assert isinstance(reasoning, ResponseReasoningItem) and reasoning.content is not None
    assert [part.text for part in reasoning.content] == ["Hm."]
    assert isinstance(call, ResponseFunctionToolCall) and call.call_id.startswith("call_")
    assert (call.name, json.loads(call.arguments), call.status) == ("add", {"a": 1}, "completed")
    assert answer.status == "completed" and answer.usage is not None
    assert answer.usage.output_tokens_details.reasoning_tokens > 3
    events = await events_of(official, tools=[ADD])
    assert without_repeats([event.type for event in events]) == [
        "response.created",
        "response.in_progress",
        *[name.replace("output_text", "reasoning_text") for name in TEXT_EVENTS],
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    done = next(event for event in events if event.type == "response.function_call_arguments.done")
    assert done.output_index == 1 and json.loads(done.arguments) == {"a": 1}
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert "".join(deltas) == done.arguments


async def test_an_answer_of_nothing_is_an_empty_message(edge: HttpEdge, official: openai.AsyncOpenAI) -> None:
    edge.service.script = says(edge.service, THOUGHT[:4])
    answer = await official.responses.create(model=MODEL, input="hi", max_output_tokens=1)
    assert isinstance(answer.output[0], ResponseOutputMessage)
    events = await events_of(official, max_output_tokens=1)
    assert events[-2].type == "response.output_item.done"


async def test_items_become_messages(edge: HttpEdge, official: openai.AsyncOpenAI) -> None:
    """T3: instructions and the developer's item are one system message."""
    items: list[ResponseInputItemParam] = [
        {"role": "developer", "content": "be kind"},
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "c", "annotations": []}],
        },
        {"type": "function_call", "call_id": "1", "name": "add", "arguments": "{}"},
        {"type": "function_call", "call_id": "2", "name": "add", "arguments": '{"a": 1}'},
        {"type": "function_call_output", "call_id": "1", "output": "3"},
        {"type": "function_call_output", "call_id": "2", "output": [{"type": "input_text", "text": "4"}]},
        {"role": "user", "content": "d"},
    ]
    await official.responses.create(model=MODEL, input=items, instructions="be brief")
    assert edge.prompt == (
        "<s>[system]be brief\n\nbe kind\n[user]a\nb\n[assistant]c\n[tool]3\n[tool]4\n[user]d\n[assistant]"
    )


async def test_an_answer_can_be_sent_back_as_it_came(edge: HttpEdge, official: openai.AsyncOpenAI) -> None:
    edge.service.script = says(edge.service, THOUGHT + CALL)
    first = (await edge.client.post(PATH, input="hi", tools=[ADD])).json()
    output = first["output"]
    assert isinstance(output, list)
    result = {"type": "function_call_output", "call_id": output[1]["call_id"], "output": "2"}
    second = await edge.client.post(PATH, input=[{"role": "user", "content": "hi"}, *output, result], tools=[ADD])
    assert second.status == 200, second.text
    assert edge.prompt.startswith("<s>[user]hi\n[assistant]\n[tool]2\n")


async def test_the_options_reach_the_request(edge: HttpEdge) -> None:
    response = await edge.client.post(
        PATH,
        model="alias",
        input="hi",
        max_output_tokens=5,
        temperature=0,
        top_p=0.5,
        seed=9,
        top_k=4,
        cache_salt="salt",
        # accepted and of no effect
        service_tier="auto",
        truncation="auto",
        include=["reasoning.encrypted_content"],
        prompt_cache_key="k",
        text={"verbosity": "low"},
        stream_options={"include_obfuscation": False},
    )
    assert response.status == 200, response.text
    assert (response.json()["model"], response.json()["truncation"]) == ("alias", "disabled")
    request = edge.service.requests[0]
    assert (request.sampling.max_tokens, request.sampling.temperature, request.sampling.top_p) == (5, 0, 0.5)
    assert (request.sampling.seed, request.sampling.top_k, request.cache_salt) == (9, 4, "salt")


async def test_formats_and_demands_to_call_become_grammars(edge: HttpEdge) -> None:
    schema = {"type": "object", "properties": {}}
    formats: list[tuple[dict[str, object], str | None]] = [
        ({"type": "text"}, None),
        ({"type": "json_object"}, '"type": "object"}'),
        ({"type": "json_schema", "name": "n", "schema": schema, "strict": True}, '"type": "object", "properties": {}}'),
    ]
    for given, end in formats:
        response = await edge.client.post(PATH, input="hi", text={"format": given})
        assert response.status == 200, response.text
        made = edge.service.requests[-1].sampling.grammar
        assert (made is None) == (end is None)
        assert made is None or made.text.strip().endswith(end or "")  # after the reasoning
    for choice in ("required", {"type": "function", "name": "add"}):
        assert (await edge.client.post(PATH, input="hi", tools=[ADD], tool_choice=choice)).status == 200
        made = edge.service.requests[-1].sampling.grammar
        assert made is not None and made.kind is GrammarKind.LARK


async def test_what_cannot_be_served_is_refused_naming_the_field(edge: HttpEdge) -> None:
    image = {"type": "input_image", "image_url": "data:"}
    cases: list[tuple[str, dict[str, object]]] = [
        ("previous_response_id", {"previous_response_id": "resp_1"}),
        ("conversation", {"conversation": "c"}),
        ("background", {"background": True}),
        ("prompt", {"prompt": {"id": "p"}}),
        ("input", {"input": []}),
        ("input", {"input": None}),
        ("input[0].role", {"input": [{"content": "hi"}]}),
        ("input[0].role", {"input": [{"role": "robot", "content": "hi"}]}),
        ("input[0].content", {"input": [{"role": "user"}]}),
        ("input[0].content[0]", {"input": [{"role": "user", "content": [image]}]}),
        ("input[0].type", {"input": [{"type": "computer_call"}]}),
        ("input[0]", {"input": [{"type": "item_reference", "id": "x"}]}),
        ("input[0].call_id", {"input": [{"type": "function_call", "name": "f"}]}),
        ("input[0].name", {"input": [{"type": "function_call", "call_id": "f"}]}),
        ("input[0].output", {"input": [{"type": "function_call_output", "call_id": "f"}]}),
        ("tools[0].type", {"tools": [{"type": "web_search"}]}),
        ("tools[0].name", {"tools": [{"type": "function"}]}),
        ("tools[0].parameters", {"tools": [{"type": "function", "name": "f", "parameters": 1}]}),
        ("tool_choice", {"tool_choice": "required"}),
        ("tool_choice", {"tool_choice": {"type": "allowed_tools"}}),
        ("tool_choice", {"tool_choice": {"type": "custom", "name": "f"}}),
        ("tool_choice.name", {"tools": [ADD], "tool_choice": {"type": "function", "name": "x"}}),
        ("text.format", {"text": {"format": {"type": "json_schema", "name": "n"}}}),
        ("text.format", {"text": {"format": {"type": "xml"}}}),
        ("max_output_tokens", {"max_output_tokens": 0}),
        ("max_output_tokens", {"max_output_tokens": 10_000}),
        ("temperature", {"temperature": 9}),
        ("input", {"input": "x" * 5000}),
    ]
    for param, fields in cases:
        response = await edge.client.post(PATH, **{"input": "hi", **fields})
        assert (response.status, response.error()["param"]) == (400, param), (fields, response.text)
        assert param.rpartition(".")[2].partition("[")[0] in response.error()["message"]
    assert edge.service.requests == []
    assert (await edge.client.post(PATH, model="gpt-9", input="hi")).status == 404


def failing_after(text: str) -> AsyncGenerator[GenerationOutput, None]:
    async def outputs() -> AsyncGenerator[GenerationOutput, None]:
        yield GenerationOutput((SequenceDelta(0, text, (5,)),))
        raise ServingError(ErrorKind.UNAVAILABLE, "all workers are gone")

    return outputs()


async def test_an_error_after_output_ends_the_stream_as_failed(edge: HttpEdge, official: openai.AsyncOpenAI) -> None:
    edge.service.script = lambda request: failing_after("a")
    events = await events_of(official)
    error, failed = events[-2:]
    assert error.type == "error" and error.message == "all workers are gone"
    assert failed.type == "response.failed" and failed.response.status == "failed"
    assert failed.response.error is not None and failed.response.error.code == "server_error"
    assert failed.response.output_text == "a"
    with pytest.raises(openai.InternalServerError, match="all workers are gone"):
        await official.responses.create(model=MODEL, input="hi")


async def test_an_error_before_output_is_the_answers_status(edge: HttpEdge) -> None:
    async def script(request: GenerationRequest) -> AsyncGenerator[GenerationOutput, None]:
        raise ServingError(ErrorKind.OVERLOADED, "full")
        yield

    edge.service.script = script
    response = await edge.client.post(PATH, input="hi", stream=True)
    assert (response.status, response.error()["type"]) == (429, "rate_limit_error")


async def test_outputs_that_break_off_are_an_error(edge: HttpEdge) -> None:
    async def script(request: GenerationRequest) -> AsyncGenerator[GenerationOutput, None]:
        yield GenerationOutput((SequenceDelta(0, "a", (5,)),))

    edge.service.script = script
    assert (await edge.client.post(PATH, input="hi")).status == 500
    streamed = await edge.client.post(PATH, input="hi", stream=True)
    assert "event: response.failed" in streamed.text and "response.completed" not in streamed.text


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_its_generation(edge: HttpEdge, stream: bool) -> None:
    async def script(request: GenerationRequest) -> AsyncGenerator[GenerationOutput, None]:
        yield GenerationOutput((SequenceDelta(0, "a", (5,)),))
        await asyncio.Event().wait()

    edge.service.script = script
    connection = await edge.client.start_post(PATH, input="hi", stream=stream)
    await asyncio.wait_for(edge.service.opened.acquire(), TIMEOUT_S)
    connection.leave()
    await asyncio.wait_for(edge.service.all_closed.wait(), TIMEOUT_S)
    assert edge.service.num_open == 0


async def test_logprobs_are_those_of_the_texts_tokens(edge: HttpEdge, official: openai.AsyncOpenAI) -> None:
    """A10"""
    chat = await official.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "hi"}], logprobs=True, top_logprobs=1
    )
    assert chat.choices[0].logprobs is not None
    expected = [token.model_dump() for token in chat.choices[0].logprobs.content or ()]
    asked: list[dict[str, object]] = [
        {"top_logprobs": 1},
        {"top_logprobs": 1, "include": ["message.output_text.logprobs"]},
    ]
    for fields in asked:
        answer = await official.responses.create(model=MODEL, input="hi", extra_body=fields)
        (message,) = answer.output
        assert isinstance(message, ResponseOutputMessage)
        (part,) = message.content
        assert part.type == "output_text" and part.logprobs is not None and answer.top_logprobs == 1
        assert [token.model_dump() for token in part.logprobs] == expected
        deltas = [event for event in await events_of(official, **fields) if event.type == "response.output_text.delta"]
        assert [token.logprob for delta in deltas for token in delta.logprobs] == [t["logprob"] for t in expected]


async def test_none_are_asked_for_unless_somebody_wants_them(edge: HttpEdge) -> None:
    """A10"""
    await edge.client.post(PATH, input="hi")
    await edge.client.post(PATH, input="hi", include=["message.output_text.logprobs"])
    assert [request.sampling.logprobs for request in edge.service.requests] == [None, 0]
