"""What a worker knows of what masters think of it."""

import pytest

from protos.session_messages import Standing
from worker.standings import MAX_MASTERS, Standings


def test_nobody_has_refused_a_worker_that_nobody_knows() -> None:
    assert Standings().refusal is None


def test_one_master_that_sends_work_is_enough() -> None:
    standings = Standings()
    standings.hear("a", Standing("other model"))
    assert standings.refusal == "refused by master a: other model"
    standings.hear("b", Standing())
    assert standings.refusal is None
    standings.leave("b")
    standings.leave("a")
    assert standings.refusal == "refused by master a: other model", "it comes back, and goes again"
    standings.hear("a", Standing())
    standings.leave("a")
    assert standings.refusal is None


def test_a_refusal_is_one_line_however_often_it_comes(caplog: pytest.LogCaptureFixture) -> None:
    standings = Standings()
    for _ in range(5):
        standings.refuse("a", "other version")
        standings.hear("b", Standing("other model"))
        standings.leave("b")
    assert [record.getMessage() for record in caplog.records] == [
        "master a is refused: other version",
        "master b does not use this worker: other model",
    ]
    standings.hear("b", Standing("no secret"))
    assert len(caplog.records) == 3


def test_only_so_many_masters_are_remembered() -> None:
    standings = Standings()
    for number in range(MAX_MASTERS + 1):
        standings.refuse(str(number), "other version")
    standings.hear("0", Standing())
    assert standings.refusal is None
