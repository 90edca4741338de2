"""What the page is given, and to whom."""

import base64
import json

import pytest

from master.edge.http.config import HttpConfig
from serving.keys import Keys
from tests.http_service import HttpEdge, HttpService, serving

FILES = ("/dashboard", "/dashboard/page.js", "/dashboard/style.css")
PAGE_PATHS = (*FILES, "/dashboard/data", "/dashboard/requests/req-1")


def basic(password: str) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(f"me:{password}".encode()).decode()}


async def test_the_data_tell_of_instances_figures_and_requests(service: HttpService) -> None:
    async with serving(service) as edge:
        data = (await edge.client.get("/dashboard/data")).json()
    cluster, live, requests = data["cluster"], data["live"], data["requests"]
    assert isinstance(cluster, dict) and isinstance(live, dict) and isinstance(requests, dict)
    states = {one["name"]: one["state"] for one in cluster["instances"]}
    assert len(states) == 50
    assert (states["prefill-0"], states["refused-0"], states["<b>stalled</b>"]) == ("open", "refused", "stalled")
    (hop,) = cluster["hops"]
    assert (hop["prefill"], hop["decode"], hop["requests"]) == ("prefill-1", "decode-0", 41)
    assert (hop["bytes"], hop["mean_s"]) == (41 * 3_000_000, pytest.approx(0.3))
    assert live["cached_share"] == pytest.approx(0.32) and live["errors"] == {"internal_error": 1}
    (point,) = live["points"]
    assert point["ttft_s"] == {"p50": 1.2, "p95": 1.2, "p99": 1.2} and point["tpot_s"]["p50"] == 0.1
    assert [one["id"] for one in requests["failed"]] == ["req-99"]
    assert requests["recent"][0]["id"] == "req-99" and requests["slow"][1]["id"] == "req-39"


@pytest.mark.parametrize("name", ["req-7", "chatcmpl-req-7", "name-7"])
async def test_a_request_is_found_by_its_id_its_answers_or_its_clients_name(service: HttpService, name: str) -> None:
    async with serving(service) as edge:
        (found,) = (await edge.client.get(f"/dashboard/requests/{name}")).list_of("requests")
        assert (await edge.client.get("/dashboard/requests/req")).status == 404
    assert found["record"]["id"] == "req-7" and found["tpot_s"] == pytest.approx(0.1)
    assert [span["name"] for span in found["spans"] if span["attempt"] == 2] == [
        *("attempt", "queue", "decode queue", "prefill", "transfer", "decode")
    ]


async def test_only_the_page_itself_may_act_through_its_paths(service: HttpService) -> None:
    """A browser that knows the password would send it for any page that asks for these paths."""
    own = {"x-pdserve-page": "1"}
    service.running_ids.add("req-5")
    async with serving(service) as edge:
        assert (await edge.client.send("POST", "/dashboard/drain/decode-0")).status == 400
        assert service.drained == []
        assert (await edge.client.send("POST", "/dashboard/drain/decode-0", headers=own)).status == 200
        assert (await edge.client.send("POST", "/dashboard/cancel/req-5")).status == 400
        assert (await edge.client.send("POST", "/dashboard/cancel/req-5", headers=own)).status == 200
    assert (service.drained, service.cancelled) == (["decode-0"], ["req-5"])


async def test_where_there_are_keys_a_browser_asks_for_one_and_it_opens_nothing_else(service: HttpService) -> None:
    async with serving(service, keys=Keys(["secret"])) as edge:
        for path in PAGE_PATHS:
            refused = await edge.client.get(path)
            assert refused.status == 401
            assert "Basic" in refused.headers["www-authenticate"], path
            for headers in (basic("wrong"), {"authorization": "Basic !"}, {"authorization": "Basic c2VjcmV0"}):
                assert (await edge.client.send("GET", path, headers=headers)).status == 401
            for headers in (basic("secret"), {"authorization": "Bearer secret"}):
                assert (await edge.client.send("GET", path, headers=headers)).status == 200, path
        assert (await edge.client.send("GET", "/v1/models", headers=basic("secret"))).status == 401


async def test_it_can_be_turned_off(service: HttpService) -> None:
    async with serving(service, HttpConfig(has_dashboard=False)) as edge:
        for path in PAGE_PATHS:
            assert (await edge.client.get(path)).status == 404


async def test_nothing_comes_from_elsewhere(edge: HttpEdge) -> None:
    for path in FILES:
        response = await edge.client.get(path)
        assert "default-src 'none'" in response.headers["content-security-policy"]
        assert "https://" not in response.text
    assert (await edge.client.get("/dashboard/secret.txt")).status == 404


async def test_no_prompt_and_no_output_is_in_what_is_kept(service: HttpService) -> None:
    async with serving(service) as edge:
        found = (await edge.client.get("/dashboard/requests/req-7")).json()
    assert {"prompt_ids", "text", "token_ids", "output"}.isdisjoint(json.dumps(found).replace('"', " ").split())
