"""Cancelling in a cluster of real processes: workers have nothing left when the answer comes."""

import contextlib
import http.client
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from pdserve import Cancelled, Client, NotFound
from tests.cluster import Cluster

PROMPT = "Once upon a time, " * 20
LONG = {"max_tokens": 400, "ignore_eos": True}
TIMEOUT_S = 60.0


@pytest.fixture
def client(cluster: Cluster) -> Iterator[Client]:
    with Client(cluster.grpc_address, timeout_s=TIMEOUT_S) as opened:
        yield opened


def held(cluster: Cluster) -> float:
    return sum(worker.metric('pdserve_kv_blocks{state="held"}') for worker in cluster.workers.values())


def post(cluster: Cluster, path: str, body: object) -> http.client.HTTPResponse:
    request = urllib.request.Request(
        f"{cluster.http_url}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}, method="POST"
    )
    response = urllib.request.urlopen(request, timeout=TIMEOUT_S)
    assert isinstance(response, http.client.HTTPResponse)
    return response


def test_nothing_is_held_when_cancel_returns(cluster: Cluster, client: Client) -> None:
    with client.stream(PROMPT, cache_salt="cancel-1", n=3, max_tokens=400, ignore_eos=True) as stream:
        next(stream)
        assert stream.id is not None
        assert held(cluster) > 0
        client.cancel(stream.id)
        assert held(cluster) == 0
        with pytest.raises(Cancelled):
            for _ in stream:
                pass
        with pytest.raises(NotFound):
            client.cancel(stream.id)
    cluster.check_no_leak()


def test_a_stream_over_http_is_cancelled_by_the_id_it_shows(cluster: Cluster) -> None:
    body = {"model": cluster.model, "prompt": [PROMPT, PROMPT], "stream": True, "cache_salt": "cancel-2", **LONG}
    with post(cluster, "/v1/completions", body) as events:
        shown = json.loads(events.readline().removeprefix(b"data: "))["id"]
        with post(cluster, f"/v1/requests/{shown}/cancel", None) as answer:
            assert json.load(answer) == {"id": shown, "status": "cancelled"}
        assert held(cluster) == 0
        last = [line for line in events.read().splitlines() if line][-1]
    assert json.loads(last.removeprefix(b"data: "))["error"]["type"] == "cancelled_error"
    with pytest.raises(urllib.error.HTTPError) as caught:
        post(cluster, f"/v1/requests/{shown}/cancel", None)
    assert caught.value.code == 404
    cluster.check_no_leak()


def test_whenever_the_cancel_comes_nothing_is_left(cluster: Cluster, client: Client) -> None:
    """While queued, in the middle of prefill, on the way, in decode, or just after the end (K5)."""
    for delay in range(8):
        with client.stream(PROMPT + str(delay), cache_salt=f"cancel-3-{delay}", max_tokens=delay * 4 + 1) as stream:
            next(stream)
            for _ in range(delay * 2):
                next(stream, None)
            assert stream.id is not None
            cancelling = threading.Thread(target=_cancel, args=(client, stream.id))
            cancelling.start()
            with contextlib.suppress(Cancelled):
                for _ in stream:
                    pass
            cancelling.join(TIMEOUT_S)
            assert not cancelling.is_alive()
    cluster.check_no_leak()


def _cancel(client: Client, request_id: str) -> None:
    with contextlib.suppress(NotFound):  # it had just ended
        client.cancel(request_id)
