"""Tool calls and reasoning over gRPC, as the Python client reads them; how they are read is tested in parsing/."""

import json
from collections.abc import AsyncIterator

import pytest

from client.async_client import AsyncClient
from client.errors import InvalidRequest
from client.options import ChatOptions, Message
from client.results import Delta, ToolCall
from master.edge.grpc.server import client_server
from master.parsing.formats import ParserChoice
from master.parsing.hermes import HERMES
from master.parsing.reasoning import THINK
from protos.sampling_messages import FinishReason, GrammarKind
from tests.http_service import HttpService
from tests.scripted_text import says

HI: list[Message] = [{"role": "user", "content": "hi"}]
ADD = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}
SUB = {"type": "function", "function": {"name": "sub"}}
WITH_TOOLS: ChatOptions = {"tools": [ADD, SUB]}
THOUGHT = "<think>\nCarry the one.\n</think>\n\n"
ONE_CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
TWO_CALLS = f'Let me see.\n{ONE_CALL}\n<tool_call>\n{{"name": "sub", "arguments": {{}}}}\n</tool_call>'


@pytest.fixture
def service() -> HttpService:
    return HttpService()


@pytest.fixture
async def client(service: HttpService) -> AsyncIterator[AsyncClient]:
    """The model thinks, and calls as Hermes does."""
    server = client_server(service, "127.0.0.1", 0, parsers=ParserChoice(HERMES, THINK))
    await server.start()
    try:
        async with AsyncClient(str(server.address), timeout_s=30.0) as opened:
            yield opened
    finally:
        await server.close(grace_s=0)


def named(calls: tuple[ToolCall, ...]) -> list[tuple[str, str]]:
    return [(call.name, call.arguments) for call in calls]


@pytest.mark.parametrize("tokens_per_output", [1, 7, 1000])
async def test_calls_are_told_apart_from_content(
    client: AsyncClient, service: HttpService, tokens_per_output: int
) -> None:
    service.script = says(service, TWO_CALLS, tokens_per_output=tokens_per_output)
    (choice,) = (await client.chat(HI, **WITH_TOOLS)).choices
    assert choice.text == "Let me see." and choice.finish_reason is FinishReason.TOOL_CALLS
    assert named(choice.tool_calls) == [("add", '{"a": 1}'), ("sub", "{}")]
    assert all(call.id for call in choice.tool_calls) and len({call.id for call in choice.tool_calls}) == 2
    assert list(choice.token_ids) == service.tokenizer.encode(TWO_CALLS, add_special_tokens=False)


@pytest.mark.parametrize("tokens_per_output", [1, 7])
async def test_a_call_is_streamed_with_its_id_and_name_first(
    client: AsyncClient, service: HttpService, tokens_per_output: int
) -> None:
    service.script = says(service, TWO_CALLS, tokens_per_output=tokens_per_output)
    deltas: list[Delta] = [delta async for delta in client.chat_stream(HI, **WITH_TOOLS)]
    parts = [part for delta in deltas for part in delta.tool_calls]
    assert len(parts) > 2
    for index, (name, arguments) in enumerate([("add", {"a": 1}), ("sub", {})]):
        first, *others = [part for part in parts if part.index == index]
        assert first.id and first.name == name
        assert all(part.id is None and part.name is None for part in others)
        assert json.loads("".join(part.arguments for part in (first, *others))) == arguments
    assert [delta.finish_reason for delta in deltas] == [*[None] * (len(deltas) - 1), FinishReason.TOOL_CALLS]
    for delta in deltas:
        assert len({part.index for part in delta.tool_calls}) == len(delta.tool_calls)


@pytest.mark.parametrize("tokens_per_output", [1, 7, 1000])
async def test_reasoning_is_told_apart_and_counted(
    client: AsyncClient, service: HttpService, tokens_per_output: int
) -> None:
    service.script = says(service, f"{THOUGHT}It is 4.", tokens_per_output=tokens_per_output)
    completion = await client.chat(HI, n=2)
    assert [(choice.reasoning_text, choice.text) for choice in completion.choices] == 2 * [
        ("Carry the one.", "It is 4.")
    ]
    before_tag = service.tokenizer.encode(THOUGHT[: THOUGHT.index("</think>")], add_special_tokens=False)
    assert completion.usage is not None and completion.usage.reasoning_tokens == 2 * len(before_tag)
    deltas = [delta async for delta in client.chat_stream(HI)]
    assert "".join(delta.reasoning_text for delta in deltas) == "Carry the one."
    assert "".join(delta.text for delta in deltas) == "It is 4."


async def test_generated_text_is_left_as_it_is(client: AsyncClient, service: HttpService) -> None:
    service.script = says(service, THOUGHT + ONE_CALL)
    completion = await client.generate("hi")
    (choice,) = completion.choices
    assert (choice.text, choice.reasoning_text, choice.tool_calls) == (THOUGHT + ONE_CALL, "", ())
    assert choice.finish_reason is FinishReason.STOP
    assert completion.usage is not None and completion.usage.reasoning_tokens == 0


async def test_nothing_is_a_call_where_none_is_allowed(client: AsyncClient, service: HttpService) -> None:
    service.script = says(service, ONE_CALL)
    options: list[ChatOptions] = [{}, {"tools": [ADD], "tool_choice": "none"}]
    for chat_options in options:
        (choice,) = (await client.chat(HI, **chat_options)).choices
        assert (choice.text, choice.tool_calls, choice.finish_reason) == (ONE_CALL, (), FinishReason.STOP)


async def test_without_parallel_calls_there_is_one(client: AsyncClient, service: HttpService) -> None:
    service.script = says(service, TWO_CALLS)
    (choice,) = (await client.chat(HI, tools=[ADD, SUB], parallel_tool_calls=False)).choices
    assert named(choice.tool_calls) == [("add", '{"a": 1}')]


async def test_a_demand_to_call_becomes_a_grammar(client: AsyncClient, service: HttpService) -> None:
    service.script = says(service, ONE_CALL)
    await client.chat(HI, tools=[ADD, SUB], tool_choice="required")
    either = service.requests[-1].sampling.grammar
    assert either is not None and either.kind is GrammarKind.LARK
    assert '\\"add\\"' in either.text and '\\"sub\\"' in either.text
    await client.chat(HI, tools=[ADD, SUB], tool_choice={"type": "function", "function": {"name": "sub"}})
    only = service.requests[-1].sampling.grammar
    assert only is not None and '\\"sub\\"' in only.text and '\\"add\\"' not in only.text
    await client.chat(HI, **WITH_TOOLS)
    assert service.requests[-1].sampling.grammar is None


async def test_demands_that_contradict_are_refused(client: AsyncClient, service: HttpService) -> None:
    cases: list[tuple[str, ChatOptions]] = [
        ("tool_choice", {"tool_choice": "required"}),
        ("tool_choice", {"tools": [ADD], "tool_choice": "all"}),
        ("tool_choice.function.name", {**WITH_TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}}),
        ("tools[1].function.name", {"tools": [ADD, ADD]}),
    ]
    for field, options in cases:
        with pytest.raises(InvalidRequest) as caught:
            await client.chat(HI, **options)
        assert caught.value.field == field
    assert service.requests == []


async def test_an_output_with_a_grammar_is_all_content(client: AsyncClient, service: HttpService) -> None:
    service.script = says(service, '{"a": "<think>"}')
    assert (await client.chat(HI, json_schema={"type": "object"})).text == '{"a": "<think>"}'
