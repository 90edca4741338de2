"""What the HTTP edge measures, under one name each."""

import time
from collections.abc import Callable
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Histogram

from master.dispatch.metrics import LATENCY_BUCKETS_S
from master.output import GenerationOutput

TOKEN_BUCKETS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.5, 1, 2.5, 10),
    *(60, 600),
)

CLIENT_CLOSED = 499  # what nginx logs for a client that left


class HttpMetrics:
    """The families, in a registry of the caller's: called with labels, each is the series that has them.

    Raises ValueError if they are in the registry already.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Callable[..., Histogram]:
            return cache(Histogram(name, text, ["endpoint"], registry=registry, buckets=buckets).labels)

        def counter(name: str, text: str, *labels: str) -> Callable[..., Counter]:
            return cache(Counter(name, text, ["endpoint", *labels], registry=registry).labels)

        self._requests = counter(
            "pdserve_http_requests", "HTTP requests answered; 499: the client left or was cut before its end", "status"
        )
        self.ttft = histogram("pdserve_ttft_seconds", "From arrival to a request's first output", LATENCY_BUCKETS_S)
        self.itl = histogram("pdserve_itl_seconds", "Between two outputs of a stream", TOKEN_BUCKETS_S)
        self.tpot = histogram("pdserve_tpot_seconds", "Per token after the first output, by request", TOKEN_BUCKETS_S)
        self.e2e = histogram("pdserve_e2e_latency_seconds", "From arrival to the answer's end", LATENCY_BUCKETS_S)
        self.prompt_tokens = counter("pdserve_prompt_tokens", "Tokens of prompts answered")
        self.cached_tokens = counter("pdserve_cached_tokens", "Tokens of prompts that were in a prefix cache")
        self.completion_tokens = counter("pdserve_completion_tokens", "Tokens of completions answered")

    def count(self, endpoint: str, status: int) -> None:
        self._requests(endpoint, str(status)).inc()

    def timer(self, endpoint: str) -> "RequestTimer":
        return RequestTimer(self, endpoint)


class RequestTimer:
    """Times one generating request, which begins now."""

    def __init__(self, metrics: HttpMetrics, endpoint: str) -> None:
        self.is_streamed = False  # outputs of other answers wait for each other
        self._metrics = metrics
        self._endpoint = endpoint
        self._itl = metrics.itl(endpoint)
        self._arrived_s = time.perf_counter()
        self._first_s: float | None = None
        self._last_s = self._arrived_s
        self._tokens_after_first = 0

    def output(self, output: GenerationOutput) -> None:
        now_s = time.perf_counter()
        num_tokens = sum(len(delta.token_ids) for delta in output.deltas)
        if self._first_s is None:
            self._first_s = now_s
            self._metrics.ttft(self._endpoint).observe(now_s - self._arrived_s)
        elif num_tokens:
            if self.is_streamed:
                self._itl.observe(now_s - self._last_s)
            self._tokens_after_first += num_tokens
        self._last_s = now_s
        if output.usage is not None:
            self._metrics.prompt_tokens(self._endpoint).inc(output.usage.prompt_tokens)
            self._metrics.cached_tokens(self._endpoint).inc(output.usage.cached_tokens)
            self._metrics.completion_tokens(self._endpoint).inc(output.usage.completion_tokens)

    def end(self, status: int) -> None:
        self._metrics.count(self._endpoint, status)
        if self._first_s is None:
            return
        self._metrics.e2e(self._endpoint).observe(time.perf_counter() - self._arrived_s)
        if self._tokens_after_first:
            self._metrics.tpot(self._endpoint).observe((self._last_s - self._first_s) / self._tokens_after_first)
