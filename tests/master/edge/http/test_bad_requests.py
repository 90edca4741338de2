"""What must never reach a worker. Each test ends with a request that is served, for the server must have survived."""

from collections.abc import Iterable

import pytest

from master.edge.http.config import HttpConfig
from tests.http_client import JSON
from tests.http_service import HttpEdge, HttpService, serving

PATH = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]
MEBIBYTE = 2**20
POSTS = [PATH, "/v1/completions", "/tokenize", "/detokenize"]


async def assert_refused(edge: HttpEdge, param: str, **fields: object) -> str:
    """Returns the message."""
    response = await edge.client.post(PATH, **{"messages": HI, **fields})
    assert response.status == 400, (fields, response.text)
    error = response.error()
    assert (error["type"], error["param"]) == ("invalid_request_error", param), (fields, error)
    return error["message"]


async def assert_serves(edge: HttpEdge) -> None:
    edge.service.requests.clear()
    assert (await edge.client.post(PATH, messages=HI)).status == 200
    assert len(edge.service.requests) == 1


async def test_a_value_out_of_range_is_refused_naming_the_field(edge: HttpEdge) -> None:
    cases: list[tuple[str, list[object]]] = [
        ("temperature", [-1, 1e308, 2.5]),
        ("top_p", [0, 1.5]),
        ("top_k", [-5]),
        ("n", [0, 129]),
        ("seed", [-(2**63) - 1, 2**63, 10**30]),
        ("presence_penalty", [9, -9]),
        ("frequency_penalty", [9]),
        ("repetition_penalty", [0, -1]),
        ("min_p", [2]),
        ("min_tokens", [-1, 10**6]),
        ("max_tokens", [0, -1]),
        ("max_completion_tokens", [0, -1]),
        ("logit_bias", [{"300": 1}, {"-1": 1}, {"1": 101}]),
        ("stop", [[""], "", ["x"] * 17, "x" * 1025]),
        ("stop_token_ids", [[300], [-1]]),
        ("priority", [101]),
        ("cache_salt", ["x" * 257]),
        ("bad_words", [[""]]),
    ]
    for field, values in cases:
        for value in values:
            assert field in await assert_refused(edge, field, **{field: value})
    assert edge.service.requests == []
    await assert_serves(edge)


async def test_the_number_of_logprobs_is_refused_under_the_name_the_client_used(edge: HttpEdge) -> None:
    message = await assert_refused(edge, "top_logprobs", logprobs=True, top_logprobs=21)
    assert message == "top_logprobs is 21; it must be 0 … 20"
    await assert_refused(edge, "top_logprobs", top_logprobs=2)
    await assert_refused(edge, "top_logprobs", logprobs=False, top_logprobs=2)


async def test_a_value_of_the_wrong_type_is_refused_naming_its_path(edge: HttpEdge) -> None:
    cases: list[tuple[str, dict[str, object]]] = [
        ("temperature", {"temperature": "1"}),
        ("max_tokens", {"max_tokens": True}),
        ("n", {"n": 1.5}),
        ("stream", {"stream": "yes"}),
        ("stop", {"stop": 5}),
        ("stop[0]", {"stop": [5]}),
        ("messages", {"messages": "hi"}),
        ("messages[0].role", {"messages": [{"role": 5}]}),
        ("messages[0]", {"messages": [{"content": "hi"}]}),
        ("messages[0].content", {"messages": [{"role": "user", "content": 5}]}),
        ("logit_bias", {"logit_bias": {"a": 1}}),
        ("stream_options.include_usage", {"stream_options": {"include_usage": 1}}),
        ("tools", {"tools": {}}),
        ("response_format", {"response_format": "json"}),
    ]
    for path, fields in cases:
        await assert_refused(edge, path, **fields)
    await assert_serves(edge)


async def test_the_edges_of_context_and_max_tokens(edge: HttpEdge) -> None:
    response = await edge.client.post(PATH, messages=[{"role": "user", "content": "x" * 3000}])
    error = response.error()
    assert (response.status, error["param"], error["code"]) == (400, "messages", "context_length_exceeded")
    assert "messages has 3" in error["message"] and "2000 tokens" in error["message"]
    for field in ("max_tokens", "max_completion_tokens"):
        response = await edge.client.post(PATH, messages=HI, **{field: 1990})
        assert (response.status, response.error()["param"]) == (400, field)
        assert response.error()["code"] == "context_length_exceeded"
    await assert_serves(edge)


