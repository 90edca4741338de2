"""Tool calls and reasoning in chat completions; how they are read is tested in tests/master/parsing."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace

import openai
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionToolUnionParam

from master.edge.http.config import HttpConfig
from master.parsing.formats import ParserChoice, choose_parsers
from master.parsing.hermes import HERMES
from master.parsing.reasoning import THINK
from master.text.chat_template import ChatTemplate
from master.text.reasoning_span import ReasoningSpan
from protos.sampling_messages import GrammarKind
from tests.http_service import BOS, MODEL, HttpEdge, HttpService, serving
from tests.scripted_text import says

PATH = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]
ADD: ChatCompletionToolUnionParam = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    },
}
SUB: ChatCompletionToolUnionParam = {"type": "function", "function": {"name": "sub"}}
ONE_CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
TWO_CALLS = f'Let me see.\n{ONE_CALL}\n<tool_call>\n{{"name": "sub", "arguments": {{}}}}\n</tool_call>'
THOUGHT = "<think>\nCarry the one.\n</think>\n\n"


@pytest.fixture
async def edge() -> AsyncIterator[HttpEdge]:
    """The model thinks, and calls as Hermes does."""
    async with serving(HttpService(), HttpConfig(parsers=ParserChoice(HERMES, THINK))) as running:
        yield running


async def whole(client: openai.AsyncOpenAI, **fields: object) -> ChatCompletion:
    return await client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "hi"}], tools=[ADD, SUB], extra_body=fields
    )


async def streamed(client: openai.AsyncOpenAI, **fields: object) -> list[ChatCompletionChunk]:
    stream = await client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "hi"}], tools=[ADD, SUB], stream=True, extra_body=fields
    )
    return [chunk async for chunk in stream]


def joined(chunks: list[ChatCompletionChunk]) -> tuple[str, list[tuple[str, str]]]:
    """Content, and (name, arguments) of each call."""
    content = ""
    calls: dict[int, tuple[str, str]] = {}
    for chunk in chunks:
        for choice in chunk.choices:
            content += choice.delta.content or ""
            for call in choice.delta.tool_calls or ():
                assert call.function is not None
                if call.index not in calls:
                    assert call.id is not None and call.type == "function" and call.function.name is not None
                    calls[call.index] = (call.function.name, "")
                else:
                    assert call.id is None and call.function.name is None
                name, arguments = calls[call.index]
                calls[call.index] = (name, arguments + (call.function.arguments or ""))
    return content, [calls[index] for index in sorted(calls)]


async def test_calls_are_openais_tool_calls(edge: HttpEdge, official: openai.AsyncOpenAI) -> None:
    edge.service.script = says(edge.service, TWO_CALLS)
    (choice,) = (await whole(official)).choices
    assert choice.finish_reason == "tool_calls" and choice.message.content == "Let me see."
    calls = choice.message.tool_calls
    assert calls is not None and len({call.id for call in calls}) == 2
    told = [(call.function.name, call.function.arguments) for call in calls if call.type == "function"]
    assert told == [("add", '{"a": 1}'), ("sub", "{}")]


async def test_content_is_null_where_there_are_only_calls(edge: HttpEdge) -> None:
    edge.service.script = says(edge.service, ONE_CALL)
    answer = (await edge.client.post(PATH, messages=HI, tools=[ADD])).json()
    choices = answer["choices"]
    assert isinstance(choices, list) and choices[0]["message"]["content"] is None
    assert choices[0]["message"]["reasoning_content"] is choices[0]["message"]["reasoning"] is None


@pytest.mark.parametrize("tokens_per_output", [1, 7, 1000])
async def test_a_stream_says_what_the_response_says(
    edge: HttpEdge, official: openai.AsyncOpenAI, tokens_per_output: int
) -> None:
    edge.service.script = says(edge.service, TWO_CALLS, tokens_per_output=tokens_per_output)
    chunks = await streamed(official)
    assert joined(chunks) == ("Let me see.", [("add", '{"a": 1}'), ("sub", "{}")])
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons == [*[None] * (len(chunks) - 1), "tool_calls"]
    assert chunks[0].choices[0].delta.role == "assistant"


@pytest.mark.parametrize("tokens_per_output", [1, 7, 1000])
async def test_reasoning_is_told_apart_and_counted(
    edge: HttpEdge, official: openai.AsyncOpenAI, tokens_per_output: int
) -> None:
    edge.service.script = says(edge.service, f"{THOUGHT}It is 4.", tokens_per_output=tokens_per_output)
    answer = await official.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "hi"}])
    message = answer.choices[0].message
    assert message.content == "It is 4." and (message.model_extra or {})["reasoning_content"] == "Carry the one."
    assert answer.usage is not None and answer.usage.completion_tokens_details is not None
    before_tag = THOUGHT[: THOUGHT.index("</think>")]
    num_reasoning = len(edge.service.tokenizer.encode(before_tag, add_special_tokens=False))
    assert answer.usage.completion_tokens_details.reasoning_tokens == num_reasoning > 0
    stream = await official.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "hi"}], stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = [chunk async for chunk in stream]
    assert last.usage is not None and last.usage == answer.usage
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join((delta.model_extra or {}).get("reasoning_content", "") for delta in deltas) == "Carry the one."
    assert joined(chunks)[0] == "It is 4."


async def test_reasoning_may_have_begun_in_the_prompt(edge: HttpEdge) -> None:
    edge.service.script = says(edge.service, "Hm.</think>\nIt is 4.")
    messages = [*HI, {"role": "assistant", "content": "<think>"}]
    answer = (await edge.client.post(PATH, messages=messages, continue_final_message=True)).json()
    choices = answer["choices"]
    assert isinstance(choices, list)
    message = choices[0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm.", "It is 4.")
    assert message["reasoning"] == "Hm."  # A8


async def test_an_answer_without_reasoning_has_no_reasoning_tokens(
    edge: HttpEdge, official: openai.AsyncOpenAI
) -> None:
    edge.service.script = says(edge.service, "The tag is </think>.")
    answer = await whole(official)
    assert answer.choices[0].message.content == "The tag is </think>."
    assert answer.usage is not None and answer.usage.completion_tokens_details is not None
    assert answer.usage.completion_tokens_details.reasoning_tokens == 0


async def test_reasoning_that_ran_out_of_tokens_is_all_reasoning(edge: HttpEdge, official: openai.AsyncOpenAI) -> None:
    edge.service.script = says(edge.service, THOUGHT + "It is 4.")
    answer = await whole(official, max_tokens=12)
    assert answer.choices[0].finish_reason == "length" and not answer.choices[0].message.content
    assert answer.usage is not None and answer.usage.completion_tokens_details is not None
    assert answer.usage.completion_tokens_details.reasoning_tokens == 12


async def test_each_sequence_is_read_by_itself(edge: HttpEdge, official: openai.AsyncOpenAI) -> None:
    edge.service.script = says(edge.service, ONE_CALL)
    answer = await whole(official, n=3)
    calls = [choice.message.tool_calls for choice in answer.choices]
    assert all(call is not None and len(call) == 1 for call in calls)
    assert len({call[0].id for call in calls if call is not None}) == 3


async def test_a_call_that_is_cut_ends_with_length_or_stop(edge: HttpEdge, official: openai.AsyncOpenAI) -> None:
    edge.service.script = says(edge.service, ONE_CALL)
    cut = (await whole(official, max_tokens=48)).choices[0]
    assert cut.finish_reason == "length" and cut.message.tool_calls is not None
    edge.service.script = says(edge.service, ONE_CALL[:50], matched_stop="x")
    assert (await whole(official)).choices[0].finish_reason == "stop"


async def test_nothing_is_a_call_where_none_is_allowed(edge: HttpEdge, official: openai.AsyncOpenAI) -> None:
    edge.service.script = says(edge.service, ONE_CALL)
    choice = (await whole(official, tool_choice="none")).choices[0]
    assert (choice.message.content, choice.message.tool_calls, choice.finish_reason) == (ONE_CALL, None, "stop")
    answer = (await edge.client.post(PATH, messages=HI)).json()
    choices = answer["choices"]
    assert isinstance(choices, list) and choices[0]["message"]["content"] == ONE_CALL


@pytest.mark.parametrize("stream", [False, True])
async def test_without_parallel_calls_there_is_one(edge: HttpEdge, official: openai.AsyncOpenAI, stream: bool) -> None:
    edge.service.script = says(edge.service, TWO_CALLS)
    if stream:
        assert joined(await streamed(official, parallel_tool_calls=False))[1] == [("add", '{"a": 1}')]
        return
    calls = (await whole(official, parallel_tool_calls=False)).choices[0].message.tool_calls
    assert calls is not None and len(calls) == 1


async def test_a_demand_to_call_becomes_a_grammar(edge: HttpEdge, official: openai.AsyncOpenAI) -> None:
    edge.service.script = says(edge.service, ONE_CALL)
    await whole(official, tool_choice="required")
    grammar = edge.service.requests[-1].sampling.grammar
    assert grammar is not None and grammar.kind is GrammarKind.LARK
    assert '\\"add\\"' in grammar.text and '\\"sub\\"' in grammar.text
    await whole(official, tool_choice={"type": "function", "function": {"name": "sub"}})
    named = edge.service.requests[-1].sampling.grammar
    assert named is not None and '\\"sub\\"' in named.text and '\\"add\\"' not in named.text
    await whole(official, tool_choice="auto")
    assert edge.service.requests[-1].sampling.grammar is None


async def test_demands_that_contradict_are_refused(edge: HttpEdge) -> None:
    cases: list[tuple[str, dict[str, object]]] = [
        ("tool_choice", {"tool_choice": "required"}),
        ("tool_choice.function.name", {"tools": [ADD], "tool_choice": {"type": "function", "function": {"name": "x"}}}),
        ("tool_choice", {"tools": [ADD], "tool_choice": "all"}),
        ("tools[1].function.name", {"tools": [ADD, ADD]}),
        ("tools[0].function.parameters", {"tools": [{"type": "function", "function": {"name": "f", "parameters": 1}}]}),
    ]
    for param, fields in cases:
        response = await edge.client.post(PATH, messages=HI, **fields)
        assert (response.status, response.error()["param"]) == (400, param), response.text
    assert edge.service.requests == []


async def test_an_output_with_a_format_is_content_even_where_the_model_thinks(edge: HttpEdge) -> None:
    edge.service.script = says(edge.service, '{"a": "<think>"}')
    answer = (await edge.client.post(PATH, messages=HI, response_format={"type": "json_object"})).json()
    choices = answer["choices"]
    assert isinstance(choices, list) and json.loads(choices[0]["message"]["content"]) == {"a": "<think>"}


async def test_special_tokens_are_shown_only_to_a_parser_that_looks_for_them(edge: HttpEdge) -> None:
    """Where a tag is a special token it would be skipped, and never be found."""
    await edge.client.post(PATH, messages=HI, tools=[ADD])
    assert edge.service.requests[-1].skip_special_tokens
    parsers = ParserChoice(replace(HERMES, tags=(BOS,)))
    async with serving(HttpService(), HttpConfig(parsers=parsers)) as other:
        await other.client.post(PATH, messages=HI, tools=[ADD])
        assert not other.service.requests[-1].skip_special_tokens
        await other.client.post(PATH, messages=HI)
        assert other.service.requests[-1].skip_special_tokens


def lark(edge: HttpEdge) -> str:
    grammar = edge.service.requests[-1].sampling.grammar
    assert grammar is not None and grammar.kind is GrammarKind.LARK
    return grammar.text


async def test_tools_that_must_be_called_win_over_a_response_format(edge: HttpEdge) -> None:
    """A3: instructor sends both."""
    edge.service.script = says(edge.service, ONE_CALL)
    fields = {"tools": [ADD], "tool_choice": "required", "response_format": {"type": "json_object"}}
    response = await edge.client.post(PATH, messages=HI, **fields)
    assert response.list_of("choices")[0]["message"]["tool_calls"]
    assert "<tool_call>" in lark(edge)


async def test_only_allowed_tools_are_shown_and_called(edge: HttpEdge) -> None:
    names = [{"type": "function", "function": {"name": "sub"}}]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": names}}
    response = await edge.client.post(PATH, messages=HI, tools=[ADD, SUB], tool_choice=choice)
    assert response.status == 200, response.text
    prompt = edge.service.tokenizer.decode(edge.service.requests[-1].prompt_ids, skip_special_tokens=False)
    assert '"sub"' in prompt and '"add"' not in prompt
    assert '\\"sub\\"' in lark(edge) and '\\"add\\"' not in lark(edge)
    choice["allowed_tools"] = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "x"}}]}
    response = await edge.client.post(PATH, messages=HI, tools=[ADD, SUB], tool_choice=choice)
    assert response.error()["param"] == "tool_choice.allowed_tools.tools"


async def test_a_model_that_was_not_taught_to_call_is_told_how() -> None:
    """A2: the template shows no tools, and auto found no format."""
    service = HttpService()
    service.chat_template = ChatTemplate(
        {"default": "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"}, {}
    )
    service.script = says(service, ONE_CALL)
    config = HttpConfig(parsers=choose_parsers("auto", "auto", service.chat_template.source))
    async with serving(service, config) as edge:
        response = await edge.client.post(PATH, messages=HI, tools=[ADD], tool_choice="required")
        assert response.list_of("choices")[0]["message"]["tool_calls"][0]["function"]["name"] == "add"
        prompt = service.tokenizer.decode(service.requests[-1].prompt_ids, skip_special_tokens=False)
        assert prompt.startswith("[system]") and "<tool_call>" in prompt and '"Adds."' in prompt
        tokenized = await edge.client.post("/tokenize", messages=HI, tools=[ADD], tool_choice="required")
        assert tokenized.json()["tokens"] == list(service.requests[-1].prompt_ids)
        assert "<tool_call>" in lark(edge)
        await edge.client.post(PATH, messages=HI, tools=[ADD])
        assert service.requests[-1].sampling.grammar is None


async def test_reasoning_comes_before_the_format_and_in_time(edge: HttpEdge) -> None:
    """T7"""
    thinking = [*HI, {"role": "assistant", "content": "<think>"}]
    edge.service.script = says(edge.service, 'Hm.</think>\n{"a": 1}')
    fields: dict[str, object] = {"continue_final_message": True, "response_format": {"type": "json_object"}}
    response = await edge.client.post(PATH, messages=thinking, max_tokens=100, **fields)
    message = response.list_of("choices")[0]["message"]
    assert (message["reasoning_content"], json.loads(message["content"])) == ("Hm.", {"a": 1})
    # half of what there is, as characters, since </think> is no token here
    assert "(?s:.{0,50})/" in lark(edge) and "%json" in lark(edge)
    await edge.client.post(PATH, messages=thinking, max_tokens=100, thinking_token_budget=7, **fields)
    assert "(?s:.{0,7})/" in lark(edge)
    await edge.client.post(PATH, messages=HI, tools=[ADD], tool_choice="required", max_tokens=100)
    assert '"<think>"' in lark(edge) and "(?s:.{0,50})/" in lark(edge)
    await edge.client.post(PATH, messages=HI, thinking_token_budget=9)
    assert "(?s:.{0,9})/" in lark(edge)
    await edge.client.post(PATH, messages=HI)
    assert edge.service.requests[-1].sampling.grammar is None


async def test_stops_know_where_the_reasoning_is(edge: HttpEdge) -> None:
    """T1"""
    await edge.client.post(PATH, messages=HI, stop=["a"])
    assert edge.service.requests[-1].reasoning == ReasoningSpan("<think>", "</think>", is_open=False)
    thinking = [*HI, {"role": "assistant", "content": "<think>"}]
    await edge.client.post(PATH, messages=thinking, continue_final_message=True)
    assert edge.service.requests[-1].reasoning == ReasoningSpan("<think>", "</think>", is_open=True)


async def test_a_schema_that_can_not_be_used_is_named_by_tool_and_property(edge: HttpEdge) -> None:
    """T6, A12"""
    bad = {"type": "object", "properties": {"good": {"type": "string"}, "bad": {"type": "string", "pattern": "(?=a)b"}}}
    tools = [ADD, {"type": "function", "function": {"name": "look", "parameters": bad}}]
    error = (await edge.client.post(PATH, messages=HI, tools=tools, tool_choice="required")).error()
    assert error["param"] == "tools[1].function.parameters.properties.bad"
    assert "'look'" in error["message"] and "start:" not in error["message"]
    assert (await edge.client.post(PATH, messages=HI, tools=tools)).status == 200


async def test_what_only_describes_a_schema_is_not_limited_nor_compiled(edge: HttpEdge) -> None:
    """T5, T6"""
    text = {"type": "string", "description": "long " * 40_000, "format": "path", "title": "t"}
    schema = {"type": "object", "properties": {"a": text, "description": {"type": "string", "format": "binary"}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    response = await edge.client.post("/tokenize", prompt="a")
    assert response.status == 200
    response = await edge.client.post(PATH, messages=HI, tools=tools, tool_choice="required", max_tokens=5)
    assert response.error()["code"] == "context_length_exceeded"  # its text is in the prompt, after all
    del text["description"]
    response = await edge.client.post(PATH, messages=HI, tools=tools, tool_choice="required", max_tokens=5)
    assert response.status == 200, response.text
    assert "description" in lark(edge) and '"format"' not in lark(edge) and '"title"' not in lark(edge)
