"""/v1/messages, through Anthropic's own client where that can say it."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator

import anthropic
import openai
import pytest
from anthropic.types import Message, MessageParam, TextBlock, ThinkingBlock, ToolParam, ToolUseBlock

from master.edge.http.config import HttpConfig
from master.errors import ErrorKind, ServingError
from master.output import GenerationOutput, SequenceDelta
from master.parsing.formats import ParserChoice
from master.parsing.hermes import HERMES
from master.parsing.reasoning import THINK
from master.request import GenerationRequest
from protos.sampling_messages import GrammarKind
from tests.http_client import Response
from tests.http_service import MODEL, REPLY, HttpEdge, HttpService, serving
from tests.scripted_text import says

PATH, COUNT = "/v1/messages", "/v1/messages/count_tokens"
TIMEOUT_S = 30.0
HI: list[MessageParam] = [{"role": "user", "content": "hi"}]
ADD: ToolParam = {"name": "add", "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
THOUGHT = "<think>\nHm.\n</think>\n\n"


@pytest.fixture
async def edge() -> AsyncIterator[HttpEdge]:
    """The model thinks, and calls as Hermes does."""
    async with serving(HttpService(), HttpConfig(parsers=ParserChoice(HERMES, THINK))) as running:
        yield running


def error_of(response: Response) -> tuple[str, str]:
    """(type, message) of Anthropic's error object, in which there is nothing else."""
    body = response.json()
    error = body["error"]
    assert body["type"] == "error" and isinstance(error, dict) and set(error) == {"type", "message"}, body
    return error["type"], error["message"]


def events_of(response: Response) -> list[dict[str, object]]:
    assert response.status == 200 and response.is_complete, response.text
    events: list[dict[str, object]] = []
    for event in response.text.removesuffix("\n\n").split("\n\n"):
        name, data = event.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


async def test_a_message_has_anthropics_form(claude: anthropic.AsyncAnthropic) -> None:
    answer = await claude.messages.create(model=MODEL, max_tokens=100, messages=HI)
    Message.model_validate(answer.model_dump())
    assert answer.id.startswith("msg_") and (answer.type, answer.role, answer.model) == ("message", "assistant", MODEL)
    (block,) = answer.content
    assert isinstance(block, TextBlock) and block.text == REPLY
    assert (answer.stop_reason, answer.stop_sequence) == ("end_turn", None)
    usage = answer.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (17, 3, 23)
    assert usage.output_tokens_details is not None and usage.output_tokens_details.thinking_tokens == 0


async def test_a_stream_has_anthropics_events_in_their_order(edge: HttpEdge) -> None:
    response = await edge.client.post(PATH, model=MODEL, max_tokens=100, messages=HI, stream=True)
    start, ping, begin, *deltas, stop, last, end = events_of(response)
    assert [event["type"] for event in (start, ping, begin, stop, last, end)] == [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert start["message"] == {
        "id": response.headers["x-request-id"],
        "type": "message",
        "role": "assistant",
        "model": MODEL,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 20, "output_tokens": 0},
    }
    assert begin["index"] == 0 and begin["content_block"] == {"type": "text", "text": ""}
    assert {event["type"] for event in deltas} == {"content_block_delta"} and len(deltas) > 5
    assert last["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    usage = last["usage"]
    assert isinstance(usage, dict)
    assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"]) == (17, 3, 23)


@pytest.mark.parametrize("tokens_per_output", [1, 1000])
async def test_a_stream_says_what_the_message_says(
    edge: HttpEdge, claude: anthropic.AsyncAnthropic, tokens_per_output: int
) -> None:
    edge.service.script = says(edge.service, f"{THOUGHT}So:\n{CALL}", tokens_per_output=tokens_per_output)
    whole = await claude.messages.create(model=MODEL, max_tokens=500, messages=HI, tools=[ADD])
    thinking, text, call = whole.content
    assert isinstance(thinking, ThinkingBlock) and thinking.thinking == "Hm."
    assert isinstance(text, TextBlock) and text.text == "So:"
    assert isinstance(call, ToolUseBlock) and (call.name, call.input) == ("add", {"a": 1}) and call.id
    assert whole.stop_reason == "tool_use"
    assert whole.usage.output_tokens_details is not None and whole.usage.output_tokens_details.thinking_tokens > 3
    async with claude.messages.stream(model=MODEL, max_tokens=500, messages=HI, tools=[ADD]) as stream:
        final = await stream.get_final_message()
    assert (final.stop_reason, final.usage) == (whole.stop_reason, whole.usage)
    blocks = [block.model_dump(exclude={"id"}) for block in whole.content]
    assert [block.model_dump(exclude={"id", "parsed_output"}) for block in final.content] == blocks


async def test_how_an_answer_ended_is_told(edge: HttpEdge, claude: anthropic.AsyncAnthropic) -> None:
    cut = await claude.messages.create(model=MODEL, max_tokens=3, messages=HI)
    assert cut.stop_reason == "max_tokens"
    edge.service.script = says(edge.service, "Hello", matched_stop="END")
    for stream in (False, True):
        if stream:
            async with claude.messages.stream(model=MODEL, max_tokens=9, messages=HI, stop_sequences=["END"]) as events:
                stopped: Message = await events.get_final_message()
        else:
            stopped = await claude.messages.create(model=MODEL, max_tokens=9, messages=HI, stop_sequences=["END"])
        assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "END")
        assert edge.service.requests[-1].stop == ("END",)
    edge.service.script = says(edge.service, "Hello", matched_stop=1)  # the end-of-sequence id
    ended = await claude.messages.create(model=MODEL, max_tokens=9, messages=HI)
    assert (ended.stop_reason, ended.stop_sequence) == ("end_turn", None)