async def test_messages_a_model_cannot_take_are_refused_naming_the_message(edge: HttpEdge) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:"}}
    cases: list[tuple[str, object]] = [
        ("messages", []),
        ("messages", None),
        ("messages[0].role", [{"role": "robot", "content": "hi"}]),
        ("messages[1].content", [*HI, {"role": "user"}]),
        ("messages[0].content", [{"role": "system", "content": None}]),
        ("messages[0].content[1]", [{"role": "user", "content": [{"type": "text", "text": "a"}, image]}]),
        ("messages[0].content[0]", [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]),
        ("messages[0].content[0]", [{"role": "user", "content": [{"type": "text"}]}]),
    ]
    for param, messages in cases:
        await assert_refused(edge, param, messages=messages)
    assert "image_url" in await assert_refused(
        edge, "messages[0].content[0]", messages=[{"role": "user", "content": [image]}]
    )
    await assert_serves(edge)


async def test_a_template_that_refuses_speaks_for_itself(edge: HttpEdge) -> None:
    message = await assert_refused(edge, "messages", messages=[{"role": "assistant", "content": "hi"}])
    assert message == "roles must alternate"
    await assert_refused(edge, "messages", continue_final_message=True, add_generation_prompt=True)
    for name in ("messages", "tools", "add_generation_prompt", "continue_final_message"):
        assert name in await assert_refused(edge, "chat_template_kwargs", chat_template_kwargs={name: 1})


async def test_tools_that_cannot_be_served_are_refused(edge: HttpEdge) -> None:
    tool = {"type": "function", "function": {"name": "add"}}
    named = {"type": "function", "function": {"name": "add"}}
    for choice in ("required", named):  # how the model writes calls was not said
        assert "tool_call_parser is none" in await assert_refused(edge, "tool_choice", tools=[tool], tool_choice=choice)
    assert "sometimes" in await assert_refused(edge, "tool_choice", tools=[tool], tool_choice="sometimes")
    await assert_refused(edge, "functions", functions=[{"name": "add"}])
    await assert_refused(edge, "functions", function_call={"name": "add"})
    await assert_refused(edge, "tools[1].type", tools=[tool, {}])
    await assert_refused(edge, "tools[0].function.name", tools=[{"type": "function", "function": {}}])
    await assert_refused(edge, "tools[0].type", tools=[{"type": "web_search"}])


async def test_what_would_change_the_answer_is_not_ignored(edge: HttpEdge) -> None:
    fields: dict[str, object] = {
        "audio": {"voice": "alloy"},
        "modalities": ["text", "audio"],
        "web_search_options": {"search_context_size": "low"},
        "use_beam_search": True,
        "allowed_token_ids": [1],
        "lora_path": "x",
    }
    for field, value in fields.items():
        await assert_refused(edge, field, **{field: value})
    response = await edge.client.post("/v1/completions", prompt="hi", use_beam_search=True)
    assert (response.status, response.error()["param"]) == (400, "use_beam_search")
    asks_nothing = {
        "use_beam_search": False,
        "regex": None,
        "allowed_token_ids": [],
        "modalities": ["text"],
        "thinking_token_budget": -1,
    }
    assert (await edge.client.post(PATH, messages=HI, **asks_nothing)).status == 200


async def test_grammars_that_contradict_or_are_no_json_are_refused(edge: HttpEdge) -> None:
    await assert_refused(edge, "guided_regex", guided_json={}, guided_regex="a")
    await assert_refused(edge, "structured_outputs.choice", structured_outputs={"regex": "a", "choice": ["a"]})
    await assert_refused(edge, "guided_json", guided_json="{")
    await assert_refused(edge, "guided_choice", guided_choice=[])
    for ebnf in ("", "root", "root ::= other", "root ::= [a-", "root ::= " + "(" * 3000, "x" * 4097):
        assert "cannot be used" in await assert_refused(edge, "ebnf", ebnf=ebnf)
    await assert_refused(edge, "response_format", response_format={"type": "xml"})
    await assert_refused(edge, "response_format", response_format={"type": "json_schema"})
    await assert_refused(edge, "response_format", response_format={"type": "json_schema", "json_schema": {}})


def nested(depth: int) -> dict[str, object]:
    value: dict[str, object] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


async def test_json_that_is_passed_on_is_nested_within_bounds(edge: HttpEdge) -> None:
    deep = nested(70)
    await assert_refused(edge, "chat_template_kwargs", chat_template_kwargs=deep)
    await assert_refused(edge, "guided_json", guided_json=deep)
    await assert_refused(edge, "tools[0]", tools=[{"type": "function", "function": {"name": "f", "parameters": deep}}])
    assert (await edge.client.post(PATH, messages=HI, chat_template_kwargs=nested(60))).status == 200
    for body in (b'{"a":' * 100_000, b'{"messages":' + b"[" * 100_000, b"[" * 1_000_000):
        response = await edge.client.send("POST", PATH, body)
        assert response.status == 400 and response.error()["type"] == "invalid_request_error"
    await assert_serves(edge)


