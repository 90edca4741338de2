"""Calls as a model writes them in each format."""

import json
from collections.abc import Callable, Sequence

from tests.master.parsing.answers import Call

Written = Callable[[Sequence[Call]], str]
DEEPSEEK_SECTION = ("<\uff5ctool\u2581calls\u2581begin\uff5c>", "<\uff5ctool\u2581calls\u2581end\uff5c>")
DEEPSEEK_CALL = (
    "<\uff5ctool\u2581call\u2581begin\uff5c>",
    "<\uff5ctool\u2581sep\uff5c>",
    "<\uff5ctool\u2581call\u2581end\uff5c>",
)


def hermes(calls: Sequence[Call]) -> str:
    return "\n".join(
        f'<tool_call>\n{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}\n</tool_call>'
        for call in calls
    )


def llama3_json(calls: Sequence[Call]) -> str:
    return "; ".join(f'{{"name": {json.dumps(call.name)}, "parameters": {call.arguments}}}' for call in calls)


def mistral(calls: Sequence[Call]) -> str:
    return "".join(f"[TOOL_CALLS]{call.name}[ARGS]{call.arguments}" for call in calls)


def mistral_array(calls: Sequence[Call]) -> str:
    objects = (f'{{"name": {json.dumps(call.name)}, "arguments": {call.arguments}}}' for call in calls)
    return f"[TOOL_CALLS] [{', '.join(objects)}]"


def deepseek_v3(calls: Sequence[Call]) -> str:
    begin, separator, end = DEEPSEEK_CALL
    written = (f"{begin}function{separator}{call.name}\n```json\n{call.arguments}\n```{end}" for call in calls)
    return DEEPSEEK_SECTION[0] + "\n".join(written) + DEEPSEEK_SECTION[1]


def deepseek_v31(calls: Sequence[Call]) -> str:
    begin, separator, end = DEEPSEEK_CALL
    written = (f"{begin}{call.name}{separator}{call.arguments}{end}" for call in calls)
    return DEEPSEEK_SECTION[0] + "".join(written) + DEEPSEEK_SECTION[1]


def kimi_k2(calls: Sequence[Call]) -> str:
    written = (
        f"<|tool_call_begin|>functions.{call.name}:{number}<|tool_call_argument_begin|>{call.arguments}<|tool_call_end|>"
        for number, call in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{''.join(written)}<|tool_calls_section_end|>"


def harmony(calls: Sequence[Call]) -> str:
    return "<|call|><|start|>assistant".join(
        f"<|channel|>commentary to=functions.{call.name} <|constrain|>json<|message|>{call.arguments}" for call in calls
    )


def qwen3_xml(calls: Sequence[Call]) -> str:
    return "\n".join(
        f"<tool_call>\n<function={call.name}>\n{_parameters(call)}</function>\n</tool_call>" for call in calls
    )


def glm45(calls: Sequence[Call]) -> str:
    return _glm(calls, "\n")


def glm47(calls: Sequence[Call]) -> str:
    return _glm(calls, "")


def pythonic(calls: Sequence[Call]) -> str:
    def written(call: Call) -> str:
        return ", ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in _members(call))

    return f"[{', '.join(f'{call.name}({written(call)})' for call in calls)}]"


def _parameters(call: Call) -> str:
    return "".join(f"<parameter={key}>\n{_plain(value)}\n</parameter>\n" for key, value in _members(call))


def _glm(calls: Sequence[Call], line: str) -> str:
    def values(call: Call) -> str:
        return "".join(
            f"<arg_key>{key}</arg_key>{line}<arg_value>{_plain(value)}</arg_value>{line}"
            for key, value in _members(call)
        )

    return "\n".join(f"<tool_call>{call.name}{line}{values(call)}</tool_call>" for call in calls)


def _members(call: Call) -> list[tuple[str, object]]:
    members: dict[str, object] = json.loads(call.arguments)
    return list(members.items())


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
