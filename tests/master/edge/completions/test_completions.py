import json

import openai
import pytest

from master.edge.http.config import HttpConfig
from tests.http_service import MODEL, REPLY, HttpEdge, HttpService, serving

PATH = "/v1/completions"


async def test_a_response_has_openais_form(official: openai.AsyncOpenAI) -> None:
    answer = await official.completions.create(model=MODEL, prompt="hi", max_tokens=50)
    assert answer.object == "text_completion" and answer.id.startswith("cmpl-") and answer.model == MODEL
    (choice,) = answer.choices
    assert (choice.index, choice.text, choice.finish_reason, choice.logprobs) == (0, REPLY, "stop", None)
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (2, 23, 25)


async def test_a_stream_has_openais_form(official: openai.AsyncOpenAI) -> None:
    stream = await official.completions.create(
        model=MODEL, prompt="hi", max_tokens=50, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = [chunk async for chunk in stream]
    assert len({(chunk.id, chunk.created, chunk.model, chunk.object) for chunk in [*chunks, last]}) == 1
    assert "".join(chunk.choices[0].text for chunk in chunks) == REPLY
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [*[None] * (len(chunks) - 1), "stop"]
    assert last.choices == [] and last.usage is not None and last.usage.completion_tokens == 23


async def test_max_tokens_is_16_unless_set_or_the_context_leaves_less(edge: HttpEdge) -> None:
    answer = (await edge.client.post(PATH, prompt="hi")).json()
    assert edge.service.requests[-1].sampling.max_tokens == 16
    choices = answer["choices"]
    assert isinstance(choices, list) and choices[0]["finish_reason"] == "length"
    assert (await edge.client.post(PATH, prompt=[9] * 1995)).status == 200
    assert edge.service.requests[-1].sampling.max_tokens == 5
    refused = await edge.client.post(PATH, prompt=[9] * 2000)
    assert (refused.status, refused.error()["code"]) == (400, "context_length_exceeded")
    assert "2000 tokens" in refused.error()["message"]


async def test_a_prompt_may_be_text_ids_or_a_list_of_either(edge: HttpEdge) -> None:
    encode = edge.service.tokenizer.encode
    hi, ho = encode("hi", add_special_tokens=False), encode("ho", add_special_tokens=False)
    for prompt, ids in [("hi", [hi]), (["hi", "ho"], [hi, ho]), (hi, [hi]), ([hi, ho], [hi, ho])]:
        edge.service.requests.clear()
        assert (await edge.client.post(PATH, prompt=prompt)).status == 200
        assert sorted(request.prompt_ids for request in edge.service.requests) == sorted(map(tuple, ids))


@pytest.mark.parametrize("stream", [False, True])
async def test_choices_are_numbered_by_prompt_and_sample(official: openai.AsyncOpenAI, stream: bool) -> None:
    prompts = ["a", "b", "c"]
    if stream:
        chunks = await official.completions.create(model=MODEL, prompt=prompts, n=2, echo=True, stream=True)
        texts: dict[int, str] = {}
        async for chunk in chunks:
            for choice in chunk.choices:
                texts[choice.index] = texts.get(choice.index, "") + choice.text
    else:
        answer = await official.completions.create(model=MODEL, prompt=prompts, n=2, echo=True)
        assert [choice.index for choice in answer.choices] == [0, 1, 2, 3, 4, 5]
        texts = {choice.index: choice.text for choice in answer.choices}
        assert answer.usage is not None
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 16 * 6)
    assert [texts[index][0] for index in range(6)] == ["a", "a", "b", "b", "c", "c"]
    assert len(set(text[1:] for text in texts.values())) == 1


@pytest.mark.parametrize("echo", [False, True])
async def test_logprobs_run_parallel_to_the_text(official: openai.AsyncOpenAI, echo: bool) -> None:
    answer = await official.completions.create(model=MODEL, prompt="hí", logprobs=2, max_tokens=50, echo=echo)
    (choice,) = answer.choices
    logprobs = choice.logprobs
    assert logprobs is not None
    tokens, offsets = logprobs.tokens or [], logprobs.text_offset or []
    num_prompt = 3 if echo else 0
    assert choice.text == ("hí" if echo else "") + REPLY
    assert len(tokens) == len(offsets) == len(logprobs.token_logprobs or []) == 23 + num_prompt
    assert len(logprobs.top_logprobs or []) == len(tokens)
    if echo:
        assert tokens[:3] == ["h", "bytes:\\xc3", "bytes:\\xad"]
        assert (logprobs.token_logprobs or [])[0] is None
    for token, offset in zip(tokens, offsets, strict=True):
        if not token.startswith("bytes:"):
            assert choice.text[offset:].startswith(token)
    assert (logprobs.top_logprobs or [])[num_prompt] == {"H": -1, ")": -3}


