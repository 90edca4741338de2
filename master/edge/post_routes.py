"""The POSTs of all APIs, by path."""

from collections.abc import Awaitable, Callable

from starlette.types import ASGIApp

from master.edge.chat import reader as chat
from master.edge.completions import reader as completions
from master.edge.error_form import error_form
from master.edge.http.answer import Answer
from master.edge.http.config import HttpConfig
from master.edge.http.endpoint import GenerationEndpoint
from master.edge.http.json_endpoint import JsonEndpoint
from master.edge.http.metrics import HttpMetrics
from master.edge.messages import count_tokens
from master.edge.messages import reader as messages
from master.edge.responses import reader as responses
from master.edge.responses.store import ResponseStore
from master.edge.routes.not_offered import not_offered
from master.edge.routes.tokenize import Detokenize, Tokenize
from master.service import Service


def post_routes(service: Service, config: HttpConfig, metrics: HttpMetrics, store: ResponseStore) -> dict[str, ASGIApp]:
    parsers = config.parsers
    readers: dict[str, Callable[[bytes], Awaitable[Answer]]] = {
        chat.PATH: chat.ChatReader(service, parsers),
        completions.PATH: completions.CompletionReader(service),
        responses.PATH: responses.ResponsesReader(service, parsers, store),
        messages.PATH: messages.MessagesReader(service, parsers),
    }
    answers: dict[str, Callable[[bytes], Awaitable[bytes]]] = {
        "/tokenize": Tokenize(service, parsers),
        "/detokenize": Detokenize(service),
        **not_offered(service),
        count_tokens.PATH: count_tokens.CountTokens(service, parsers),
    }
    posts: dict[str, ASGIApp] = {}
    for path, read in readers.items():
        posts[path] = GenerationEndpoint(path, read, service, config, metrics, error_form(path))
    for path, answer in answers.items():
        posts[path] = JsonEndpoint(path, answer, config, metrics, error_form(path))
    return posts
