import contextlib
import socket
import threading
import time

import pytest

from kvcache.transfer.name_lookup import resolve


def test_addresses_and_names_are_found() -> None:
    far = time.monotonic() + 60.0
    assert resolve("127.0.0.1", 80, far) == [(socket.AF_INET, ("127.0.0.1", 80))]
    assert resolve("::1", 80, far)[0][0] is socket.AF_INET6
    assert resolve("localhost", 80, far)


@pytest.mark.parametrize("name", ["x" * 300, "a..b"])
def test_what_cannot_be_a_name_is_an_error_of_the_system(name: str) -> None:
    with pytest.raises(OSError):
        resolve(name, 80, time.monotonic() + 60.0)


def test_a_name_server_that_does_not_answer_costs_no_more_than_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """R2"""
    answered = threading.Event()

    def look_up(host: str, port: int, **settings: int) -> list[object]:
        if settings["flags"] == 0:
            answered.wait()
        raise socket.gaierror("no address")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    with contextlib.ExitStack() as stack:
        stack.callback(answered.set)
        with pytest.raises(TimeoutError, match="worker-7"):
            resolve("worker-7", 80, time.monotonic())
