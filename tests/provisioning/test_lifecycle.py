"""A job from end to end: a real server, a BMC on a socket, and a machine that does what its medium says."""

from pathlib import Path

from tests.api.serving import on_sqlite
from tests.provisioning.lab import SERIAL, lab


@on_sqlite
async def test_a_machine_is_installed_and_media_and_override_are_removed(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path) as room:
        await room.register()
        job_id = await room.submit()
        job = await room.reaches(job_id, "complete")
        assert (job["outcome"], job["failed_step"], job["error"], job["warnings"]) == ("succeeded", None, None, [])
        assert room.guest.imaged == [job_id]
        assert room.guest.answers[0][0] == 200
        assert [room.bmc.image(drive) for drive in room.bmc.system.drives] == ["", ""]
        assert room.bmc.system.enabled == "Disabled"
        assert [boot.cd for boot in room.guest.boots] == [True, False]
        statuses = [
            event["status"] for event in await room.events(job_id) if event["kind"] in ("transition", "outcome")
        ]
        assert list(dict.fromkeys(statuses)) == ["queued", "provisioning", "succeeded", "complete"]
        assert (await room.api.get(f"/api/v1/servers/{SERIAL}")).good()["active_job"] is None
