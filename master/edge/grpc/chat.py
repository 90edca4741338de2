"""The conversation of a gRPC chat, and the tools it may use."""

from master.edge.fields.nesting import check_nesting
from master.edge.fields.tools import ToolUse, read_tool_use
from master.edge.grpc.codec import decode_messages, decode_object, decode_objects, decode_value
from protos import inference_pb2 as wire


class GrpcConversation:
    def __init__(self, request: wire.ChatRequest) -> None:
        self._request = request

    @property
    def num_bytes(self) -> int:
        return self._request.ByteSize()

    def tool_use(self) -> ToolUse:
        """Takes time in proportion to `num_bytes`.

        Raises ServingError naming the field, or the path within its JSON as OpenAI calls it.
        """
        request = self._request
        tools = decode_objects("tools_json", request.tools_json) if request.tools_json else None
        choice = decode_value("tool_choice_json", request.tool_choice_json) if request.tool_choice_json else None
        check_nesting("tool_choice", choice)
        is_parallel = request.parallel_tool_calls if request.HasField("parallel_tool_calls") else None
        return read_tool_use(tools, choice, is_parallel)

    def template_messages(self) -> list[dict[str, object]]:
        return decode_messages(self._request.messages)

    def template_kwargs(self) -> dict[str, object]:
        kwargs_json = self._request.chat_template_kwargs_json
        return decode_object("chat_template_kwargs_json", kwargs_json) if kwargs_json else {}

    @property
    def adds_generation_prompt(self) -> bool:
        if self._request.HasField("add_generation_prompt"):
            return self._request.add_generation_prompt
        return not self._request.continue_final_message

    @property
    def continues_final_message(self) -> bool:
        return self._request.continue_final_message

    @property
    def adds_special_tokens(self) -> bool:
        return False
