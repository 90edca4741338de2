"""The bodies of /v1/messages and /v1/messages/count_tokens: https://docs.anthropic.com/en/api/messages

Unknown fields are ignored and null is unset, as in chat completions.
"""

import re

import msgspec

from master.edge.conversation.conversation import template_kwargs
from master.edge.fields.grammar import JsonSchemaFormat, ResponseFormat, grammar_of_format
from master.edge.fields.sampling import SamplingFields, with_sampling
from master.edge.fields.tools import ToolUse, read_tool_use
from master.edge.messages.content import Content, InputMessage, Message, chat_messages, text_of
from master.errors import invalid
from master.request import RequestOptions
from protos.option import Api

PARAMETERS_PATH = re.compile(r"^(tools\[\d+\])\.function\.parameters\b")
TOOL_PATH = re.compile(r"^(tools\[\d+\]|tool_choice)\.function\b")


class ToolChoiceField(msgspec.Struct, frozen=True):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct, frozen=True):
    type: str


class OutputFormat(msgspec.Struct, frozen=True):
    type: str
    schema: dict[str, object] | None = None


class OutputConfig(msgspec.Struct, frozen=True):
    effort: str | None = None
    format: OutputFormat | None = None


class CountTokensBody(SamplingFields, frozen=True, kw_only=True):
    """A conversation. A last message of the assistant's is the beginning of the answer."""

    model: str | None = None
    messages: list[InputMessage] | None = None
    system: Content | None = None
    tools: list[dict[str, object]] | None = None
    tool_choice: ToolChoiceField | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    mcp_servers: list[object] | None = None
    chat_template_kwargs: dict[str, object] | None = None

    def tool_use(self) -> ToolUse:
        """Raises ServingError naming what is wrong."""
        if self.mcp_servers:
            raise invalid("mcp_servers", "mcp_servers is set; tools are not run here, offer them as tools")
        tools = [_chat_tool(f"tools[{index}]", tool) for index, tool in enumerate(self.tools or ())]
        choice = self.tool_choice
        is_parallel = not choice.disable_parallel_tool_use if choice is not None else None
        return read_tool_use(tools, _chat_choice(choice), is_parallel, _field_name)

    def template_messages(self) -> list[Message]:
        if not self.messages:
            raise invalid("messages", "messages is missing or empty; at least one message is needed")
        system = text_of("system", self.system)
        opening: list[Message] = [{"role": "system", "content": system}] if system else []
        return opening + chat_messages(self.messages)

    def template_kwargs(self) -> dict[str, object]:
        """`thinking` is what Qwen's templates, and others after them, know as enable_thinking."""
        thinks = None if self.thinking is None else self.thinking.type != "disabled"
        effort = self.output_config.effort if self.output_config is not None else None
        return template_kwargs(self.chat_template_kwargs, enable_thinking=thinks, reasoning_effort=effort)

    @property
    def adds_generation_prompt(self) -> bool:
        return not self.continues_final_message

    @property
    def continues_final_message(self) -> bool:
        return bool(self.messages) and self.messages is not None and self.messages[-1].role == "assistant"

    @property
    def adds_special_tokens(self) -> bool:
        return False


@with_sampling(Api.MESSAGES)
class MessagesBody(CountTokensBody, frozen=True, kw_only=True):
    stream: bool | None = None

    def request_options(self) -> RequestOptions:
        """Raises ServingError for a bad format, and for max_tokens, which this API has no default for."""
        sampling = self.sampling_options()
        if sampling.get("max_tokens") is None:
            raise invalid("max_tokens", "max_tokens is missing; it must be at least 1")
        return RequestOptions(
            model=self.model,
            sampling=sampling,
            grammar=grammar_of_format("output_config.format", self._format()),
            grammar_field="output_config.format",
        )

    @property
    def field_names(self) -> dict[str, str]:
        """What errors name otherwise here, by its name in the domain."""
        return {**self.option_names, "prompt": "messages"}

    def _format(self) -> ResponseFormat | None:
        """Returns it as chat completions have it, where the schema lies one level deeper."""
        given = self.output_config.format if self.output_config is not None else None
        return None if given is None else ResponseFormat(given.type, JsonSchemaFormat(schema=given.schema))


def _chat_tool(where: str, tool: dict[str, object]) -> dict[str, object]:
    kind = tool.get("type")
    if kind not in (None, "custom"):
        raise invalid(
            f"{where}.type", f"{where}.type is {kind!r:.100}; only tools that the client runs are served here"
        )
    if "input_schema" not in tool:
        raise invalid(f"{where}.input_schema", f"{where}.input_schema is missing")
    function = {name: tool[name] for name in ("name", "description", "strict") if name in tool}
    return {"type": "function", "function": function | {"parameters": tool["input_schema"]}}


def _chat_choice(choice: ToolChoiceField | None) -> object:
    match choice:
        case None:
            return None
        case ToolChoiceField("auto" | "none"):
            return choice.type
        case ToolChoiceField("any"):
            return "required"
        case ToolChoiceField("tool", str(name)):
            return {"type": "function", "function": {"name": name}}
        case ToolChoiceField("tool"):
            raise invalid("tool_choice.name", "tool_choice.name is missing")
    shown = f"tool_choice.type is {choice.type[:100]!r}"
    raise invalid("tool_choice.type", f"{shown}; it must be auto, any, tool or none")


def _field_name(path: str) -> str:
    return TOOL_PATH.sub(r"\1", PARAMETERS_PATH.sub(r"\1.input_schema", path))