async def test_arguments_that_were_cut_are_not_passed_off_as_whole(
    edge: HttpEdge, claude: anthropic.AsyncAnthropic
) -> None:
    edge.service.script = says(edge.service, CALL)
    answer = await claude.messages.create(model=MODEL, max_tokens=46, messages=HI, tools=[ADD])
    (call,) = answer.content
    assert answer.stop_reason == "max_tokens" and isinstance(call, ToolUseBlock)
    (text,) = call.input.values()
    assert list(call.input) == ["INVALID_JSON"] and isinstance(text, str) and '{"a": 1}'.startswith(text)


async def test_an_answer_of_nothing_is_an_empty_text(edge: HttpEdge, claude: anthropic.AsyncAnthropic) -> None:
    edge.service.script = says(edge.service, THOUGHT)
    answer = await claude.messages.create(model=MODEL, max_tokens=1, messages=HI)
    assert len(answer.content) == 1


async def test_blocks_become_messages(edge: HttpEdge, claude: anthropic.AsyncAnthropic) -> None:
    messages: list[MessageParam] = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": ""},
                {"type": "text", "text": "c"},
                {"type": "tool_use", "id": "1", "name": "add", "input": {"a": 1}},
                {"type": "tool_use", "id": "2", "name": "add", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "1", "content": "3"},
                {"type": "tool_result", "tool_use_id": "2", "content": [{"type": "text", "text": "4"}]},
                {"type": "text", "text": "d", "cache_control": {"type": "ephemeral"}},
            ],
        },
    ]
    await claude.messages.create(
        model=MODEL, max_tokens=9, messages=messages, system=[{"type": "text", "text": "be kind"}]
    )
    assert edge.prompt == "<s>[system]be kind\n[user]a\nb\n[assistant]c\n[tool]3\n[tool]4\n[user]d\n[assistant]"


async def test_a_last_message_of_the_assistants_is_gone_on_with(
    edge: HttpEdge, claude: anthropic.AsyncAnthropic
) -> None:
    begun: list[MessageParam] = [*HI, {"role": "assistant", "content": "Well"}]
    await claude.messages.create(model=MODEL, max_tokens=9, messages=begun, system="be kind")
    assert edge.prompt == "<s>[system]be kind\n[user]hi\n[assistant]Well"


async def test_an_answer_can_be_sent_back_as_it_came(edge: HttpEdge, claude: anthropic.AsyncAnthropic) -> None:
    edge.service.script = says(edge.service, THOUGHT + CALL)
    first = await claude.messages.create(model=MODEL, max_tokens=200, messages=HI, tools=[ADD])
    call = first.content[1]
    assert isinstance(call, ToolUseBlock)
    result: MessageParam = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id}]}
    again: list[MessageParam] = [*HI, {"role": "assistant", "content": first.content}, result]
    await claude.messages.create(model=MODEL, max_tokens=200, messages=again, tools=[ADD])
    assert edge.prompt.startswith("<s>[user]hi\n[assistant]\n[tool]\n")