@pytest.mark.parametrize("echo", [False, True])
async def test_streamed_logprobs_are_those_of_the_response(edge: HttpEdge, echo: bool) -> None:
    answer = (await edge.client.post(PATH, prompt="hi", logprobs=1, echo=echo, n=2)).json()
    *chunks, _ = await edge.client.stream(PATH, prompt="hi", logprobs=1, echo=echo, n=2)
    choices = answer["choices"]
    assert isinstance(choices, list)
    for whole in choices:
        parts = [
            choice["logprobs"]
            for chunk in chunks
            for choice in json.loads(chunk)["choices"]
            if choice["index"] == whole["index"] and choice["finish_reason"] is None
        ]
        for name, values in whole["logprobs"].items():
            assert [value for part in parts for value in part[name]] == values


async def test_an_echoed_prompt_of_ids_is_decoded(edge: HttpEdge) -> None:
    ids = edge.service.tokenizer.encode("hi 你", add_special_tokens=False)
    answer = (await edge.client.post(PATH, prompt=ids, echo=True, max_tokens=1)).json()
    unasked = "logprobs stop_reason matched_stop prompt_logprobs token_ids prompt_token_ids"  # A8
    expected = {"index": 0, "text": "hi 你H", "finish_reason": "length", **dict.fromkeys(unasked.split())}
    assert answer["choices"] == [expected]
    *chunks, _ = await edge.client.stream(PATH, prompt=ids, echo=True, max_tokens=2)
    assert [json.loads(chunk)["choices"][0]["text"] for chunk in chunks] == ["hi 你H", "e", ""]


async def test_an_echo_of_ids_is_the_prompt_as_given(edge: HttpEdge) -> None:
    """A9: with its special tokens, streamed too; the offsets count them."""
    bos, *ids = 0, *edge.service.tokenizer.encode("hi", add_special_tokens=False)
    asked = {"prompt": [bos, *ids, bos], "echo": True, "logprobs": 0, "max_tokens": 2}
    (choice,) = (await edge.client.post(PATH, **asked)).list_of("choices")
    assert choice["text"] == "<s>hi<s>He"
    assert choice["logprobs"]["tokens"] == ["<s>", "h", "i", "<s>", "H", "e"]
    assert choice["logprobs"]["text_offset"] == [0, 3, 4, 5, 8, 9]
    *chunks, _ = await edge.client.stream(PATH, **asked)
    streamed = [json.loads(chunk)["choices"][0] for chunk in chunks]
    assert "".join(part["text"] for part in streamed) == choice["text"]
    offsets = [offset for part in streamed[:-1] for offset in part["logprobs"]["text_offset"]]
    assert offsets == choice["logprobs"]["text_offset"]


async def test_tokens_are_named_by_their_ids_when_asked(edge: HttpEdge) -> None:
    """A6"""
    asked = {"prompt": "hi", "echo": True, "logprobs": 1, "max_tokens": 1, "return_tokens_as_token_ids": True}
    (choice,) = (await edge.client.post(PATH, **asked, return_token_ids=True)).list_of("choices")
    ids = [f"token_id:{token_id}" for token_id in (*choice["prompt_token_ids"], *choice["token_ids"])]
    assert choice["logprobs"]["tokens"] == ids
    assert choice["logprobs"]["top_logprobs"][-1] == {ids[-1]: -1, "token_id:10": -3}
    assert choice["text"] == "hiH"


async def test_a_usage_sent_all_along_has_cached_tokens_and_arrival_times(edge: HttpEdge) -> None:
    """A5"""
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, last, _ = await edge.client.stream(PATH, prompt="hi", stream_options=options, collect_metrics=True)
    decoded = [json.loads(chunk) for chunk in chunks]
    assert {chunk["usage"]["prompt_tokens_details"]["cached_tokens"] for chunk in decoded} == {3}
    arrivals = [chunk["choices"][0]["arrival_time"] for chunk in decoded]
    assert arrivals == sorted(arrivals) and arrivals[0] >= 0
    assert json.loads(last)["metrics"].keys() >= {"arrival_time", "inference_start_time"}


async def test_a_seed_may_be_negative(edge: HttpEdge) -> None:
    assert (await edge.client.post(PATH, prompt="hi", seed=-5)).status == 200
    assert edge.service.requests[0].sampling.seed == -5


