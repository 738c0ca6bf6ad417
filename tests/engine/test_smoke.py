from chargehand.engine.ids import UlidMaker
from chargehand.engine.job import NewJob
from chargehand.engine.store import Claim, Store


async def test_a_submitted_job_can_be_claimed(store: Store) -> None:
    job_id = UlidMaker()()
    assert (await store.submit(NewJob(job_id, "default", "job", "q", b"{}"))).created
    assert [job.id for job in (await store.claim(Claim(("q",), "me", 60))).jobs] == [job_id]
