import dataclasses
import json

import openai
import pytest
from openai.types.chat import ChatCompletionUserMessageParam

from master.output import Timeline
from protos.sampling_messages import Grammar, GrammarKind
from tests.http_service import MODEL, REPLY, HttpEdge

PATH = "/v1/chat/completions"
HI: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "hi"}]
REPLY_TOKENS = 23
PROMPT_TOKENS = 20


async def test_a_response_has_openais_form(official: openai.AsyncOpenAI) -> None:
    answer = await official.chat.completions.create(model=MODEL, messages=HI, n=2)
    assert answer.object == "chat.completion" and answer.model == MODEL
    assert answer.id.startswith("chatcmpl-") and answer.created > 1_700_000_000
    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice in answer.choices:
        assert (choice.message.role, choice.message.content) == ("assistant", REPLY)
        assert choice.finish_reason == "stop" and choice.logprobs is None
    usage = answer.usage
    assert usage is not None and usage.prompt_tokens_details is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (PROMPT_TOKENS, 2 * REPLY_TOKENS)
    assert usage.total_tokens == PROMPT_TOKENS + 2 * REPLY_TOKENS
    assert usage.prompt_tokens_details.cached_tokens == 3


async def test_a_stream_has_openais_form(official: openai.AsyncOpenAI) -> None:
    stream = await official.chat.completions.create(
        model=MODEL, messages=HI, n=2, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = [chunk async for chunk in stream]
    assert len({(chunk.id, chunk.created, chunk.model, chunk.object) for chunk in [*chunks, last]}) == 1
    assert last.object == "chat.completion.chunk"
    for index in range(2):
        choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
        assert [choice.delta.role for choice in choices] == ["assistant", *[None] * (len(choices) - 1)]
        assert "".join(choice.delta.content or "" for choice in choices) == REPLY
        assert not any("\ufffd" in (choice.delta.content or "") for choice in choices)
        assert [choice.finish_reason for choice in choices] == [*[None] * (len(choices) - 1), "stop"]
    assert all(chunk.usage is None for chunk in chunks)
    assert last.choices == [] and last.usage is not None
    assert last.usage.completion_tokens == 2 * REPLY_TOKENS


async def test_a_stream_ends_with_one_done_and_without_usage_unless_asked(edge: HttpEdge) -> None:
    *chunks, done = await edge.client.stream(PATH, messages=HI)
    assert done == "[DONE]" and "[DONE]" not in chunks
    assert all(len(json.loads(chunk)["choices"]) == 1 and "usage" not in json.loads(chunk) for chunk in chunks)


async def test_tokens_without_text_yet_make_no_event(edge: HttpEdge) -> None:
    chunks = await edge.client.stream(PATH, messages=HI)
    assert len(chunks) - 1 < REPLY_TOKENS  # the bytes of 你 come one a token
    assert all(json.loads(chunk)["choices"][0]["delta"]["content"] for chunk in chunks[:-2])


async def test_usage_that_is_sent_all_along_never_shrinks(edge: HttpEdge) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, _ = await edge.client.stream(PATH, messages=HI, stream_options=options)
    counts = [json.loads(chunk)["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == [*range(1, REPLY_TOKENS + 1), REPLY_TOKENS, REPLY_TOKENS]  # the end, and the usage
    assert {json.loads(chunk)["usage"]["prompt_tokens"] for chunk in chunks} == {PROMPT_TOKENS}


@pytest.mark.parametrize("num_top", [None, 2])
async def test_logprobs_are_one_a_token_streamed_or_not(official: openai.AsyncOpenAI, num_top: int | None) -> None:
    top_logprobs = openai.omit if num_top is None else num_top
    answer = await official.chat.completions.create(model=MODEL, messages=HI, logprobs=True, top_logprobs=top_logprobs)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None and len(logprobs.content) == REPLY_TOKENS
    assert b"".join(bytes(token.bytes or []) for token in logprobs.content).decode() == REPLY
    assert logprobs.content[0].token == "H" and logprobs.content[0].logprob == -1
    assert [top.logprob for top in logprobs.content[0].top_logprobs] == [-1, -3]
    stream = await official.chat.completions.create(
        model=MODEL, messages=HI, logprobs=True, top_logprobs=top_logprobs, stream=True
    )
    streamed = [chunk.choices[0].logprobs async for chunk in stream]
    tokens = [token for part in streamed if part is not None for token in part.content or ()]
    assert [token.model_dump() for token in tokens] == [token.model_dump() for token in logprobs.content]


async def test_token_ids_of_prompt_and_choices_are_returned_when_asked(edge: HttpEdge) -> None:
    answer = (await edge.client.post(PATH, messages=HI, return_token_ids=True)).json()
    tokenizer = edge.service.tokenizer
    choices = answer["choices"]
    assert isinstance(choices, list)
    assert choices[0]["token_ids"] == tokenizer.encode(REPLY, add_special_tokens=False)
    assert answer["prompt_token_ids"] == list(edge.service.requests[0].prompt_ids)
    *chunks, _ = [*await edge.client.stream(PATH, messages=HI, return_token_ids=True)]
    decoded = [json.loads(chunk) for chunk in chunks]
    assert [token_id for chunk in decoded for token_id in chunk["choices"][0]["token_ids"]] == choices[0]["token_ids"]
    assert [chunk.get("prompt_token_ids") for chunk in decoded] == [
        answer["prompt_token_ids"],
        *[None] * (len(decoded) - 1),
    ]


async def test_an_answer_has_the_keys_that_clients_of_peers_read(edge: HttpEdge) -> None:
    """A8"""
    answer = (await edge.client.post(PATH, messages=HI)).json()
    assert answer["prompt_logprobs"] is answer["prompt_token_ids"] is None
    (choice,) = (await edge.client.post(PATH, messages=HI)).list_of("choices")
    assert choice["stop_reason"] is choice["matched_stop"] is choice["token_ids"] is None
    assert choice["message"]["reasoning"] is choice["message"]["reasoning_content"] is None


async def test_fastdeploys_benchmark_finds_its_columns(edge: HttpEdge) -> None:
    """A5: cached tokens with the first token, arrival times that rise, and the stages' times in the end."""
    *chunks, _ = await edge.client.stream(
        PATH,
        messages=HI,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
        collect_metrics=True,
        metadata={"min_tokens": 3},
    )
    first, *others, last = [json.loads(chunk) for chunk in chunks]
    assert edge.service.requests[0].sampling.min_tokens == 3
    assert first["usage"]["prompt_tokens_details"] == {"cached_tokens": 3}
    arrivals = [chunk["choices"][0]["arrival_time"] for chunk in (first, *others)]
    assert arrivals == sorted(arrivals) and arrivals[0] >= 0
    metrics = last["metrics"]
    assert metrics["arrival_time"] <= metrics["inference_start_time"] <= metrics["decode_recv_first_token_time"]
    assert "metrics" not in first


@pytest.mark.parametrize("wrong", [True, -1, 10**6])
async def test_metadata_is_checked_like_the_field_it_stands_for(edge: HttpEdge, wrong: object) -> None:
    response = await edge.client.post(PATH, messages=HI, metadata={"min_tokens": wrong})
    assert (response.status, response.error()["param"]) == (400, "min_tokens")


@pytest.mark.parametrize("metadata", [{"min_tokens": "3"}, {"min_tokens": None}, {}, None])
async def test_other_metadata_is_only_a_label(edge: HttpEdge, metadata: dict[str, object] | None) -> None:
    assert (await edge.client.post(PATH, messages=HI, metadata=metadata)).status == 200
    assert edge.service.requests[0].sampling.min_tokens == 0


async def test_tokens_are_named_by_their_ids_when_asked(edge: HttpEdge) -> None:
    """A6"""
    options = {"logprobs": True, "top_logprobs": 2, "return_tokens_as_token_ids": True, "return_token_ids": True}
    (choice,) = (await edge.client.post(PATH, messages=HI, **options)).list_of("choices")
    content = choice["logprobs"]["content"]
    assert [token["token"] for token in content] == [f"token_id:{token_id}" for token_id in choice["token_ids"]]
    assert content[0]["top_logprobs"][1]["token"] == "token_id:10"
    *chunks, _ = await edge.client.stream(PATH, messages=HI, **options)
    streamed = [json.loads(chunk)["choices"][0]["logprobs"] for chunk in chunks]
    assert [token for part in streamed if part is not None for token in part["content"]] == content


CONTINUED = [*HI, {"role": "assistant", "content": [{"type": "text", "text": "So: "}]}]


@pytest.mark.parametrize(
    ("messages", "echo", "opening"), [(CONTINUED, True, "So: "), (CONTINUED, False, ""), (HI, True, "")]
)
async def test_an_answer_begins_with_the_message_it_continues_when_asked(
    edge: HttpEdge, messages: list[object], echo: bool, opening: str
) -> None:
    """A6"""
    options = {"messages": messages, "echo": echo, "continue_final_message": messages is CONTINUED, "n": 2}
    choices = (await edge.client.post(PATH, **options)).list_of("choices")
    assert [choice["message"]["content"] for choice in choices] == [opening + REPLY] * 2
    *chunks, _ = await edge.client.stream(PATH, **options)
    texts = ["", ""]
    for chunk in chunks:
        for streamed in json.loads(chunk)["choices"]:
            texts[streamed["index"]] += streamed["delta"].get("content", "")
    assert texts == [opening + REPLY] * 2


async def test_prompt_logprobs_are_one_a_prompt_token(edge: HttpEdge) -> None:
    answer = (await edge.client.post(PATH, messages=HI, prompt_logprobs=1)).json()
    ranked = answer["prompt_logprobs"]
    assert isinstance(ranked, list) and len(ranked) == PROMPT_TOKENS and ranked[0] is None
    ids = edge.service.requests[0].prompt_ids
    assert all(str(token_id) in entry for token_id, entry in zip(ids[1:], ranked[1:], strict=True))


async def test_a_timeline_comes_with_the_end_when_asked(edge: HttpEdge) -> None:
    answer = (await edge.client.post(PATH, messages=HI, timeline=True)).json()
    *_, last, done = await edge.client.stream(PATH, messages=HI, timeline=True)
    assert done == "[DONE]"
    assert answer["timeline"] == json.loads(last)["timeline"]
    assert answer["timeline"] == dataclasses.asdict(Timeline(total_s=1.5, transport="tcp", blocks_sent=3, attempts=1))
    assert "timeline" not in (await edge.client.post(PATH, messages=HI)).json()


async def prompt_of(edge: HttpEdge, **body: object) -> str:
    response = await edge.client.post(PATH, **body)
    assert response.status == 200, response.text
    return edge.prompt


async def test_messages_go_through_the_template(edge: HttpEdge) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [
        {"role": "developer", "content": "be kind", "unknown": 1},
        {"role": "user", "content": parts, "name": None},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "f"}}]},
        {"role": "tool", "content": "4", "tool_call_id": "1"},
    ]
    assert await prompt_of(edge, messages=messages) == (
        "<s>[system]be kind\n[user]a\nb\n[assistant]\n[tool]4\n[assistant]"
    )