async def test_the_best_of_several_have_the_best_mean_logprob(edge: HttpEdge) -> None:
    answer = (await edge.client.post(PATH, prompt="hi", best_of=4, n=2, max_tokens=3, return_token_ids=True)).json()
    assert edge.service.requests[0].n == 4 and edge.service.requests[0].sampling.logprobs == 0
    choices = answer["choices"]
    assert isinstance(choices, list)
    assert [(choice["index"], choice["logprobs"]) for choice in choices] == [(0, None), (1, None)]
    assert answer["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": 12,
        "total_tokens": 14,
        "prompt_tokens_details": {"cached_tokens": 3},
    }
    with_logprobs = (await edge.client.post(PATH, prompt="hi", best_of=3, logprobs=0, max_tokens=1)).json()
    choices = with_logprobs["choices"]
    assert isinstance(choices, list)
    assert [choice["logprobs"]["token_logprobs"] for choice in choices] == [[-1 / 3]]


async def test_prompt_logprobs_are_each_choices(edge: HttpEdge) -> None:
    answer = (await edge.client.post(PATH, prompt=["hi", "ho"], prompt_logprobs=0)).json()
    choices = answer["choices"]
    assert isinstance(choices, list)
    for choice in choices:
        first, second = choice["prompt_logprobs"]
        assert first is None and next(iter(second.values()))["decoded_token"] in ("i", "o")


async def test_special_tokens_are_added_unless_not_wanted() -> None:
    async with serving(HttpService(adds_bos=True), HttpConfig()) as edge:
        for wanted, first in [(True, 0), (False, 73), (None, 0)]:
            assert (await edge.client.post(PATH, prompt="hi", add_special_tokens=wanted)).status == 200
            assert edge.service.requests[-1].prompt_ids[0] == first
        # nothing but the token that begins a text is a prompt, too
        assert (await edge.client.post(PATH, prompt="")).status == 200
        assert edge.service.requests[-1].prompt_ids == (0,)
        assert (await edge.client.post(PATH, prompt=[""])).status == 200


async def test_an_empty_prompt_is_refused_and_the_server_goes_on(edge: HttpEdge) -> None:
    prompts: list[object] = ["", [""], [], [[]], ["a", ""], [[1], []], None]
    for prompt in prompts:
        refused = await edge.client.post(PATH, prompt=prompt)
        assert (refused.status, refused.error()["param"]) == (400, "prompt"), prompt
    assert edge.service.requests == []
    assert (await edge.client.post(PATH, prompt="hi")).status == 200


async def test_a_prompt_that_is_no_prompt_is_refused(edge: HttpEdge) -> None:
    wrong_values: list[object] = [[-1], [300], [[1], [-1]], ["a", 1], [1, "a"], [[1], "a"], [[1], 1], ["a"] * 257]
    for prompt in wrong_values:
        refused = await edge.client.post(PATH, prompt=prompt)
        assert (refused.status, refused.error()["param"]) == (400, "prompt"), prompt
    wrong_types: list[object] = [5, {"a": 1}, True, [True], [1.5], [None], [[True]], [["a"]]]
    for prompt in wrong_types:
        refused = await edge.client.post(PATH, prompt=prompt)
        assert refused.status == 400 and refused.error()["param"].startswith("prompt"), prompt


async def test_what_a_completion_cannot_do_is_refused(edge: HttpEdge) -> None:
    cases: list[tuple[str, dict[str, object]]] = [
        ("suffix", {"suffix": "end"}),
        ("best_of", {"best_of": 1, "n": 2}),
        ("best_of", {"best_of": 0}),
        ("best_of", {"best_of": 129}),
        ("best_of", {"best_of": 2, "stream": True}),
        ("n", {"n": 128, "prompt": ["a"] * 9}),
        ("logprobs", {"logprobs": 21}),
        ("logprobs", {"logprobs": True}),
        ("prompt_logprobs", {"prompt_logprobs": 1, "stream": True}),
        ("stream_options", {"stream_options": {"include_usage": True}}),
    ]
    for field, fields in cases:
        refused = await edge.client.post(PATH, **{"prompt": "hi", **fields})
        assert (refused.status, refused.error()["param"]) == (400, field), fields
    assert (await edge.client.post(PATH, prompt="hi", suffix="")).status == 200
    assert (await edge.client.post(PATH, prompt="hi", best_of=1, stream=True)).status == 200


async def test_the_last_text_comes_before_the_chunk_that_ends_its_choice(edge: HttpEdge) -> None:
    """T11"""
    *chunks, _ = await edge.client.stream(PATH, prompt="hi", max_tokens=64)
    choices = [json.loads(chunk)["choices"][0] for chunk in chunks]
    assert "".join(choice["text"] for choice in choices[:-1]) == REPLY
    assert (choices[-1]["text"], choices[-1]["finish_reason"]) == ("", "stop")
