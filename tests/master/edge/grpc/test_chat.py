import grpc
import pytest

from master.text.text_pool import MAX_IN_LOOP
from protos import inference_pb2 as wire
from protos.inference_pb2_grpc import InferenceStub
from tests.grpc_calls import all_of, failure_of, metadata_of
from tests.scripted_service import MAX_CONTEXT, ScriptedService

TIMEOUT_S = 30.0
TOOLS = """[{"type": "function", "function": {"name": "add", "parameters": {"properties": {"a": {"type": "integer"}}}}},
            {"type": "function", "function": {"name": "sub"}}]"""


def chat(*contents: str, **fields: object) -> wire.ChatRequest:
    return wire.ChatRequest(messages=[wire.ChatMessage(role="user", content=text) for text in contents], **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("request_", "prompt"),
    [
        (chat("hello", "you"), "<user>hello<user>you<assistant>"),
        (chat("hello", add_generation_prompt=False), "<user>hello"),
        (chat("hello", continue_final_message=True), "<user>hello"),
        (chat("hello", tools_json=TOOLS), "<user>hello[2 tools]<assistant>"),
        (chat("hello", tools_json=TOOLS, tool_choice_json='"none"'), "<user>hello<assistant>"),
        (chat("hello", chat_template_kwargs_json='{"suffix": "!"}'), "<user>hello!<assistant>"),
        (chat("hello" * MAX_IN_LOOP), f"<user>{'hello' * MAX_IN_LOOP}<assistant>"),
    ],
)
async def test_a_chat_goes_through_the_template(
    inference: InferenceStub, service: ScriptedService, request_: wire.ChatRequest, prompt: str
) -> None:
    request_.options.sampling.max_tokens = 1
    await all_of(inference.Chat(request_, timeout=TIMEOUT_S))
    assert service.requests[0].prompt_ids == tuple(service.tokenizer.encode(prompt, add_special_tokens=False))


@pytest.mark.parametrize(
    ("request_", "field", "words"),
    [
        (wire.ChatRequest(), "messages", "empty"),
        (wire.ChatRequest(messages=[wire.ChatMessage(content="hello")]), "messages[0].role", "empty"),
        (
            wire.ChatRequest(messages=[wire.ChatMessage(role="critic", content="hm")]),
            "messages",
            "critics are not welcome",
        ),
        (
            wire.ChatRequest(messages=[wire.ChatMessage(role="assistant", tool_calls_json="{}")]),
            "messages[0].tool_calls_json",
            "array",
        ),
        (chat("hello", tools_json="{"), "tools_json", "JSON"),
        (chat("hello", tools_json="[1]"), "tools_json", "array of objects"),
        (chat("hello", tools_json="[" * 100_000), "tools_json", "JSON"),
        (chat("hello", tools_json='[{"type": "function"}]'), "tools[0].function", "missing"),
        (chat("hello", tools_json=TOOLS.replace("sub", "add")), "tools[1].function.name", "'add'"),
        (chat("hello", tools_json="[" + '{"a":' * 99 + "1" + "}" * 99 + "]"), "tools[0]", "nested"),
        (chat("hello", tool_choice_json="required"), "tool_choice_json", "JSON"),
        (chat("hello", tool_choice_json='"required"'), "tool_choice", "no tools"),
        (chat("hello", tool_choice_json="7", tools_json=TOOLS), "tool_choice", "7"),
        (chat("hello", tool_choice_json='"required"', tools_json=TOOLS), "tool_choice", "tool_call_parser is none"),
        (chat("hello", chat_template_kwargs_json="[]"), "chat_template_kwargs_json", "object"),
        (chat("hello", chat_template_kwargs_json='{"tools": []}'), "messages", "chat_template_kwargs"),
        (chat("hello", add_generation_prompt=True, continue_final_message=True), "messages", "exclude"),
        (chat("hello", chat_template_kwargs_json='{"suffix": "\\ud800"}'), "chat_template_kwargs_json", "JSON"),
    ],
)
async def test_a_bad_chat_is_refused_by_field(
    inference: InferenceStub, service: ScriptedService, request_: wire.ChatRequest, field: str, words: str
) -> None:
    error = await failure_of(inference.Chat(request_, timeout=TIMEOUT_S))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert words in (error.details() or "")
    assert metadata_of(error)["pdserve-field"] == field
    assert not service.requests


async def test_tokenize_and_detokenize_are_inverse(inference: InferenceStub, service: ScriptedService) -> None:
    tokenized = await inference.Tokenize(wire.TokenizeRequest(text="hello fox"), timeout=TIMEOUT_S)
    assert list(tokenized.token_ids) == service.tokenizer.encode("hello fox", add_special_tokens=True)
    assert tokenized.max_context == MAX_CONTEXT
    request = wire.DetokenizeRequest(token_ids=tokenized.token_ids)
    assert (await inference.Detokenize(request, timeout=TIMEOUT_S)).text == "<|begin|>hello fox"
    plain = wire.TokenizeRequest(text="hello fox", add_special_tokens=False)
    assert list((await inference.Tokenize(plain, timeout=TIMEOUT_S)).token_ids) == list(tokenized.token_ids)[1:]


async def test_a_chat_is_tokenised_as_it_would_be_served(inference: InferenceStub, service: ScriptedService) -> None:
    tokenized = await inference.Tokenize(wire.TokenizeRequest(chat=chat("hello")), timeout=TIMEOUT_S)
    expected = service.tokenizer.encode("<user>hello<assistant>", add_special_tokens=False)
    assert list(tokenized.token_ids) == expected


@pytest.mark.parametrize(
    ("method", "request_", "field"),
    [
        ("Tokenize", wire.TokenizeRequest(), "input"),
        ("Tokenize", wire.TokenizeRequest(chat=wire.ChatRequest()), "messages"),
        ("Detokenize", wire.DetokenizeRequest(token_ids=[5, 2**32 - 1]), "token_ids"),
    ],
)
async def test_bad_unary_requests_are_refused_by_field(
    inference: InferenceStub, method: str, request_: wire.TokenizeRequest | wire.DetokenizeRequest, field: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await getattr(inference, method)(request_, timeout=TIMEOUT_S)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert metadata_of(caught.value)["pdserve-field"] == field


async def test_models_are_listed_with_their_context(inference: InferenceStub) -> None:
    models = (await inference.ListModels(wire.ListModelsRequest(), timeout=TIMEOUT_S)).models
    assert [(model.id, model.max_context, model.owner) for model in models] == [
        ("tiny", MAX_CONTEXT, "pdserve"),
        ("alias", MAX_CONTEXT, "someone"),
    ]
