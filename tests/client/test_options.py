import json
from collections.abc import Mapping
from typing import get_type_hints

import msgspec
import pytest

from client.errors import InvalidRequest
from client.options import (
    ChatOptions,
    GenerateOptions,
    Message,
    chat_request,
    detokenize_request,
    generate_request,
    tokenize_request,
)
from protos import inference_pb2 as wire
from tests.sampling_values import one_of_each

OTHERS: GenerateOptions = {"add_special_tokens": False, "model": "tiny", "user": "me"}
OPTIONS = msgspec.convert({**one_of_each(), **OTHERS}, GenerateOptions)
GRAMMARS = {"json_schema", "regex", "lark", "choice"}


def test_every_option_is_carried() -> None:
    request = generate_request("hello", OPTIONS)
    options, sampling = request.options, request.options.sampling
    assert set(OPTIONS) | GRAMMARS == set(get_type_hints(GenerateOptions))
    for name, value in OPTIONS.items():
        holder = next(message for message in (options, sampling, request) if name in message.DESCRIPTOR.fields_by_name)
        carried = getattr(holder, name)
        match value:
            case list():
                assert list(carried) == value, name
            case dict():
                assert dict(carried) == value, name
            case _:
                assert carried == value, name


def test_what_is_left_out_or_none_stays_unset() -> None:
    none: GenerateOptions = {"temperature": None, "stop": None, "json_schema": None, "add_special_tokens": None}
    assert (
        generate_request("hello", none)
        == generate_request("hello", {})
        == wire.GenerateRequest(text="hello", options=wire.GenerationOptions())
    )


def test_zero_is_set() -> None:
    sampling = generate_request("hello", {"temperature": 0, "seed": 0, "logprobs": 0}).options.sampling
    assert [sampling.HasField(name) for name in ("temperature", "seed", "logprobs", "top_p")] == [
        True,
        True,
        True,
        False,
    ]


def test_one_stop_string_is_not_its_letters() -> None:
    assert list(generate_request("hello", {"stop": "end"}).options.stop) == ["end"]


def test_one_bad_word_is_not_its_letters() -> None:
    assert list(generate_request("hello", {"bad_words": "ugly"}).options.bad_words) == ["ugly"]


def test_grammars() -> None:
    schema = {"type": "object"}
    assert json.loads(generate_request("a", {"json_schema": schema}).options.sampling.grammar.json_schema) == schema
    assert generate_request("a", {"json_schema": {}}).options.sampling.grammar.json_schema == "{}"
    assert generate_request("a", {"json_schema": '{"x": 1}'}).options.sampling.grammar.json_schema == '{"x": 1}'
    assert generate_request("a", {"regex": "a+"}).options.sampling.grammar.regex == "a+"
    assert generate_request("a", {"lark": "start: /a/"}).options.sampling.grammar.lark == "start: /a/"
    choice = generate_request("a", {"choice": ["yes", "no"]}).options.sampling.grammar.choice
    assert list(choice.choices) == ["yes", "no"]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"n": -1}, "n"),
        ({"max_tokens": 2**32}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"seed": 2**63}, "seed"),
        ({"stop": ["\ud800"]}, "stop"),
        ({"stop": [1]}, "stop"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias"),
        ({"json_schema": {"a": {1}}}, "json_schema"),
        ({"json_schema": {"a": float("nan")}}, "json_schema"),
        ({"regex": "a", "choice": ["b"]}, "choice"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_name(options: GenerateOptions, field: str) -> None:
    with pytest.raises(InvalidRequest, match=field) as caught:
        generate_request("hello", options)
    assert caught.value.field == field


@pytest.mark.parametrize("prompt", ["\ud800", [-1], [2**32], ["a"], [[1]], 7])
def test_a_prompt_that_does_not_fit_is_refused(prompt: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        generate_request(prompt, {})
    assert caught.value.field == "prompt"


def test_unknown_options_are_refused() -> None:
    unknown: Mapping[str, object] = {"temprature": 1}
    with pytest.raises(TypeError, match="temprature"):
        generate_request("hello", GenerateOptions(**unknown))  # type: ignore[typeddict-item]
    with pytest.raises(TypeError, match="add_special_tokens"):
        chat_request([], ChatOptions(**{"add_special_tokens": True}))  # type: ignore[typeddict-unknown-key]


def test_a_chat_is_carried() -> None:
    messages: list[Message] = [
        {"role": "user", "content": "weather?", "name": "ann"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "weather"}}]},
        {"role": "tool", "content": "sun", "tool_call_id": "1"},
    ]
    request = chat_request(
        messages,
        {
            "tools": [{"type": "function"}],
            "tool_choice": {"type": "function", "function": {"name": "weather"}},
            "parallel_tool_calls": False,
            "chat_template_kwargs": {"think": True},
            "add_generation_prompt": False,
            "n": 2,
        },
    )
    assert [message.role for message in request.messages] == ["user", "assistant", "tool"]
    assert (request.messages[0].name, request.messages[2].tool_call_id) == ("ann", "1")
    assert json.loads(request.messages[1].tool_calls_json) == messages[1]["tool_calls"]
    assert json.loads(request.tools_json) == [{"type": "function"}]
    assert json.loads(request.tool_choice_json) == {"type": "function", "function": {"name": "weather"}}
    assert request.HasField("parallel_tool_calls") and not request.parallel_tool_calls
    assert json.loads(request.chat_template_kwargs_json) == {"think": True}
    assert request.HasField("add_generation_prompt")
    assert not request.add_generation_prompt
    assert request.options.n == 2


def test_what_is_not_said_of_tools_stays_unset() -> None:
    assert chat_request([], {"tool_choice": None, "parallel_tool_calls": None}) == chat_request([], {})
    assert json.loads(chat_request([], {"tool_choice": "required"}).tool_choice_json) == "required"


def test_a_message_that_does_not_fit_is_refused_by_its_place() -> None:
    with pytest.raises(InvalidRequest) as caught:
        chat_request([{"role": "user"}, {"role": "user", "content": "\ud800"}], {})
    assert caught.value.field == "messages[1].content"


def test_tokenize_is_of_a_text_or_a_chat() -> None:
    assert tokenize_request("hello", "tiny", False, {}) == wire.TokenizeRequest(
        model="tiny", text="hello", add_special_tokens=False
    )
    request = tokenize_request([{"role": "user", "content": "hi"}], None, None, {"continue_final_message": True})
    assert (request.chat.messages[0].content, request.chat.continue_final_message) == ("hi", True)


def test_detokenize_refuses_negative_ids() -> None:
    with pytest.raises(InvalidRequest) as caught:
        detokenize_request([-1], None)
    assert caught.value.field == "token_ids"