async def test_the_options_reach_the_request(edge: HttpEdge) -> None:
    schema = {"type": "object"}
    response = await edge.client.post(
        PATH,
        model="alias",
        messages=HI,
        max_tokens=5,
        stop_sequences=["x"],
        temperature=0.5,
        top_p=0.5,
        top_k=4,
        seed=9,
        output_config={"effort": "low", "format": {"type": "json_schema", "schema": schema}},
        # accepted and of no effect
        metadata={"user_id": "me"},
        service_tier="auto",
    )
    assert response.status == 200 and response.json()["model"] == "alias", response.text
    sampling = edge.service.requests[0].sampling
    assert edge.service.requests[0].stop == ("x",)
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.top_k) == (5, 0.5, 0.5, 4)
    assert sampling.seed == 9 and sampling.grammar is not None
    assert sampling.grammar.text.strip().endswith('"type": "object"}')  # after the reasoning


async def test_tool_choice_is_read_as_anthropic_has_it(edge: HttpEdge) -> None:
    async def ask(**choice: object) -> Response:
        return await edge.client.post(PATH, messages=HI, max_tokens=200, tools=[ADD], tool_choice=choice)

    edge.service.script = says(edge.service, f"{CALL}\n{CALL}")
    content = (await ask(type="auto")).json()["content"]
    assert isinstance(content, list) and len(content) == 2
    content = (await ask(type="auto", disable_parallel_tool_use=True)).json()["content"]
    assert isinstance(content, list) and len(content) == 1
    assert edge.service.requests[-1].sampling.grammar is None
    for choice in ({"type": "any"}, {"type": "tool", "name": "add"}):
        assert (await ask(**choice)).status == 200
        grammar = edge.service.requests[-1].sampling.grammar
        assert grammar is not None and grammar.kind is GrammarKind.LARK
    answer = (await ask(type="none")).json()
    content = answer["content"]
    assert isinstance(content, list) and content[0]["type"] == "text" and answer["stop_reason"] == "end_turn"
    assert "add" not in edge.prompt


async def test_tokens_are_counted_as_they_would_be_computed(edge: HttpEdge, claude: anthropic.AsyncAnthropic) -> None:
    for tools, system in (([ADD], "be kind"), ([], "")):
        counted = await claude.messages.count_tokens(model=MODEL, messages=HI, tools=tools, system=system)
        await claude.messages.create(model=MODEL, max_tokens=9, messages=HI, tools=tools, system=system)
        assert counted.input_tokens == len(edge.service.requests[-1].prompt_ids)
    refused = await edge.client.post(COUNT, messages=[])
    assert refused.status == 400 and error_of(refused)[0] == "invalid_request_error"


async def test_what_cannot_be_served_is_refused_in_anthropics_form(edge: HttpEdge) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
    cases: list[tuple[str, dict[str, object]]] = [
        ("max_tokens", {"max_tokens": None}),
        ("max_tokens", {"max_tokens": 0}),
        ("messages", {"messages": []}),
        ("messages", {"messages": [{"role": "user", "content": "x" * 5000}]}),
        ("messages[0].role", {"messages": [{"role": "robot", "content": "hi"}]}),
        ("messages[0].content[0]", {"messages": [{"role": "user", "content": [image]}]}),
        ("messages[0].content[0].text", {"messages": [{"role": "user", "content": [{"type": "text"}]}]}),
        ("messages[0].content", {"messages": [{"role": "user", "content": []}]}),
        ("`content`", {"messages": [{"role": "user"}]}),
        ("tool_use_id", {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}),
        ("content[0].content[0]", {"messages": [tool_result([image])]}),
        ("system[0]", {"system": [image]}),
        ("stop_sequences", {"stop_sequences": [""]}),
        ("temperature", {"temperature": 3}),
        ("top_k", {"top_k": -5}),
        ("tools[0].type", {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}),
        ("tools[0].input_schema", {"tools": [{"name": "f"}]}),
        ("tools[0].input_schema.type", {"tools": [{"name": "f", "input_schema": {"type": "string"}}]}),
        ("tools[0].name", {"tools": [{"name": "a b", "input_schema": {}}]}),
        ("tool_choice", {"tool_choice": {"type": "any"}}),
        ("tool_choice.name", {"tools": [ADD], "tool_choice": {"type": "tool", "name": "x"}}),
        ("tool_choice.name", {"tools": [ADD], "tool_choice": {"type": "tool"}}),
        ("tool_choice.type", {"tools": [ADD], "tool_choice": {"type": "some"}}),
        ("mcp_servers", {"mcp_servers": [{"url": "x"}]}),
        ("output_config.format", {"output_config": {"format": {"type": "xml"}}}),
    ]
    for field, fields in cases:
        response = await edge.client.post(PATH, **{"messages": HI, "max_tokens": 9, **fields})
        kind, message = error_of(response)
        assert (response.status, kind) == (400, "invalid_request_error"), fields
        assert field in message, (field, message)
    assert edge.service.requests == []


