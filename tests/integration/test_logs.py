"""What real processes say of themselves."""

import re

from tests.cluster import Cluster


def test_a_start_is_told_in_three_lines(cluster: Cluster) -> None:
    for process in (cluster.master, *cluster.workers.values()):
        messages = [line.split(": ", 1)[1] for line in process.log.read_text().splitlines() if " INFO " in line]
        first = next(number for number, text in enumerate(messages) if text.startswith("pdserve-"))
        who, where, what = messages[first : first + 3]
        assert re.match(r"pdserve-(master|worker) \S+, .*pid \d+$", who)
        assert f":{process.http_port}" in where and "registry" in where
        assert what.startswith("serving ")


def test_the_master_that_ran_a_request_tells_its_timeline(cluster: Cluster) -> None:
    with cluster.client() as client:
        completion = client.generate("a", max_tokens=4)
        (story,) = client.trace(completion.id)
    assert (story.outcome, story.completion_tokens) == ("finished", len(completion.token_ids))
    spans = {span.name: span for span in story.spans}
    assert {"attempt", "queue", "prefill", "transfer", "decode"} <= set(spans)
    assert spans["prefill"].instance != spans["decode"].instance == spans["transfer"].instance
    assert all(0 <= span.start_s <= story.timeline.total_s for span in story.spans)
