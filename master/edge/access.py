"""Who may use the HTTP API: whoever presents one of the API keys, where there are any."""

from starlette.types import Receive, Scope, Send

from master.edge.dashboard.access import CHALLENGE, is_dashboard, passwords
from master.edge.error_form import error_form
from master.edge.http.caller import presented_keys
from master.edge.http.config import HttpConfig
from master.edge.http.cors import EXTRA_HEADERS
from master.edge.http.response import HttpResponse
from master.edge.slow_reader import SlowReader
from master.errors import ErrorKind, ServingError
from serving.keys import Keys

# Load balancers and Prometheus ask for these, and have no key.
OPEN_PATHS = frozenset({"/livez", "/readyz", "/health", "/metrics"})


class HttpAccess:
    def __init__(self, keys: Keys, config: HttpConfig) -> None:
        self._keys = keys
        self._config = config

    def refusal(self, scope: Scope) -> ServingError | None:
        """None when the request, of which only the headers are here, may go on."""
        if scope["path"] in OPEN_PATHS:
            return None
        presented = presented_keys(scope)
        if is_dashboard(scope):
            presented += passwords(scope)
        if any(self._keys.accepts(key) for key in presented):
            return None
        what = "the API key is not valid" if presented else "no API key was given"
        message = f"{what}; send one as `Authorization: Bearer KEY`"
        return ServingError(ErrorKind.UNAUTHENTICATED, message, code="invalid_api_key" if presented else None)

    async def refuse(self, error: ServingError, scope: Scope, receive: Receive, send: Send) -> int:
        """Answers in the form of the path's API, without the body having been kept. Returns the status."""
        if is_dashboard(scope):
            scope[EXTRA_HEADERS] = [*scope.get(EXTRA_HEADERS, ()), CHALLENGE]
        response = HttpResponse(scope, send, self._config.slow_reader_timeout_s, error_form(scope["path"]))
        try:
            await response.refuse_body(error, receive)
        except SlowReader:
            response.abort()
        assert response.status is not None
        return response.status
