import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as LibraryTokenizer
from transformers import PreTrainedTokenizerFast

from master.text.chat_template import ChatTemplate, TemplateError
from master.text.model_folder import ModelFolderError

SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA = """{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = "" %}
{%- endif %}
{{- "<|start|>system<|end|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Given the following functions:\\n" }}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- "Today Date: " + (date_string if date_string is defined else "none") }}
{{- system }}
{%- for message in messages %}
    {%- if message.role == 'assistant' and 'tool_calls' in message %}
        {%- set call = message.tool_calls[0].function %}
        {{- '{"name": "' + call.name + '", "parameters": ' }}{{- call.arguments | tojson }}{{- "}" }}
    {%- elif message.role in ["tool", "ipython"] %}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}
            {{- message.content }}
        {%- endif %}
    {%- else %}
        {{- '<|start|>' + message['role'] + '<|end|>\\n\\n'+ message['content'] | trim + '<|eot|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start|>assistant<|end|>\\n\\n' }}
{%- endif %}
"""
QWEN = """{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n<tools>' }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- endif %}
{%- set ns = namespace(last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if message.role == "user" %}
        {%- set ns.last = index %}
        {%- break %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == "assistant" %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if message.reasoning_content is string and loop.index0 > ns.last %}
            {{- '<think>\\n' + message.reasoning_content.strip('\\n') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {% generation %}
        {{- content }}
        {% endgeneration %}
        {%- for tool_call in message.tool_calls or [] %}
            {{- '<tool_call>\\n{"name": "' }}{{- tool_call.function.name }}{{- '", "arguments": ' }}
            {{- tool_call.function.arguments | tojson }}{{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {{- '<tool_response>\\n' + content + '\\n</tool_response>' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""
MISTRAL = (
    "{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token }}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"
)
PARTS = """{%- for message in messages %}
    {{- '<' + message.role + '>' }}
    {%- if message.content is string %}
        {{- message.content }}
    {%- else %}
        {%- for part in message.content %}
            {%- if part.type == 'text' %}[{{ part.text }}]{% endif %}
        {%- endfor %}
    {%- endif %}
{%- endfor %}"""
TEMPLATES = {"SmolLM2": SMOLLM2, "Llama": LLAMA, "Qwen": QWEN, "Mistral": MISTRAL, "parts": PARTS}
SPECIAL = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Says <what> it's like & 天気",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
USER = {"role": "user", "content": "hi"}

Oracle = Callable[..., str]


@pytest.fixture(scope="module")
def oracle(byte_level_library: LibraryTokenizer) -> Oracle:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level_library, **SPECIAL)

    def render(template: str, messages: list[dict[str, object]], **options: object) -> str:
        rendered = tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False, **options)
        assert isinstance(rendered, str)
        return rendered

    return render


def template(source: str) -> ChatTemplate:
    return ChatTemplate({"default": source}, SPECIAL)


CONTENT = st.one_of(st.text(max_size=12), st.sampled_from(["  padded \n", "<b>&'\"", "你好🙂", ""]))
PLAIN = st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant"]), "content": CONTENT})
REASONING = st.fixed_dictionaries({"role": st.just("assistant"), "content": CONTENT, "reasoning": CONTENT})
CALL = st.fixed_dictionaries(
    {
        "role": st.just("assistant"),
        "content": st.just(""),
        "tool_calls": CONTENT.map(
            lambda city: [{"type": "function", "function": {"name": "weather", "arguments": {"city": city}}}]
        ),
    }
)
RESULT = st.fixed_dictionaries({"role": st.just("tool"), "content": CONTENT, "name": st.one_of(st.none(), CONTENT)})
CHATS = st.lists(st.one_of(PLAIN, REASONING, CALL, RESULT), min_size=1, max_size=5)


@given(
    name=st.sampled_from(sorted(TEMPLATES)),
    messages=CHATS,
    tools=st.sampled_from([None, TOOLS]),
    prompts=st.booleans(),
    options=st.sampled_from([{}, {"enable_thinking": False}, {"date_string": "1 May", "bos_token": "!"}]),
)
def test_renders_as_transformers(
    oracle: Oracle,
    name: str,
    messages: list[dict[str, object]],
    tools: list[dict[str, object]] | None,
    prompts: bool,
    options: dict[str, object],
) -> None:
    def expected() -> str:
        return oracle(TEMPLATES[name], messages, tools=tools, add_generation_prompt=prompts, **options)

    try:
        rendered = template(TEMPLATES[name]).render(messages, tools, prompts, chat_template_kwargs=options)
    except TemplateError as refusal:
        with pytest.raises(Exception) as caught:
            expected()
        assert str(caught.value) == str(refusal)
    else:
        assert rendered == expected()


@given(name=st.sampled_from(["SmolLM2", "Llama", "Mistral", "parts"]), final=CONTENT)
def test_continues_the_final_message_as_transformers(oracle: Oracle, name: str, final: str) -> None:
    messages: list[dict[str, object]] = [{**USER}, {"role": "assistant", "content": final}]
    rendered = template(TEMPLATES[name]).render(messages, add_generation_prompt=False, continue_final_message=True)
    assert rendered == oracle(TEMPLATES[name], messages, continue_final_message=True)
    assert messages[1]["content"] == final


def test_parts_are_joined_only_for_templates_that_read_strings() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]
    messages = [{"role": "user", "content": parts}]
    assert template("{{ messages[0].content }}").render(messages) == "a\nb"
    assert template(PARTS).render(messages) == "<user>[a][b]"
    assert template(PARTS).render(messages, None, False, True) == "<user>[a][b"
    via_variable = "{% set c = messages[0]['content'] %}{% for p in c %}{{ p.text }},{% endfor %}"
    assert template(via_variable).render(messages) == "a,b,"
    in_macro = "{% macro show(content) %}{% for p in content %}{{ p.text }};{% endfor %}{% endmacro %}"
    assert template(in_macro + "{{ show(messages[0].content) }}").render(messages) == "a;b;"


def test_parts_other_than_text_are_refused_by_place() -> None:
    content = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "x"}}]
    with pytest.raises(TemplateError, match=r"messages\[1\]\.content\[1\].*image_url"):
        template(SMOLLM2).render([USER, {"role": "user", "content": content}])


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [('{"city": "Rom"}', '{"city": "Rom"}'), ("", "{}"), ('{"cut', '"{\\"cut"'), ("[1]", '"[1]"')],
)
def test_arguments_of_tool_calls_are_parsed(arguments: str, shown: str) -> None:
    call = {"function": {"name": "weather", "arguments": arguments}}
    source = "{{ messages[0].tool_calls[0].function.arguments | tojson }}"
    assert template(source).render([{"role": "assistant", "content": None, "tool_calls": [call]}]) == shown
    assert call["function"] == {"name": "weather", "arguments": arguments}


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        (MISTRAL, "Conversation roles must alternate"),
        ("{{ missing.field }}", "'missing' is undefined"),
        ("{{ 1 + 'a' }}", "unsupported operand"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ messages[0].__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ 'a' * 10 ** 9 }}", "longer than"),
        ("{{ 9 ** 99999999 }}", "power"),
        ("{% for i in range(99999999) %}{% endfor %}", "range"),
        ("{% for i in range(60000) %}{{ 'a' * 1000 }}{% endfor %}", "longer than"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{% include 'other' %}", "loader"),
        ("{{ messages | nofilter }}", "nofilter"),
    ],
)
def test_a_template_that_fails_says_why(source: str, fault: str) -> None:
    with pytest.raises(TemplateError, match=fault):
        template(source).render([USER, USER])


def test_requests_that_make_no_sense_are_refused() -> None:
    chat = template(SMOLLM2)
    with pytest.raises(TemplateError, match="at least one"):
        chat.render([])
    with pytest.raises(TemplateError, match="exclude"):
        chat.render([USER], add_generation_prompt=True, continue_final_message=True)
    with pytest.raises(TemplateError, match="last message"):
        chat.render([{"role": "assistant", "tool_calls": []}], None, False, True)
    with pytest.raises(TemplateError, match="leaves out"):
        template("x").render([USER], None, False, True)
    with pytest.raises(TemplateError, match="JSON"):
        chat.render([USER], chat_template_kwargs={"extra": object()})
    with pytest.raises(TemplateError, match="messages is not to be given"):
        chat.render([USER], chat_template_kwargs={"messages": []})


def test_the_date_is_now() -> None:
    before, rendered, after = (
        datetime.now().strftime("%Y-%m-%d"),
        template("{{ strftime_now('%Y-%m-%d') }}").render([USER]),
        datetime.now().strftime("%Y-%m-%d"),
    )
    assert rendered in (before, after)


def folder_with(folder: Path, config: object, **files: str) -> Path:
    folder.mkdir()
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    for name, source in files.items():
        (folder / f"{name}.jinja").write_text(source)
    return folder


def test_templates_are_found_where_models_keep_them(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T {{ eos_token }}"}]
    chat = ChatTemplate.load(
        folder_with(tmp_path / "named", {"chat_template": named, "eos_token": {"content": "<end>"}})
    )
    assert (chat.render([USER]), chat.render([USER], TOOLS)) == ("D", "T <end>")
    assert chat.source == "T {{ eos_token }}"
    alone = ChatTemplate.load(folder_with(tmp_path / "alone", {"chat_template": "S"}))
    assert (alone.render([USER]), alone.render([USER], TOOLS)) == ("S", "S")
    assert alone.source == "S"
    both = folder_with(tmp_path / "both", {"chat_template": "S"}, chat_template="F")
    (both / "additional_chat_templates").mkdir()
    (both / "additional_chat_templates" / "tool_use.jinja").write_text("A")
    assert ChatTemplate.load(both).render([USER]) == "F"
    assert ChatTemplate.load(both).render([USER], TOOLS) == "A"


def test_a_model_without_a_usable_template_says_so(tmp_path: Path) -> None:
    bare = ChatTemplate.load(folder_with(tmp_path / "bare", {}))
    assert bare.source is None
    with pytest.raises(TemplateError, match="no chat template"):
        bare.render([USER])
    with pytest.raises(TemplateError, match=r"'default', line 2"):
        ChatTemplate.load(folder_with(tmp_path / "broken", {"chat_template": "\n{% if %}"}))
    with pytest.raises(TemplateError, match="item without"):
        ChatTemplate.load(folder_with(tmp_path / "items", {"chat_template": [{"name": "default"}]}))
    with pytest.raises(ModelFolderError, match="JSON object"):
        ChatTemplate.load(folder_with(tmp_path / "array", []))
