from collections.abc import AsyncIterator

import anthropic
import openai
import pytest

from tests.http_service import HttpEdge, HttpService, official_client, serving


@pytest.fixture
async def edge() -> AsyncIterator[HttpEdge]:
    """The HTTP edge with its defaults, on a free port."""
    async with serving(HttpService()) as running:
        yield running


@pytest.fixture
async def official(edge: HttpEdge) -> AsyncIterator[openai.AsyncOpenAI]:
    async with official_client(edge) as client:
        yield client


@pytest.fixture
async def claude(edge: HttpEdge) -> AsyncIterator[anthropic.AsyncAnthropic]:
    """Anthropic's official client of `edge`, likewise."""
    http_client = anthropic.DefaultAsyncHttpxClient(trust_env=False)
    async with anthropic.AsyncAnthropic(
        base_url=edge.server.url, api_key="any", max_retries=0, http_client=http_client
    ) as client:
        yield client
