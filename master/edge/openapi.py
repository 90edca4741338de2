"""/openapi.json: https://spec.openapis.org/oas/v3.1.0

It is made from the table of operations here and the types of bodies and answers, so that no schema is written twice.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from master.edge import answer_types as answers
from master.edge.access import OPEN_PATHS
from master.edge.chat import reader as chat
from master.edge.chat.body import ChatBody
from master.edge.completions import reader as completions
from master.edge.completions.body import CompletionBody
from master.edge.messages import count_tokens
from master.edge.messages import reader as messages
from master.edge.messages.body import CountTokensBody, MessagesBody
from master.edge.responses import reader as responses
from master.edge.responses.body import ResponsesBody
from master.edge.routes import admin as operations
from master.edge.routes import stored_responses
from master.edge.routes.not_offered import NOT_OFFERED, NotOfferedBody
from master.edge.routes.server import ServerInfo, ServerLoad, ServerVersion, TokenizerInfo
from master.edge.routes.tokenize import DetokenizeBody, TokenizeBody

PATH = "/openapi.json"
JSON, EVENTS, TEXT = "application/json", "text/event-stream", "text/plain"
PARAMETER = re.compile(r"\{(\w+)\}")

Schema = dict[str, object]
Type = type[msgspec.Struct]


@dataclass(frozen=True, slots=True)
class Operation:
    """`answer` is that of status 200, None where there never is one or it is no JSON; others are an error's."""

    method: str
    path: str
    summary: str
    body: Type | None = None
    answer: Type | None = None
    error: Type = answers.Error
    is_streamed: bool = False  # if the body asks for it
    has_text: bool = False  # its answer is plain text


OPERATIONS: Sequence[Operation] = (
    Operation("post", chat.PATH, "Answer a chat", ChatBody, answers.ChatCompletion, is_streamed=True),
    Operation(
        "post", completions.PATH, "Continue texts", CompletionBody, answers.TextCompletion, is_streamed=True
    ),
    Operation(
        "post", responses.PATH, "Answer, in the form of the Responses API", ResponsesBody, answers.ResponsesAnswer,
        is_streamed=True,
    ),
    Operation(
        "post", messages.PATH, "Answer, in the form of Anthropic's Messages API", MessagesBody,
        answers.MessagesAnswer, answers.MessagesError, is_streamed=True,
    ),
    Operation(
        "post", count_tokens.PATH, "Count the tokens of a conversation", CountTokensBody, answers.InputTokens,
        answers.MessagesError,
    ),
    Operation("post", "/tokenize", "The token ids of a text or chat", TokenizeBody, answers.Tokens),
    Operation("post", "/detokenize", "The text of token ids", DetokenizeBody, answers.DetokenizedText),
    *(
        Operation("post", path, f"Refused: the models served here give no {what}", NotOfferedBody)
        for path, what in NOT_OFFERED.items()
    ),
    Operation("get", "/v1/models", "The served models", answer=answers.ModelList),
    Operation("get", "/v1/models/{model}", "One model", answer=answers.Model),
    Operation(
        "get", "/v1/responses/{response_id}", "A response that was stored, where a flag allows it",
        answer=answers.ResponsesAnswer,
    ),
    Operation(
        "delete", "/v1/responses/{response_id}", "Forget a stored response", answer=stored_responses.DeletedResponse
    ),
    Operation(
        "post", "/v1/requests/{id}/cancel", "End a request by the id of its answer",
        answer=operations.CancelledRequest,
    ),
    Operation(
        "post", "/admin/instances/{name}/drain", "Let a worker take nothing new", answer=operations.DrainingInstance
    ),
    Operation("get", "/livez", "The process runs", answer=answers.Readiness),
    Operation("get", "/readyz", "A request would succeed now", answer=answers.Readiness, error=answers.Readiness),
    Operation("get", "/health", "As /readyz", answer=answers.Readiness, error=answers.Readiness),
    Operation("get", "/version", "This server's version", answer=ServerVersion),
    Operation("get", "/server_info", "What is served, and by how many workers", answer=ServerInfo),
    Operation("get", "/load", "Requests in flight", answer=ServerLoad),
    Operation("get", "/tokenizer_info", "The model's tokenizer, where a flag allows it", answer=TokenizerInfo),
    Operation("get", "/metrics", "For Prometheus", has_text=True),
)  # fmt: skip


class OpenApi:
    @cached_property
    def _document(self) -> bytes:
        return msgspec.json.encode(document())

    async def get(self, request: Request) -> Response:
        return Response(self._document, media_type=JSON)


def document() -> Schema:
    """The whole description."""
    types = {kind for operation in OPERATIONS for kind in (operation.body, operation.answer, operation.error) if kind}
    ordered = sorted(types, key=lambda kind: kind.__qualname__)
    references, schemas = msgspec.json.schema_components(
        ordered, schema_hook=_any_value, ref_template="#/components/schemas/{name}"
    )
    schema_of = dict(zip(ordered, references, strict=True))
    paths: dict[str, Schema] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _describe(operation, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {"title": "pdserve", "version": version("pdserve")},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"api_key": {"type": "http", "scheme": "bearer"}}},
    }


def _any_value(kind: type) -> Schema:
    """The one type that msgspec has no schema for."""
    assert kind is object, kind
    return {"description": "any JSON value"}


def _describe(operation: Operation, schema_of: dict[Type, Schema]) -> Schema:
    described: Schema = {
        "summary": operation.summary,
        "operationId": f"{operation.method}{re.sub(r'[^a-z]+', '_', operation.path)}",
        "responses": _answers(operation, schema_of),
        "security": [{}] if operation.path in OPEN_PATHS else [{}, {"api_key": []}],
    }
    if names := PARAMETER.findall(operation.path):
        described["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    if operation.body is not None:
        described["requestBody"] = {"required": True, "content": _content(JSON, schema_of[operation.body])}
    return described


def _answers(operation: Operation, schema_of: dict[Type, Schema]) -> Schema:
    content: Schema = {}
    if operation.answer is not None:
        content = _content(JSON, schema_of[operation.answer])
    if operation.is_streamed:
        content[EVENTS] = {}  # OpenAPI 3.1 has no way to describe events
    if operation.has_text:
        content = _content(TEXT, {"type": "string"})
    error: Schema = {"description": "Why not", "content": _content(JSON, schema_of[operation.error])}
    if not content:
        return {"4XX": error, "default": error}
    return {"200": {"description": "Done", "content": content}, "default": error}


def _content(media_type: str, schema: Schema) -> Schema:
    return {media_type: {"schema": schema}}
