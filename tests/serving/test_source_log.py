"""What strangers cause to be logged, and how little of it."""

import logging

import pytest

from serving.source_log import INTERVAL_S, MAX_SOURCES, SourceLog

logger = logging.getLogger("test.sources")


def test_each_source_is_said_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 0.0
    log = SourceLog(logger, now=lambda: now_s)
    for _ in range(3):
        log.warning("10.0.0.1", "knocked")
    log.warning("10.0.0.2", "knocked")
    now_s = INTERVAL_S
    log.warning("10.0.0.1", "knocked")
    assert [record.getMessage() for record in caplog.records] == [
        "10.0.0.1 knocked",
        "10.0.0.2 knocked",
        "10.0.0.1 knocked (and 2 more like that before)",
    ]


def test_only_so_many_sources_are_remembered() -> None:
    log = SourceLog(logger)
    for number in range(MAX_SOURCES + 10):
        log.warning(f"10.0.{number // 256}.{number % 256}", "knocked")
    assert len(log) == MAX_SOURCES