async def test_a_final_message_can_be_continued(edge: HttpEdge) -> None:
    messages = [*HI, {"role": "assistant", "content": "Well"}]
    assert await prompt_of(edge, messages=messages, continue_final_message=True) == "<s>[user]hi\n[assistant]Well"
    assert await prompt_of(edge, messages=HI, add_generation_prompt=False) == "<s>[user]hi\n"


async def test_template_kwargs_and_tools_reach_the_template(edge: HttpEdge) -> None:
    tool = {"type": "function", "function": {"name": "add", "parameters": {}}}
    for choice in ("auto", None):
        prompt = await prompt_of(
            edge, messages=HI, tools=[tool], tool_choice=choice, chat_template_kwargs={"shout": True}
        )
        assert prompt == f"<s>[user]hi\n{json.dumps([tool])}SHOUT[assistant]"
    # a model that does not know of tools calls none
    assert await prompt_of(edge, messages=HI, tools=[tool], tool_choice="none") == "<s>[user]hi\n[assistant]"


async def test_the_options_reach_the_request(edge: HttpEdge) -> None:
    response = await edge.client.post(
        PATH,
        model="alias",
        messages=HI,
        n=2,
        max_tokens=7,
        max_completion_tokens=5,
        min_tokens=2,
        temperature=0,
        top_p=0.5,
        top_k=4,
        min_p=0.1,
        seed=9,
        presence_penalty=1,
        frequency_penalty=-1,
        repetition_penalty=1.5,
        logit_bias={"17": -100},
        stop="x",
        stop_token_ids=[44],
        ignore_eos=True,
        include_stop_str_in_output=True,
        skip_special_tokens=False,
        bad_words=["y"],
        priority=3,
        cache_salt="salt",
        # accepted and of no effect
        user="me",
        metadata={"a": "b"},
        store=True,
        service_tier="auto",
        parallel_tool_calls=False,
        response_format={"type": "text"},
    )
    assert response.status == 200, response.text
    assert response.json()["model"] == "alias"
    request = edge.service.requests[0]
    sampling = request.sampling
    assert (request.n, request.stop, request.include_stop, request.skip_special_tokens) == (2, ("x",), True, False)
    assert (request.priority, request.cache_salt) == (3, "salt")
    assert (sampling.max_tokens, sampling.min_tokens) == (5, 2)
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0, 0.5, 4, 0.1)
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (1, -1, 1.5)
    assert (sampling.seed, sampling.stop_token_ids, sampling.logit_bias) == (9, (44,), {17: -100})
    assert len(sampling.bad_words_ids) == 2 and sampling.logprobs is None and sampling.grammar is None


