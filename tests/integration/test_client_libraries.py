"""Libraries that others build on these APIs, on a running cluster. One that is not installed is skipped by its name."""

import asyncio
from typing import Literal

import pytest
from pydantic import BaseModel, ConfigDict

from tests.cluster import Cluster

ASK = "Which zone?"
LONG = "fox " * 20_000
NUM_TOKENS = 80  # more than a call or an object of these takes


class Zone(BaseModel):
    """A time zone."""

    model_config = ConfigDict(extra="forbid")
    zone: Literal["utc", "cet"]


@pytest.fixture(autouse=True)
def environ(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but the cluster is reached: no proxy, no price list, no tracing."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("OPENAI_BASE_URL", f"{cluster.http_url}/v1")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", cluster.http_url)
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, "any")
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", "1")


@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
def test_langchain_streams_calls_and_parses(cluster: Cluster, api: str) -> None:
    if api == "messages":
        library = pytest.importorskip("langchain_anthropic")
        model = library.ChatAnthropic(model=cluster.model, max_tokens=NUM_TOKENS, max_retries=0, temperature=0)
    else:
        library = pytest.importorskip("langchain_openai")
        is_new = api == "responses"
        model = library.ChatOpenAI(
            model=cluster.model, max_tokens=NUM_TOKENS, max_retries=0, use_responses_api=is_new, temperature=0
        )
    whole = model.invoke(ASK)
    assert whole.text and 0 < whole.usage_metadata["output_tokens"] <= NUM_TOKENS
    assert len(list(model.stream(ASK))) > 2
    caller = model.bind_tools([Zone], tool_choice="any")
    (call,) = caller.invoke(ASK).tool_calls
    chunks = list(caller.stream(ASK))
    (streamed,) = sum(chunks[1:], chunks[0]).tool_calls
    for name, arguments in ((call["name"], call["args"]), (streamed["name"], streamed["args"])):
        assert name == "Zone" and Zone(**arguments)
    assert isinstance(model.with_structured_output(Zone, method="json_schema").invoke(ASK), Zone)


def test_litellm_streams_calls_and_knows_a_full_context(cluster: Cluster) -> None:
    """A1"""
    litellm = pytest.importorskip("litellm")
    function = {"name": "zone", "parameters": Zone.model_json_schema()}
    asked = {
        "model": f"openai/{cluster.model}",
        "api_base": f"{cluster.http_url}/v1",
        "messages": [{"role": "user", "content": ASK}],
        "max_tokens": NUM_TOKENS,
        "temperature": 0,
    }
    whole = litellm.completion(**asked).choices[0]
    streamed = litellm.stream_chunk_builder(list(litellm.completion(**asked, stream=True))).choices[0]
    assert (streamed.message.content, streamed.finish_reason) == (whole.message.content, whole.finish_reason)
    called = litellm.completion(**asked, tools=[{"type": "function", "function": function}], tool_choice="required")
    assert Zone.model_validate_json(called.choices[0].message.tool_calls[0].function.arguments)
    for more in ({"max_tokens": 10**7}, {"messages": [{"role": "user", "content": LONG}]}):
        with pytest.raises(litellm.ContextWindowExceededError):
            litellm.completion(**{**asked, **more})


@pytest.mark.parametrize("mode", ["TOOLS", "JSON_SCHEMA"])
def test_instructor_gets_an_object(cluster: Cluster, mode: str) -> None:
    instructor = pytest.importorskip("instructor")
    openai = pytest.importorskip("openai")
    client = instructor.from_openai(openai.OpenAI(max_retries=0), mode=instructor.Mode[mode])
    zone = client.chat.completions.create(
        model=cluster.model,
        messages=[{"role": "user", "content": ASK}],
        max_tokens=NUM_TOKENS,
        temperature=0,
        response_model=Zone,
        max_retries=1,
    )
    assert isinstance(zone, Zone)


@pytest.mark.parametrize("api", ["openai-chat", "openai-responses", "anthropic"])
def test_pydantic_ai_streams_and_gets_an_object(cluster: Cluster, api: str) -> None:
    library = pytest.importorskip("pydantic_ai")
    model = f"{api}:{cluster.model}"
    settings = {"max_tokens": NUM_TOKENS, "temperature": 0.0}

    async def run() -> None:
        assert isinstance((await library.Agent(model, output_type=Zone, model_settings=settings).run(ASK)).output, Zone)
        async with library.Agent(model, model_settings=settings).run_stream(ASK) as stream:
            assert [delta async for delta in stream.stream_text(delta=True)]

    asyncio.run(run())


@pytest.mark.parametrize("api", ["OpenAIChatCompletionsModel", "OpenAIResponsesModel"])
def test_an_agent_of_openais_calls_its_tool(cluster: Cluster, api: str) -> None:
    agents = pytest.importorskip("agents")
    openai = pytest.importorskip("openai")

    def tell(zone: Literal["utc", "cet"]) -> str:
        """The time there."""
        return f"noon in {zone}"

    async def run() -> str:
        async with openai.AsyncOpenAI(max_retries=0) as client:
            agent = agents.Agent(
                name="clock",
                model=getattr(agents, api)(model=cluster.model, openai_client=client),
                model_settings=agents.ModelSettings(max_tokens=NUM_TOKENS, temperature=0, tool_choice="required"),
                tools=[agents.function_tool(tell)],
                tool_use_behavior="stop_on_first_tool",
            )
            return str((await agents.Runner.run(agent, ASK)).final_output)

    assert asyncio.run(run()) in ("noon in utc", "noon in cet")


def test_llama_index_streams_and_completes(cluster: Cluster) -> None:
    library = pytest.importorskip("llama_index.llms.openai_like")
    place = {"model": cluster.model, "api_base": f"{cluster.http_url}/v1", "api_key": "any"}
    chat = library.OpenAILike(**place, is_chat_model=True, max_tokens=NUM_TOKENS, temperature=0)
    assert len(list(chat.stream_complete(ASK))) > 2
    assert library.OpenAILike(**place, is_chat_model=False, max_tokens=NUM_TOKENS).complete(ASK).text
