"""`client.provisioning` against a real server, also over a bad network."""

import asyncio
from pathlib import Path

import pytest

from chargehand.client import AsyncClient, ClientError, JobFailed, NotDone
from chargehand.client.transport.sse import MAX_EVENT, EventParser, TooLong
from chargehand.client.types.provisioning import StatusWebhook
from tests.api.serving import on_sqlite
from tests.client.proxy import cutting
from tests.provisioning.bmc_habits import PASSWORD, USER
from tests.provisioning.guest import Script
from tests.provisioning.lab import RECIPE, SERIAL, lab

STREAM = b": hello\n\nid: 1\nevent: note\ndata: one\n\n\r\nid: 2\r\ndata: two\r\ndata:more\r\n\r\ndata: three\n\n"


def test_events_are_the_same_however_their_bytes_arrive() -> None:
    for size in range(1, len(STREAM) + 1):
        events = EventParser()
        parts = [STREAM[at : at + size] for at in range(0, len(STREAM), size)]
        assert [each for part in parts for each in events.read(part)] == [
            ("note", b"one"),
            ("", b"two\nmore"),
            ("", b"three"),
        ]


def test_an_event_without_an_end_does_not_fill_the_memory() -> None:
    events = EventParser()
    assert events.read(b"data: " + b"x" * (MAX_EVENT - 10)) == []
    with pytest.raises(TooLong):
        events.read(b"x" * 10)


@on_sqlite
async def test_a_server_is_registered_probed_and_provisioned(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path) as room, AsyncClient(room.server.url) as client:
        api = client.provisioning
        server = await api.register(SERIAL, room.bmc.url, username=USER, password=PASSWORD, labels={"rack": "12"})
        assert (server.has_password, server.labels) == (True, {"rack": "12"})
        probe = await api.probe(SERIAL)
        assert probe.facts is not None
        assert [(slot.name, slot.kind) for slot in probe.facts.slots] == [("Cd1", "cd"), ("Cd2", "cd")]
        assert [each.server_serial async for each in api.servers()] == [SERIAL]

        await api.validate(RECIPE)
        made = await api.submit(SERIAL, RECIPE, idempotency_key="k", metadata={"ticket": 7})
        assert (await api.submit(SERIAL, RECIPE, idempotency_key="k", metadata={"ticket": 7})).job_id == made.job_id
        with pytest.raises(NotDone):
            await api.wait(made.job_id, timeout=0.01)
        statuses = [event.status async for event in api.watch(made.job_id)]
        assert list(dict.fromkeys(statuses)) == ["queued", "provisioning", "succeeded", "complete"]
        job = await api.wait(made.job_id)
        assert (job.finished, job.outcome, job.metadata) == (True, "succeeded", {"ticket": 7})
        assert [each.job_id async for each in api.jobs(serial=SERIAL, status="complete")] == [made.job_id]
        assert {event.sequence async for event in api.events(made.job_id, 3)} == set(range(4, len(statuses) + 1))
        assert [event async for event in api.watch(made.job_id, 10**6)] == [], "all of it was seen before"
        await api.remove_server(SERIAL)
        with pytest.raises(ClientError, match="there is no server"):
            await api.server(SERIAL)


@on_sqlite
async def test_a_failure_comes_with_its_key_its_meaning_and_what_to_do(store_url: str, tmp_path: Path) -> None:
    async with (
        lab(store_url, tmp_path, script=Script(fails_at="partition.service")) as room,
        AsyncClient(room.server.url) as client,
    ):
        await room.register()
        made = await client.provisioning.submit(SERIAL, RECIPE)
        with pytest.raises(JobFailed, match="partition") as failed:
            await client.provisioning.wait(made.job_id, timeout=60)
        failure = failed.value.job.failure
        assert failure is not None
        assert (failure.failed_step, failure.unit) == ("workflow.partition", "partition.service")
        assert (failure.meaning, failure.can_retry) == ("partitioning the disk failed", False)
        assert failure.advice.startswith("check target_disk")
        room.guest.script = Script(stops_at="partition.service")
        assert (await client.provisioning.retry(made.job_id)).status == "queued"
        await room.waits(made.job_id)
        assert (await client.provisioning.cancel(made.job_id)).outcome == "cancelled"


@on_sqlite
async def test_a_refusal_names_the_key_and_every_field(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path) as room, AsyncClient(room.server.url) as client:
        with pytest.raises(ClientError) as refused:
            await client.provisioning.submit(SERIAL, {**RECIPE, "wipe": False, "hostname": "-"})
        assert (refused.value.status, refused.value.text) == (400, "validation.schema")
        assert {detail.path for detail in refused.value.details} == {"/recipe/wipe", "/recipe/hostname"}
        with pytest.raises(ClientError) as unknown:
            await client.provisioning.submit(
                SERIAL, RECIPE, webhook=StatusWebhook("http://127.0.0.1:9/", on=("complete",))
            )
        assert (unknown.value.status, unknown.value.text) == (404, "validation.server")
        with pytest.raises(ClientError, match="404"):
            async for _ in client.provisioning.watch("0" * 26):
                pass


# a bad network ----------------------------------------------------------------------------------------------------------


@on_sqlite
async def test_a_lost_answer_makes_no_second_job_and_a_cut_stream_loses_and_repeats_no_event(
    store_url: str, tmp_path: Path
) -> None:
    async with lab(store_url, tmp_path, script=Script(step_seconds=0.2)) as room:
        await room.register()
        async with cutting(room.server.url, 700) as (url, resumed), AsyncClient(url) as client:
            made = await client.provisioning.submit(SERIAL, RECIPE)
            async with asyncio.timeout(60):
                seen = [event.sequence async for event in client.provisioning.watch(made.job_id)]
            assert [job.job_id async for job in client.provisioning.jobs()] == [made.job_id]
        assert seen == [event["sequence"] for event in await room.events(made.job_id)]
        assert len(set(resumed)) > 3, "it went on after the last event that it had"


@on_sqlite
async def test_a_caller_may_stop_waiting_for_a_server_that_is_away(store_url: str, tmp_path: Path) -> None:
    class Enough(Exception):
        pass

    def away(error: ClientError) -> None:
        raise Enough

    async with lab(store_url, tmp_path, script=Script(silent=True)) as room, AsyncClient(room.server.url) as client:
        job_id = await room.waiting()
        events = client.provisioning.watch(job_id, away=away)
        await anext(events)
        await room.stop()
        with pytest.raises(Enough):
            _ = [event async for event in events]