async def test_null_is_the_same_as_unset(edge: HttpEdge) -> None:
    names = "model n stream stop max_tokens max_completion_tokens temperature top_p seed logprobs top_logprobs tools"
    names += " stream_options logit_bias response_format tool_choice functions bad_words cache_salt echo timeline"
    response = await edge.client.post(PATH, messages=HI, **dict.fromkeys(names.split()))
    assert response.status == 200, response.text
    assert edge.service.requests[0].sampling.temperature == 1
    assert edge.service.requests[0].n == 1
    # max_tokens unset is whatever the context leaves
    assert edge.service.requests[0].sampling.max_tokens > 1000


async def test_of_duplicate_keys_the_last_counts(edge: HttpEdge) -> None:
    body = b'{"messages":[{"role":"user","content":"hi"}],"max_tokens":1,"max_tokens":2}'
    assert (await edge.client.send("POST", PATH, body)).status == 200
    assert edge.service.requests[0].sampling.max_tokens == 2


async def test_each_spelling_of_a_grammar_reaches_the_request(edge: HttpEdge) -> None:
    any_object = Grammar(GrammarKind.JSON_SCHEMA, '{"type":"object"}')
    named = {"name": "n", "schema": {"b": 1, "a": 2}}
    spellings: list[tuple[dict[str, object], Grammar]] = [
        ({"response_format": {"type": "json_object"}}, any_object),
        (
            {"response_format": {"type": "json_schema", "json_schema": named}},
            Grammar(GrammarKind.JSON_SCHEMA, '{"b":1,"a":2}'),
        ),
        ({"guided_json": {"type": "string"}}, Grammar(GrammarKind.JSON_SCHEMA, '{"type":"string"}')),
        ({"guided_json": '{ "a": [] }'}, Grammar(GrammarKind.JSON_SCHEMA, '{ "a": [] }')),
        ({"guided_regex": "a+"}, Grammar(GrammarKind.REGEX, "a+")),
        ({"guided_choice": ["a", "b"]}, Grammar(GrammarKind.CHOICE, choices=("a", "b"))),
        ({"guided_grammar": "start: X"}, Grammar(GrammarKind.LARK, "start: X")),
        ({"structured_outputs": {"json": {"a": []}}}, Grammar(GrammarKind.JSON_SCHEMA, '{"a":[]}')),
        ({"structured_outputs": {"regex": "a+"}}, Grammar(GrammarKind.REGEX, "a+")),
        ({"structured_outputs": {"choice": ["a"]}}, Grammar(GrammarKind.CHOICE, choices=("a",))),
        ({"structured_outputs": {"grammar": "start: X"}}, Grammar(GrammarKind.LARK, "start: X")),
        ({"structured_outputs": {"json_object": True}}, any_object),
        ({"json_schema": '{"type":"string"}'}, Grammar(GrammarKind.JSON_SCHEMA, '{"type":"string"}')),
        ({"regex": "a+"}, Grammar(GrammarKind.REGEX, "a+")),
        ({"ebnf": 'root ::= "a"'}, Grammar(GrammarKind.LARK, '%llguidance {}\n\nstart: "a"\n')),
    ]
    for fields, grammar in spellings:
        assert (await edge.client.post(PATH, messages=HI, **fields)).status == 200
        assert edge.service.requests[-1].sampling.grammar == grammar


async def test_the_last_text_comes_before_the_chunk_that_ends_its_choice(edge: HttpEdge) -> None:
    """T11"""
    *chunks, _ = await edge.client.stream(PATH, messages=HI, n=2)
    choices = [json.loads(chunk)["choices"][0] for chunk in chunks]
    ends = [choice for choice in choices if choice["finish_reason"] is not None]
    assert [choice["delta"] for choice in ends] == [{}, {}]
    assert {choice["index"]: choice for choice in choices} == {choice["index"]: choice for choice in ends}
