"""The body of /v1/responses: https://platform.openai.com/docs/api-reference/responses/create

Unknown fields are ignored and null is unset, as in chat completions.
"""

import re
from collections.abc import Sequence

import msgspec

from master.edge.conversation.conversation import template_kwargs
from master.edge.fields.grammar import JsonSchemaFormat, ResponseFormat, grammar_of_format
from master.edge.fields.sampling import SamplingFields, with_sampling
from master.edge.fields.tools import ToolUse, read_tool_use
from master.edge.responses.input_items import InputItem, Message, input_messages
from master.errors import ServingError, invalid
from master.request import RequestOptions
from protos.option import Api
from protos.sampling_messages import SamplingOptions

LOGPROBS = "message.output_text.logprobs"  # among what `include` may name
TOOL_PATH = re.compile(r"^(tools\[\d+\]|tool_choice)\.function\b")


class TextFormat(msgspec.Struct, frozen=True):
    type: str
    name: str | None = None
    schema: dict[str, object] | None = None
    strict: bool | None = None
    description: str | None = None


class TextFields(msgspec.Struct, frozen=True):
    format: TextFormat | None = None
    verbosity: str | None = None


class ReasoningFields(msgspec.Struct, frozen=True):
    effort: str | None = None


@with_sampling(Api.RESPONSES)
class ResponsesBody(SamplingFields, frozen=True, kw_only=True):
    model: str | None = None
    input: str | list[InputItem] | None = None
    instructions: str | None = None
    text: TextFields | None = None
    tools: list[dict[str, object]] | None = None
    tool_choice: str | dict[str, object] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: ReasoningFields | None = None
    stream: bool | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    include: list[str] | None = None
    store: bool | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, object] | None = None
    background: bool | None = None
    prompt: dict[str, object] | None = None
    chat_template_kwargs: dict[str, object] | None = None

    def check_supported(self) -> None:
        """Raises ServingError for what can't be served, rather than answer something else."""
        if self.conversation is not None:
            raise _stateless("conversation")
        if self.background:
            raise invalid("background", "background is true; nothing is stored here, so that it could not be fetched")
        if self.prompt is not None:
            raise invalid("prompt", "prompt is set; no prompt templates are stored here, use instructions and input")

    def sampling_options(self) -> SamplingOptions:
        """Log-probabilities may also be asked for as something to include."""
        asked = super().sampling_options()
        if LOGPROBS in (self.include or ()):
            asked.setdefault("logprobs", 0)
        return asked

    def items(self) -> list[InputItem]:
        """The input as items. Raises ServingError when there is none."""
        match self.input:
            case None | "" | []:
                raise invalid("input", "input is missing or empty")
            case str(text):
                return [InputItem(role="user", content=text)]
            case items:
                return items

    def request_options(self) -> RequestOptions:
        """Raises ServingError for a bad format."""
        return RequestOptions(
            model=self.model,
            sampling=self.sampling_options(),
            grammar=grammar_of_format("text.format", self._format()),
            grammar_field="text.format",
        )

    @property
    def field_names(self) -> dict[str, str]:
        """What errors name otherwise here, by its name in the domain."""
        return {**self.option_names, "prompt": "input"}

    def _format(self) -> ResponseFormat | None:
        """Returns it as chat completions have it, where the schema lies one level deeper."""
        given = self.text.format if self.text is not None else None
        if given is None:
            return None
        return ResponseFormat(given.type, JsonSchemaFormat(given.name, given.schema))

    def tool_use(self) -> ToolUse:
        """Raises ServingError naming what is wrong."""
        tools = [_chat_tool(f"tools[{index}]", tool) for index, tool in enumerate(self.tools or ())]
        return read_tool_use(tools, _chat_choice(self.tool_choice), self.parallel_tool_calls, _field_name)

    def template_messages(self) -> list[Message]:
        messages: list[Message] = []
        if self.instructions:
            messages.append({"role": "system", "content": self.instructions})
        messages += input_messages(self.items())
        return messages

    def template_kwargs(self) -> dict[str, object]:
        effort = self.reasoning.effort if self.reasoning is not None else None
        return template_kwargs(self.chat_template_kwargs, reasoning_effort=effort)

    @property
    def adds_generation_prompt(self) -> bool:
        return True

    @property
    def continues_final_message(self) -> bool:
        return False

    @property
    def adds_special_tokens(self) -> bool:
        return False


def _stateless(field: str) -> ServingError:
    return invalid(field, f"{field} is set; nothing is stored here, send the whole conversation as input")


def _chat_tool(where: str, tool: dict[str, object]) -> dict[str, object]:
    kind = tool.get("type")
    if kind != "function":
        raise invalid(f"{where}.type", f"{where}.type is {kind!r:.100}; only function tools are served here")
    function = {name: tool[name] for name in ("name", "description", "parameters", "strict") if name in tool}
    return {"type": "function", "function": function}


def _chat_choice(choice: str | dict[str, object] | None) -> object:
    match choice:
        case {"type": "function", "name": str(name)}:
            return {"type": "function", "function": {"name": name}}
        case {"type": "allowed_tools", "tools": list(tools), **fields}:
            allowed = [_chat_choice(tool) if isinstance(tool, dict) else tool for tool in tools]
            return {"type": "allowed_tools", "allowed_tools": {"mode": fields.get("mode"), "tools": allowed}}
        case {"type": "custom"}:
            raise invalid("tool_choice", "tool_choice is of type custom; not supported here")
    return choice


def _field_name(path: str) -> str:
    return TOOL_PATH.sub(r"\1", path)


def echoed_format(text: TextFields | None) -> object:
    """What the answer says of the text it holds."""
    given = text.format if text is not None else None
    return {"format": {"type": "text"} if given is None else given}


def echoed_tools(tools: Sequence[dict[str, object]] | None) -> list[dict[str, object]]:
    return [{"parameters": None, "strict": None, **tool} for tool in tools or ()]
