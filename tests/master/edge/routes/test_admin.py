"""Cancelling and draining over HTTP; what they do to a cluster is in tests/integration."""

import json
import logging

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


ANN = {"authorization": "Bearer ann", "content-type": "application/json"}


async def test_a_request_has_the_name_that_its_client_gave_it(edge: HttpEdge) -> None:
    """R41: by header, or as vLLM and SGLang have it; told apart from other clients' names by the API key."""
    cases: list[tuple[dict[str, str], dict[str, object], list[str]]] = [
        ({"x-request-id": "mine"}, {}, ["mine", "mine"]),
        ({"x-request-id": "mine"}, {"request_id": "other"}, ["other", "other"]),
        ({}, {"rid": "sgl"}, ["sgl", "sgl"]),
        ({}, {"rid": ["one", "two"]}, ["one", "two"]),
    ]
    for headers, fields, names in cases:
        edge.service.requests.clear()
        body = json.dumps({"prompt": ["a", "b"], **fields}).encode()
        assert (await edge.client.send("POST", "/v1/completions", body, ANN | headers)).status == 200
        named = [(request.client, request.name) for request in edge.service.requests]
        assert [name for _, name in named] == names
        assert len({client for client, _ in named}) == 1
    await edge.client.send("POST", "/v1/requests/mine/cancel", headers=ANN)
    await edge.client.send("POST", "/v1/requests/mine/cancel", headers={"x-api-key": "bob"})
    await edge.client.send("POST", "/v1/requests/mine/cancel", headers={})
    ann, bob, nobody = edge.service.cancellers
    assert (edge.service.requests[0].client, edge.service.requests[0].name) == (ann, "one")
    assert len({ann, bob, nobody}) == 3 and nobody == "" and "ann" not in ann


@pytest.mark.parametrize(("field", "name"), [("rid", ["a"]), ("rid", "x" * 257), ("request_id", "x" * 257)])
async def test_a_name_that_is_none_is_refused(edge: HttpEdge, field: str, name: object) -> None:
    response = await edge.client.post("/v1/completions", prompt=["a", "b"], **{field: name})
    assert (response.status, response.error()["param"]) == (400, field)


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


async def test_who_did_it_is_logged(edge: HttpEdge, caplog: pytest.LogCaptureFixture) -> None:
    """R34: by address and by which key, which is not shown itself."""
    caplog.set_level(logging.INFO, "master.edge")
    edge.service.running_ids |= {"req-7"}
    await edge.client.send("POST", "/v1/requests/req-7/cancel", headers={"authorization": "Bearer secret"})
    await edge.client.send("POST", "/admin/instances/decode-0/drain")
    cancelled, drained = [record.message for record in caplog.records if " by " in record.message]
    assert "req-7" in cancelled and "key " in cancelled and "secret" not in cancelled
    assert "decode-0" in drained and "key" not in drained
