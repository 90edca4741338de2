"""The edge does what /openapi.json says, whatever is sent: schemathesis asks, the answers must conform."""

import asyncio
import json
import os
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from prometheus_client import CollectorRegistry
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from master.edge.http.config import HttpConfig
from master.edge.http.metrics import HttpMetrics
from master.edge.openapi import document
from master.edge.post_routes import post_routes
from master.edge.responses.store import ResponseStore
from tests.http_service import HttpService, serving

TIMEOUT_S = 30.0
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Where an edge listens that runs on a thread of its own, while tests block."""
    started: Future[str] = Future()
    loop = asyncio.new_event_loop()
    ending = asyncio.Event()

    async def run() -> None:
        service = HttpService()
        service.running_ids.add("chatcmpl-1")
        async with serving(service) as edge:
            started.set_result(edge.server.url)
            await ending.wait()

    os.environ.setdefault("NO_PROXY", "127.0.0.1")
    thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    yield started.result(TIMEOUT_S)
    loop.call_soon_threadsafe(ending.set)
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()
    loop.close()


def test_it_is_served(url: str) -> None:
    with urllib.request.urlopen(f"{url}/openapi.json", timeout=TIMEOUT_S) as response:
        assert json.load(response) == json.loads(json.dumps(document()))


schema = schemathesis.openapi.from_dict(document())


@schema.parametrize()
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_answers_are_as_described(case: "schemathesis.Case[Any]", url: str) -> None:
    case.call_and_validate(base_url=url, checks=CHECKS, timeout=TIMEOUT_S)


HI = [{"role": "user", "content": "hi"}]
GOOD: list[tuple[str, Any]] = [
    ("/v1/chat/completions", {"messages": HI}),
    ("/v1/chat/completions", {"messages": HI, "stream": True}),
    ("/v1/chat/completions", {"messages": HI, "n": 2, "logprobs": True, "return_token_ids": True, "timeline": True}),
    ("/v1/completions", {"prompt": ["a", "b"], "logprobs": 1, "timeline": True, "max_tokens": 3}),
    ("/v1/completions", {"prompt": "a", "stream": True}),
    ("/v1/responses", {"input": "hi"}),
    ("/v1/responses", {"input": "hi", "stream": True}),
    ("/v1/messages", {"max_tokens": 3, "messages": HI}),
    ("/v1/messages", {"max_tokens": 3, "messages": HI, "stream": True}),
    ("/v1/messages/count_tokens", {"messages": HI}),
    ("/tokenize", {"prompt": "a", "return_token_strs": True}),
    ("/detokenize", {"tokens": [1, 2]}),
]


@pytest.mark.parametrize(("path", "body"), GOOD)
def test_good_answers_are_as_described(path: str, body: Any, url: str) -> None:
    """Which random bodies seldom get."""
    case = schema[path]["post"].Case(body=body, media_type="application/json")
    response = case.call_and_validate(base_url=url, checks=CHECKS, timeout=TIMEOUT_S)
    assert response.status_code == 200
    is_stream = response.headers["content-type"][0].startswith("text/event-stream")
    assert is_stream is bool(body.get("stream"))


def test_paths_with_parameters_answer_as_described(url: str) -> None:
    cases = [
        schema["/v1/models/{model}"]["get"].Case(path_parameters={"model": "alias"}),
        schema["/v1/requests/{id}/cancel"]["post"].Case(path_parameters={"id": "chatcmpl-1"}),
        schema["/admin/instances/{name}/drain"]["post"].Case(path_parameters={"name": "decode-0"}),
    ]
    for case in cases:
        assert case.call_and_validate(base_url=url, checks=CHECKS, timeout=TIMEOUT_S).status_code == 200


def test_every_post_is_described() -> None:
    service = HttpService()
    paths = document()["paths"]
    assert isinstance(paths, dict)
    for path in post_routes(service, HttpConfig(), HttpMetrics(CollectorRegistry()), ResponseStore(0, 1.0)):
        assert "post" in paths[path], path
