"""Cancelling and draining over HTTP; what they do to a cluster is in tests/integration."""

import pytest

from tests.http_service import HttpEdge


async def test_a_request_is_cancelled_by_exactly_its_id(edge: HttpEdge) -> None:
    edge.service.running_ids |= {"chatcmpl-req-10"}
    for wrong in ("chatcmpl-req-1", "req-10", "chatcmpl-req-100", "chatcmpl-req-10%20", "*"):
        response = await edge.client.send("POST", f"/v1/requests/{wrong}/cancel")
        assert (response.status, response.error()["param"]) == (404, "id"), wrong
    response = await edge.client.send("POST", "/v1/requests/chatcmpl-req-10/cancel")
    assert response.status == 200
    assert response.json() == {"id": "chatcmpl-req-10", "status": "cancelled"}
    assert edge.service.cancelled == ["chatcmpl-req-10"]


async def test_an_instance_is_drained_by_name(edge: HttpEdge) -> None:
    assert (await edge.client.send("POST", "/admin/instances/decode/drain")).status == 404
    response = await edge.client.send("POST", "/admin/instances/decode-0/drain")
    assert response.status == 200
    assert response.json() == {"name": "decode-0", "status": "draining"}
    assert edge.service.drained == ["decode-0"]


@pytest.mark.parametrize("path", ["/v1/requests/req-1/cancel", "/admin/instances/decode-0/drain"])
async def test_asking_is_not_doing(edge: HttpEdge, path: str) -> None:
    assert (await edge.client.get(path)).status == 405
    assert edge.service.cancelled == [] and edge.service.drained == []
