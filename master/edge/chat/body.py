"""The body of /v1/chat/completions."""

import msgspec

from master.edge.conversation.conversation import template_kwargs
from master.edge.fields.completion import CompletionFields
from master.edge.fields.nesting import check_nesting
from master.edge.fields.sampling import with_sampling
from master.edge.fields.tools import ToolUse, read_tool_use
from master.errors import invalid
from master.parsing.events import ContentDelta, Event
from protos.option import Api
from protos.sampling_messages import SamplingOptions


class ContentPart(msgspec.Struct, frozen=True):
    type: str
    text: str | None = None
    refusal: str | None = None


class FunctionCall(msgspec.Struct, frozen=True):
    name: str
    arguments: str | dict[str, object] | None = None


class ToolCall(msgspec.Struct, frozen=True):
    function: FunctionCall
    id: str | None = None
    type: str | None = None


class InputMessage(msgspec.Struct, frozen=True):
    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None


@with_sampling(Api.CHAT)
class ChatBody(CompletionFields, frozen=True, kw_only=True):
    """`max_completion_tokens` is the newer name of `max_tokens`, and counts if both are set."""

    messages: list[InputMessage] | None = None
    tools: list[dict[str, object]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    echo: bool | None = None
    chat_template_kwargs: dict[str, object] | None = None
    reasoning_effort: str | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    tool_choice: str | dict[str, object] | None = None
    parallel_tool_calls: bool | None = None
    modalities: list[str] | None = None
    functions: list[object] | None = None
    function_call: object = None

    def check_supported(self) -> None:
        super().check_supported()
        if self.modalities and self.modalities != ["text"]:
            raise invalid("modalities", f"modalities is {self.modalities!r:.100}; this model answers with text only")

    def template_messages(self) -> list[dict[str, object]]:
        """Returns the messages as the chat template takes them. Raises ServingError naming the one that is wrong."""
        if not self.messages:
            raise invalid("messages", "messages is empty; a chat needs at least one message")
        return [_template_message(f"messages[{index}]", message) for index, message in enumerate(self.messages)]

    def echoed_events(self) -> list[Event]:
        """An answer begins with these: with `echo` the text of the last message, if that is the assistant's."""
        last = self.messages[-1] if self.messages else None
        if not self.echo or last is None or last.role != "assistant":
            return []
        parts = [last.content] if isinstance(last.content, str) else [part.text or "" for part in last.content or ()]
        return [ContentDelta("".join(parts))]

    def tool_use(self) -> ToolUse:
        """Raises ServingError naming what is wrong, and for the old functions."""
        if self.functions or self.function_call not in (None, "none", "auto"):
            raise invalid("functions", "functions and function_call are not supported; use tools and tool_choice")
        return read_tool_use(self.tools, self.tool_choice, self.parallel_tool_calls)

    def template_kwargs(self) -> dict[str, object]:
        """Raises ServingError for a name that has a field of its own."""
        return template_kwargs(self.chat_template_kwargs, reasoning_effort=self.reasoning_effort)

    @property
    def adds_generation_prompt(self) -> bool:
        return not self.continue_final_message if self.add_generation_prompt is None else self.add_generation_prompt

    @property
    def continues_final_message(self) -> bool:
        return bool(self.continue_final_message)

    @property
    def adds_special_tokens(self) -> bool:
        return bool(self.add_special_tokens)

    def sampling_options(self) -> SamplingOptions:
        """Raises ServingError for top_logprobs without logprobs."""
        asked = super().sampling_options()
        if self.max_completion_tokens is not None:
            asked["max_tokens"] = self.max_completion_tokens
        num_top = asked.pop("logprobs", None)
        if self.logprobs:
            asked["logprobs"] = num_top or 0
        elif num_top:
            raise invalid("top_logprobs", f"top_logprobs is {num_top}; it needs logprobs to be true")
        return asked

    @property
    def field_names(self) -> dict[str, str]:
        """What errors name otherwise here, by its name in the domain."""
        max_tokens = "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"
        return {**self.option_names, "prompt": "messages", "max_tokens": max_tokens}


def _template_message(where: str, message: InputMessage) -> dict[str, object]:
    content: object = message.content
    if isinstance(message.content, list):
        content = [_text_part(f"{where}.content[{index}]", part) for index, part in enumerate(message.content)]
    fields: dict[str, object] = {}
    match message.role:
        case "assistant":
            fields = {
                "tool_calls": _tool_calls(where, message.tool_calls),
                "reasoning_content": message.reasoning_content or message.reasoning,
            }
            # templates add content to text without looking
            content = message.refusal or "" if content is None else content
        case "tool":
            fields = {"tool_call_id": message.tool_call_id}
        case "system" | "user" | "developer":
            pass
        case _:
            raise invalid(
                f"{where}.role",
                f"{where}.role is {message.role[:100]!r}; it must be system, developer, user, assistant or tool",
            )
    if content is None:
        raise invalid(f"{where}.content", f"{where}.content is missing")
    # templates know OpenAI's newer name for it only as the old one
    role = "system" if message.role == "developer" else message.role
    given = {"role": role, "content": content, "name": message.name, **fields}
    return {name: value for name, value in given.items() if value is not None}


def _text_part(where: str, part: ContentPart) -> dict[str, object]:
    if part.type not in ("text", "refusal"):
        raise invalid(where, f"{where} is of type {part.type[:100]!r}; this model takes text only")
    text = part.text if part.type == "text" else part.refusal
    if text is None:
        raise invalid(where, f"{where}.{part.type} is missing")
    return {"type": "text", "text": text}


def _tool_calls(where: str, calls: list[ToolCall] | None) -> list[dict[str, object]] | None:
    if not calls:
        return None
    for index, call in enumerate(calls):
        check_nesting(f"{where}.tool_calls[{index}]", call.function.arguments)
    return [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.function.name, "arguments": call.function.arguments or {}},
        }
        for call in calls
    ]