async def test_an_unknown_model_is_not_found(edge: HttpEdge) -> None:
    asked: dict[str, dict[str, object]] = {
        PATH: {"messages": HI},
        "/v1/completions": {"prompt": "hi"},
        "/tokenize": {"prompt": "hi"},
        "/detokenize": {"tokens": [1]},
    }
    for path, fields in asked.items():
        response = await edge.client.post(path, model="gpt-9", **fields)
        error = response.error()
        assert (response.status, error["param"], error["code"]) == (404, "model", "model_not_found")
        assert "gpt-9" in error["message"]


@pytest.mark.parametrize("path", POSTS)
async def test_a_body_that_is_no_json_is_refused(edge: HttpEdge, path: str) -> None:
    bodies = [
        b"",
        b"hi",
        b"{",
        b"[]",
        b"null",
        b'"hi"',
        b"{}{}",
        b'{"model": NaN}',
        b'{"temperature": NaN}',
        b'{"temperature": Infinity}',
        b'{"temperature": 1e999}',
        b'{"model": "\xff"}',
        b"\xff\xfe{\x00}\x00",
        b"\x00" * 100,
    ]
    for body in bodies:
        response = await edge.client.send("POST", path, body)
        assert response.status == 400 and response.error()["type"] == "invalid_request_error", body
    await assert_serves(edge)


@pytest.mark.parametrize("escape", [b"\\ud800", b"\\udc00", b"\\ud800\\ud800", b"\\ud800\\u0041", b"\xed\xa0\x80"])
async def test_half_a_surrogate_pair_is_refused(edge: HttpEdge, escape: bytes) -> None:
    bodies = [
        (PATH, b'{"messages":[{"role":"user","content":"%s"}]}'),
        (PATH, b'{"messages":[{"role":"user","content":"hi"}],"stop":"a%s"}'),
        ("/v1/completions", b'{"prompt":"%s"}'),
        ("/tokenize", b'{"prompt":"%s"}'),
    ]
    for path, body in bodies:
        response = await edge.client.send("POST", path, body % escape)
        assert response.status == 400 and response.error()["type"] == "invalid_request_error"
    await assert_serves(edge)


async def test_only_json_is_taken(edge: HttpEdge) -> None:
    body = b'{"messages":[{"role":"user","content":"hi"}]}'
    refused = [{"content-type": kind} for kind in ("text/plain", "application/x-www-form-urlencoded", "json", "")]
    refused += [{**JSON, "content-encoding": "gzip"}]
    for path in POSTS:
        for headers in refused:
            response = await edge.client.send("POST", path, body, headers)
            assert response.status == 415 and response.error()["type"] == "invalid_request_error"
    for kind in ("application/json", "Application/JSON; charset=utf-8", "application/vnd.api+json"):
        assert (await edge.client.send("POST", PATH, body, {"content-type": kind})).status == 200
    assert (await edge.client.send("POST", PATH, body, {})).status == 200


@pytest.mark.parametrize("path", POSTS)
async def test_a_body_over_the_limit_is_refused_while_it_arrives(edge: HttpEdge, path: str) -> None:
    """50 MB in chunks, whose end the server never waits for: it says so, and takes no more than it must."""

    def chunks() -> Iterable[bytes]:
        yield b'{"prompt":"'
        for _ in range(50):
            yield b"x" * MEBIBYTE

    connection = await edge.client.open()
    connection.send_head("POST", path, {**JSON, "transfer-encoding": "chunked"})
    await connection.send_chunks(chunks())
    response = await connection.response()
    assert response.status == 413 and str(32 * MEBIBYTE) in response.error()["message"]
    assert await connection.reader.read() == b""  # and closes
    await assert_serves(edge)


async def test_a_body_that_announces_itself_too_large_is_refused_unread() -> None:
    async with serving(HttpService(), HttpConfig(max_body_bytes=1000)) as edge:
        connection = await edge.client.open()
        connection.send_head("POST", PATH, {**JSON, "content-length": "1001", "expect": "100-continue"})
        assert (await connection.read_until(b"\r\n")).startswith(b"HTTP/1.1 413")
        connection.leave()
        body = b'{"messages":[{"role":"user","content":"hi"}]}'
        assert (await edge.client.send("POST", PATH, body.ljust(1000))).status == 200
        assert (await edge.client.send("POST", PATH, body.ljust(1001))).status == 413


async def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    async with serving(HttpService(), HttpConfig(body_timeout_s=0.05)) as edge:
        connection = await edge.client.open()
        connection.send_head("POST", PATH, {**JSON, "content-length": "100"})
        connection.writer.write(b"{")
        assert (await connection.read_until(b"\r\n")).startswith(b"HTTP/1.1 400")
        connection.leave()
        await assert_serves(edge)
