"""Everything but generation: models, health, metrics, tokens, and what is not there."""

import openai
import pytest

from master.service import InstanceView
from tests.http_service import MAX_CONTEXT, MODEL, REPLY, HttpEdge

HI = [{"role": "user", "content": "hi"}]


async def test_models_are_listed_with_their_context(edge: HttpEdge, official: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in official.models.list()] == [MODEL, "alias"]
    model = await official.models.retrieve(MODEL)  # its name has a slash
    assert (model.id, model.object, model.owned_by, model.created) == (MODEL, "model", "pdserve", 1_700_000_000)
    card = (await edge.client.get("/v1/models/alias")).json()
    assert (card["max_model_len"], card["context_length"]) == (MAX_CONTEXT, MAX_CONTEXT)
    missing = await edge.client.get("/v1/models/gpt-9")
    assert (missing.status, missing.error()["code"]) == (404, "model_not_found")


async def test_ready_is_what_the_service_says_and_alive_is_always(edge: HttpEdge) -> None:
    for reason, status in [(None, 200), ("no decode worker", 503), (None, 200)]:
        edge.service.reason = reason
        for path in ("/health", "/readyz"):
            response = await edge.client.get(path)
            assert response.status == status
            if reason is None:
                assert response.json() == {"status": "ready"}
            else:
                assert response.json() == {"status": "not ready", "reason": reason}
                assert response.headers["retry-after"] == "1"
        assert (await edge.client.get("/livez")).status == 200


async def test_paths_and_methods_that_are_not_there_are_told_in_openais_form(edge: HttpEdge) -> None:
    for method, path in [("GET", "/no"), ("GET", "/v1/models/gpt/"), ("POST", "/v1/chat"), ("GET", "//livez")]:
        response = await edge.client.send(method, path)
        assert response.status == 404 and response.error()["type"] == "invalid_request_error", path
    wrong = [
        ("GET", "/v1/chat/completions"),
        ("DELETE", "/v1/completions"),
        ("POST", "/v1/models"),
        ("GET", "/tokenize"),
    ]
    for method, path in wrong:
        response = await edge.client.send(method, path)
        assert response.status == 405 and response.error()["type"] == "invalid_request_error", path
        assert response.headers["allow"] and path in response.error()["message"]


async def test_metrics_count_requests_tokens_and_times(edge: HttpEdge) -> None:
    chat = "/v1/chat/completions"
    assert (await edge.client.post(chat, messages=HI)).status == 200
    await edge.client.stream(chat, messages=HI, n=2)
    assert (await edge.client.post(chat, messages=[])).status == 400
    assert (await edge.client.get("/made-up/path")).status == 404
    value = edge.registry.get_sample_value
    assert value("pdserve_http_requests_total", {"endpoint": chat, "status": "200"}) == 2
    assert value("pdserve_http_requests_total", {"endpoint": chat, "status": "400"}) == 1
    assert value("pdserve_http_requests_total", {"endpoint": "other", "status": "404"}) == 1
    for name, count in [("prompt_tokens", 40), ("completion_tokens", 23 + 46), ("cached_tokens", 6)]:
        assert value(f"pdserve_{name}_total", {"endpoint": chat}) == count
    for name, count in [("ttft", 2), ("e2e_latency", 2), ("tpot", 2), ("itl", 22)]:  # only a stream has gaps
        assert value(f"pdserve_{name}_seconds_count", {"endpoint": chat}) == count
    response = await edge.client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    assert "pdserve_ttft_seconds_bucket" in response.text and "made-up" not in response.text


async def test_text_is_tokenised_and_back(edge: HttpEdge) -> None:
    tokenizer = edge.service.tokenizer
    answer = (await edge.client.post("/tokenize", prompt=REPLY, return_token_strs=True)).json()
    ids = tokenizer.encode(REPLY, add_special_tokens=True)
    assert answer == {
        "tokens": ids,
        "count": len(ids),
        "max_model_len": MAX_CONTEXT,
        "token_strs": [tokenizer.token_text(token_id) for token_id in ids],
    }
    assert (await edge.client.post("/detokenize", tokens=ids)).json() == {"prompt": REPLY}
    assert (await edge.client.post("/detokenize", tokens=[])).json() == {"prompt": ""}


async def test_messages_are_tokenised_as_a_chat_would_be(edge: HttpEdge) -> None:
    tokens = (await edge.client.post("/tokenize", messages=HI)).json()["tokens"]
    await edge.client.post("/v1/chat/completions", messages=HI)
    assert tokens == list(edge.service.requests[0].prompt_ids)


async def test_long_texts_are_tokenised_as_short_ones(edge: HttpEdge) -> None:
    """They go to a thread."""
    text = "fox " * 5000
    ids = edge.service.tokenizer.encode(text, add_special_tokens=False)
    assert (await edge.client.post("/tokenize", prompt=text)).json()["tokens"] == ids
    response = await edge.client.post("/tokenize", messages=[{"role": "user", "content": text}])
    assert response.json()["count"] == len(edge.service.tokenizer.encode(f"<s>[user]{text}\n[assistant]", False))
    response = await edge.client.post("/v1/chat/completions", messages=[{"role": "user", "content": text}])
    assert response.error()["code"] == "context_length_exceeded"


async def test_bad_tokenise_requests_are_refused(edge: HttpEdge) -> None:
    bodies: list[tuple[str, str, dict[str, object]]] = [
        ("/tokenize", "prompt", {}),
        ("/tokenize", "prompt", {"prompt": "a", "messages": HI}),
        ("/tokenize", "prompt", {"prompt": 5}),
        ("/tokenize", "messages", {"messages": []}),
        ("/detokenize", "tokens", {"tokens": [-1]}),
        ("/detokenize", "tokens", {"tokens": [300]}),
        ("/detokenize", "tokens[0]", {"tokens": ["a"]}),
    ]
    for path, param, body in bodies:
        response = await edge.client.post(path, **body)
        assert (response.status, response.error()["param"]) == (400, param), body


async def test_a_bug_is_a_server_error_that_tells_no_secret(edge: HttpEdge, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> list[InstanceView]:
        raise KeyError("secret")

    monkeypatch.setattr(edge.service, "instances", broken)
    response = await edge.client.get("/server_info")
    assert response.status == 500 and response.error()["type"] == "server_error" and "secret" not in response.text
