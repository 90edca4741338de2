"""What clients of other servers probe before they ask anything."""

from importlib.metadata import version

import anthropic
import pytest

from master.edge.http.config import HttpConfig
from tests.http_service import MAX_CONTEXT, MODEL, HttpEdge, HttpService, serving

HI = [{"role": "user", "content": "hi"}]


async def test_version_load_and_server_info_are_there(edge: HttpEdge) -> None:
    """A4"""
    for path in ("/", "/version"):
        assert (await edge.client.get(path)).json() == {"version": version("pdserve")}
    assert (await edge.client.get("/load")).json() == {"server_load": 0}
    info = (await edge.client.get("/server_info")).json()
    assert (info["model"], info["max_model_len"]) == (MODEL, MAX_CONTEXT)


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_ping_has_the_status_of_readyz(edge: HttpEdge, method: str) -> None:
    assert (await edge.client.send(method, "/ping")).status == 200
    edge.service.reason = "no decode worker"
    assert (await edge.client.send(method, "/ping")).status == 503


async def test_the_tokenizer_is_shown_only_where_a_flag_allows_it(edge: HttpEdge) -> None:
    """A4"""
    response = await edge.client.get("/tokenizer_info")
    assert response.status == 404 and "--enable_tokenizer_info" in response.error()["message"]
    async with serving(HttpService(), HttpConfig(shows_tokenizer=True)) as shown:
        info = (await shown.client.get("/tokenizer_info")).json()
    assert info["vocab_size"] == shown.service.tokenizer.vocab_size
    assert info["chat_template"] == shown.service.chat_template.source


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/score", "/score", "/v1/rerank", "/v2/rerank", "/rerank"])
async def test_apis_of_other_models_are_refused_and_told_why(edge: HttpEdge, path: str) -> None:
    response = await edge.client.post(path, model=MODEL, input="text")
    assert (response.status, response.error()["param"]) == (400, "model")
    assert "it generates text" in response.error()["message"]


async def test_head_and_options_are_answered_where_clients_probe(edge: HttpEdge) -> None:
    for path in ("/", "/v1/models", "/health"):
        connection = await edge.client.open()
        connection.send_head("HEAD", path, {})
        assert b" 200 " in await connection.read_until(b"\r\n\r\n"), path
        connection.leave()
    for path, allowed in [("/v1/models", "GET"), ("/v1/chat/completions", "POST")]:
        response = await edge.client.send("OPTIONS", path)
        assert (response.status, allowed in response.headers["allow"]) == (204, True), path


async def test_a_path_may_end_in_a_slash_and_a_body_begin_with_a_byte_order_mark(edge: HttpEdge) -> None:
    """T10"""
    assert (await edge.client.post("/v1/chat/completions/", messages=HI)).status == 200
    assert (await edge.client.get("/livez/")).status == 200
    body = b'\xef\xbb\xbf{"prompt": "a", "max_tokens": 1}'
    response = await edge.client.send("POST", "/v1/completions", body, {"content-type": "application/json"})
    assert response.status == 200, response.text


async def test_anthropics_client_lists_models_in_its_own_form(claude: anthropic.AsyncAnthropic) -> None:
    """A13: with all that the client's own type demands."""
    page = await claude.models.list()
    assert [(model.type, model.id) for model in page.data] == [("model", MODEL), ("model", "alias")]
    assert not page.has_more
    for model in page.data:
        anthropic.types.ModelInfo.model_validate(model.model_dump())
    assert (await claude.models.retrieve("alias")).display_name == "alias"


async def test_a_model_names_what_it_stands_for(edge: HttpEdge) -> None:
    """A8"""
    card = (await edge.client.get("/v1/models/alias")).json()
    assert (card["root"], card["parent"]) == (MODEL, None)
    assert (await edge.client.post("/tokenize", prompt="a")).json()["token_strs"] is None


async def test_metrics_are_open_metrics_for_who_asks(edge: HttpEdge) -> None:
    """A13"""
    asked = {"accept": "application/openmetrics-text; version=1.0.0"}
    response = await edge.client.send("GET", "/metrics", headers=asked)
    assert response.headers["content-type"].startswith("application/openmetrics-text")
    assert response.text.endswith("# EOF\n")
