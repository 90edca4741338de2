"""API keys and cross-origin requests over HTTP."""

from collections.abc import AsyncIterator

import anthropic
import openai
import pytest

from master.edge.http.config import HttpConfig
from serving.keys import Keys
from tests.http_client import JSON
from tests.http_service import HttpEdge, HttpService, serving

CHAT = "/v1/chat/completions"
BODY = b'{"messages":[{"role":"user","content":"hi"}],"max_tokens":2}'
PAGE = "https://chat.example"


@pytest.fixture
async def guarded() -> AsyncIterator[HttpEdge]:
    async with serving(HttpService(), keys=Keys(["secret", "other"])) as running:
        yield running


@pytest.mark.parametrize(
    "headers",
    [{"authorization": "Bearer secret"}, {"Authorization": "bearer  other"}, {"x-api-key": "secret"}],
)
async def test_a_key_opens_the_api(guarded: HttpEdge, headers: dict[str, str]) -> None:
    assert (await guarded.client.send("POST", CHAT, BODY, {**JSON, **headers})).status == 200
    assert (await guarded.client.send("GET", "/v1/models", headers=headers)).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "secret"},
        {"authorization": "Basic secret"},
        {"authorization": "Bearer secre"},
        {"authorization": "Bearer"},
        {"x-api-key": "secret2"},
        {"api-key": "secret"},
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/v1/models", "/tokenize", "/no/such/path", "/admin/instances/decode-0/drain"])
async def test_without_a_key_nothing_is_served(guarded: HttpEdge, path: str, headers: dict[str, str]) -> None:
    for method in ("GET", "POST"):
        response = await guarded.client.send(method, path, BODY, {**JSON, **headers})
        assert response.status == 401
        assert response.headers["www-authenticate"] == "Bearer"
        assert response.error()["type"] == "authentication_error"
        assert "secret" not in response.text
    assert guarded.service.requests == [] and guarded.service.drained == []


async def test_anthropics_api_refuses_in_its_own_form(guarded: HttpEdge) -> None:
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        response = await guarded.client.send("POST", path, BODY)
        assert response.status == 401
        assert response.json()["type"] == "error"
        error = response.json()["error"]
        assert isinstance(error, dict) and error["type"] == "authentication_error"


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/health", "/metrics"])
async def test_health_and_metrics_need_no_key(guarded: HttpEdge, path: str) -> None:
    assert (await guarded.client.send("GET", path, headers={"authorization": "Bearer wrong"})).status == 200


async def test_the_body_is_not_waited_for(guarded: HttpEdge) -> None:
    connection = await guarded.client.open()
    connection.send_head("POST", CHAT, {**JSON, "content-length": "1000000"})
    head = await connection.read_until(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 401")
    connection.leave()


async def test_refusals_are_counted_under_known_names_only(guarded: HttpEdge) -> None:
    for path in (CHAT, "/made-up"):
        await guarded.client.send("POST", path, BODY)
    for endpoint in (CHAT, "other"):
        labels = {"endpoint": endpoint, "status": "401"}
        assert guarded.registry.get_sample_value("pdserve_http_requests_total", labels) == 1


async def test_official_clients_say_what_is_wrong(guarded: HttpEdge) -> None:
    http_client = openai.DefaultAsyncHttpxClient(trust_env=False)
    url = guarded.server.url
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="wrong", http_client=http_client) as client:
        with pytest.raises(openai.AuthenticationError):
            await client.models.list()
        assert (await client.with_options(api_key="secret").models.list()).data
    other = anthropic.DefaultAsyncHttpxClient(trust_env=False)
    async with anthropic.AsyncAnthropic(base_url=url, api_key="wrong", http_client=other) as claude:
        with pytest.raises(anthropic.AuthenticationError):
            await claude.messages.create(model="m", max_tokens=2, messages=[{"role": "user", "content": "hi"}])


async def test_without_keys_any_key_will_do() -> None:
    async with serving(HttpService()) as edge:
        assert (await edge.client.send("POST", CHAT, BODY, {**JSON, "authorization": "Bearer any"})).status == 200


def preflight(origin: str) -> dict[str, str]:
    return {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }


async def test_pages_of_an_allowed_origin_read_answers_and_streams_and_errors() -> None:
    async with serving(HttpService(), HttpConfig(cors_origins=(PAGE,)), Keys(["secret"])) as edge:
        allowed = await edge.client.send("OPTIONS", CHAT, headers=preflight(PAGE))
        assert allowed.status == 204
        assert allowed.headers["access-control-allow-origin"] == PAGE
        assert "POST" in allowed.headers["access-control-allow-methods"]
        assert "authorization" in allowed.headers["access-control-allow-headers"]
        headers = {**JSON, "origin": PAGE, "authorization": "Bearer secret"}
        stream = BODY.replace(b"{", b'{"stream":true,', 1)
        answers = [
            await edge.client.send("POST", CHAT, BODY, headers),
            await edge.client.send("POST", CHAT, stream, headers),
            await edge.client.send("POST", CHAT, b"{}", headers),
            await edge.client.send("POST", CHAT, BODY, {**headers, "authorization": "Bearer wrong"}),
            await edge.client.send("GET", "/v1/models", headers=headers),
            await edge.client.send("GET", "/nothing", headers=headers),
        ]
        assert [answer.status for answer in answers] == [200, 200, 400, 401, 200, 404]
        for answer in answers:
            assert answer.headers["access-control-allow-origin"] == PAGE
            assert answer.headers["vary"] == "origin"


async def test_pages_of_other_origins_get_no_leave() -> None:
    async with serving(HttpService(), HttpConfig(cors_origins=(PAGE,))) as edge:
        for origin in ("https://evil.example", PAGE + ".evil.example", "null"):
            assert (await edge.client.send("OPTIONS", CHAT, headers=preflight(origin))).status == 403
            answer = await edge.client.send("POST", CHAT, BODY, {**JSON, "origin": origin})
            assert "access-control-allow-origin" not in answer.headers
    async with serving(HttpService()) as edge:
        answer = await edge.client.send("OPTIONS", CHAT, headers=preflight(PAGE))
        assert "access-control-allow-origin" not in answer.headers


async def test_a_star_allows_every_origin() -> None:
    async with serving(HttpService(), HttpConfig(cors_origins=("*",))) as edge:
        answer = await edge.client.send("POST", CHAT, BODY, {**JSON, "origin": PAGE})
        assert answer.headers["access-control-allow-origin"] == "*"
        assert "access-control-allow-origin" not in (await edge.client.send("POST", CHAT, BODY)).headers