def tool_result(content: list[object]) -> dict[str, object]:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": content}]}


async def test_errors_are_anthropics_on_its_paths_and_openais_on_the_others(
    edge: HttpEdge, claude: anthropic.AsyncAnthropic, official: openai.AsyncOpenAI
) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        await claude.messages.create(model="gpt-9", max_tokens=9, messages=HI)
    assert missing.value.type == "not_found_error"
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        await claude.messages.create(model=MODEL, max_tokens=9, messages=HI, extra_body={"temperature": 9})
    for path in (PATH, COUNT):
        assert error_of(await edge.client.send("POST", path, b"{"))[0] == "invalid_request_error"
        assert error_of(await edge.client.get(path))[0] == "invalid_request_error"
        assert (await edge.client.send("POST", path, b"{}", {"content-type": "text/plain"})).status == 415
    assert (await edge.client.get("/v1/other")).error()["type"] == "invalid_request_error"
    with pytest.raises(openai.BadRequestError, match="no embeddings"):
        await official.embeddings.create(model=MODEL, input="hi")
    with pytest.raises(openai.NotFoundError):
        await official.embeddings.create(model="gpt-9", input="hi")


@pytest.mark.parametrize(
    ("kind", "status", "anthropic_type"),
    [
        (ErrorKind.OVERLOADED, 429, "rate_limit_error"),
        (ErrorKind.UNAVAILABLE, 503, "overloaded_error"),
        (ErrorKind.DEADLINE_EXCEEDED, 504, "timeout_error"),
        (ErrorKind.INTERNAL, 500, "api_error"),
    ],
)
async def test_an_error_before_output_is_the_answers_status(
    edge: HttpEdge, kind: ErrorKind, status: int, anthropic_type: str
) -> None:
    async def script(request: GenerationRequest) -> AsyncGenerator[GenerationOutput, None]:
        raise ServingError(kind, "no luck")
        yield

    edge.service.script = script
    for stream in (False, True):
        response = await edge.client.post(PATH, messages=HI, max_tokens=9, stream=stream)
        assert (response.status, error_of(response)) == (status, (anthropic_type, "no luck"))


async def test_an_error_after_output_is_the_streams_last_event(
    edge: HttpEdge, claude: anthropic.AsyncAnthropic
) -> None:
    async def script(request: GenerationRequest) -> AsyncGenerator[GenerationOutput, None]:
        yield GenerationOutput((SequenceDelta(0, "a", (5,)),))
        raise ServingError(ErrorKind.UNAVAILABLE, "all workers are gone")

    edge.service.script = script
    response = await edge.client.post(PATH, messages=HI, max_tokens=9, stream=True)
    assert events_of(response)[-1] == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "all workers are gone"},
    }
    with pytest.raises(anthropic.APIStatusError, match="all workers are gone"):
        async with claude.messages.stream(model=MODEL, max_tokens=9, messages=HI) as stream:
            await stream.get_final_message()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_its_generation(edge: HttpEdge, stream: bool) -> None:
    async def script(request: GenerationRequest) -> AsyncGenerator[GenerationOutput, None]:
        yield GenerationOutput((SequenceDelta(0, "a", (5,)),))
        await asyncio.Event().wait()

    edge.service.script = script
    connection = await edge.client.start_post(PATH, messages=HI, max_tokens=9, stream=stream)
    await asyncio.wait_for(edge.service.opened.acquire(), TIMEOUT_S)
    connection.leave()
    await asyncio.wait_for(edge.service.all_closed.wait(), TIMEOUT_S)
    assert edge.service.num_open == 0
