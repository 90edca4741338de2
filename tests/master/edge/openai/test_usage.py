import pytest

from master.edge.openai.usage import stage_times
from master.output import Timeline


def test_fastdeploys_stages_are_as_long_as_the_timelines_parts() -> None:
    """A5: the differences that its benchmark takes."""
    timeline = Timeline(
        admit_s=1, route_wait_s=2, retry_s=3, queue_s=4, prefill_s=5, decode_queue_s=0.5, transfer_s=6,
        transfer_wait_s=5, total_s=100,
    )  # fmt: skip
    times = stage_times(timeline, now=1000)
    assert times["arrival_time"] == 900
    for first, last, seconds in [
        ("arrival_time", "scheduler_recv_req_time", 1),
        ("scheduler_recv_req_time", "engine_get_req_time", 9),
        ("inference_start_time", "engine_recv_first_token_time", 5),
        ("wait_for_sending_cache_time", "send_request_output_to_decode_time", 1),
        ("decode_recv_req_time", "decode_preallocate_req_time", 0.5),
        ("decode_recv_first_token_time", "decode_inference_start_time", 0),
    ]:
        assert times[last] - times[first] == pytest.approx(seconds), (first, last)
