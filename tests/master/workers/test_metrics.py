from prometheus_client import CollectorRegistry

from master.workers.metrics import WorkersCollector
from protos.session_messages import LoadReport, Role
from tests.scripted_worker import Fleet, ScriptedWorker, soon


async def test_workers_are_counted_by_state() -> None:
    registry = CollectorRegistry()
    async with (
        ScriptedWorker("mix-0", Role.MIX) as mix,
        ScriptedWorker("mix-1", Role.MIX, load=LoadReport(Role.MIX, is_draining=True)) as leaving,
        Fleet() as fleet,
    ):
        registry.register(WorkersCollector(lambda: fleet.workers.sessions, fleet.workers.prefixes))
        await fleet.join(mix)
        fleet.workers.add_static(leaving.address)
        await soon(lambda: registry.get_sample_value("pdserve_workers", {"state": "draining"}) == 1)
        assert registry.get_sample_value("pdserve_workers", {"state": "open"}) == 1
        assert registry.get_sample_value("pdserve_workers", {"state": "connecting"}) is None
