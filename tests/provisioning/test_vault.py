"""Encrypted recipes and passwords: those of older releases can still be decrypted, and no answer shows them."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from chargehand.doors.provisioning.job.orders import Orders, order_of
from chargehand.doors.provisioning.recipe.recipe import judge
from chargehand.doors.provisioning.refusals import ProvisioningRefused
from chargehand.doors.provisioning.vault import Vault
from chargehand.engine.job import Job, State
from chargehand.engine.queue import Queue
from tests.api.serving import on_sqlite
from tests.provisioning.guest import Script
from tests.provisioning.lab import RECIPE, SERIAL, lab

QUEUE = f"/engine/queues/provision/{SERIAL}"
SILENT = Script(silent=True)
KEY = b"an old key of thirty-two bytes or more"
JOB_ID = "01J0000000000000000000000A"
TEXT = (
    '{"task_target": "install-esxi.target", "wipe": true, "ks_cfg": "rootpw s3cret-ü\\n", "installer_iso": "esxi.iso"}'
)
PLAIN = {"task_target": "install-esxi.target", "wipe": True, "ks_cfg": "rootpw s3cret-ü\n", "installer_iso": "esxi.iso"}
SHOWN = {**PLAIN, "ks_cfg": {"redacted": True, "bytes": 17}}

# Both were written by the code of 0.1.0, before recipes were stored as encrypted bytes.
OLD_PAYLOAD = (
    b'{"server_serial":"SN-OLD","recipe":{"task_target":"install-esxi.target","wipe":true,"ks_cfg":{"redacted":true,'
    b'"bytes":17},"installer_iso":"esxi.iso"},"sealed":"HYB/RrKX5M91R9FacpXoWNdGMUdfT5su3cm6XWlNQO0z48A+O7R9xXQmds4TH'
    b"8WoQRe87wUqGApttKuG0X+IorRcWhwbqWRsrvX0ERRXsYB9e4awFvHftRPBkDEdOrAkaSGx+73Q2Ns3Lk60ceBeRBj77IaRmWf6mQ3MgVwahMu3"
    b'xYEDdmI="}'
)
OLD_PASSWORD = bytes.fromhex(
    "887d61d031ef98be6ca6c6f00ac5ac3e7b1a493cd204b3429d451ca2427c99471026ab4d0df944fa"
)  # of bmc/default/SN-OLD


def job(payload: bytes) -> Job:
    return Job(
        JOB_ID, Queue("provision", "default", "SN-OLD"), State.QUEUED, "", "queued", "", 0, 0, 0, 1, 0, None,
        None, "", None, None, None, "", "", "", None, 1, 0, 0, None, None, payload=payload,
    )  # fmt: skip


def test_a_recipe_that_an_older_release_encrypted_can_be_decrypted() -> None:
    old = job(OLD_PAYLOAD)
    assert Orders(Vault(KEY)).open(old).plain == PLAIN
    assert (order_of(old).server_serial, order_of(old).recipe) == ("SN-OLD", SHOWN)


def test_a_password_that_an_older_release_encrypted_can_be_decrypted() -> None:
    assert Vault(KEY).open("bmc/default/SN-OLD", OLD_PASSWORD) == b"old-password"


def test_a_recipe_is_encrypted_as_it_was_sent_and_for_its_own_job_only() -> None:
    orders = Orders(Vault(KEY))
    payload = orders.seal(JOB_ID, "SN-OLD", judge(TEXT.encode()), TEXT.encode())
    sealed = job(payload)
    assert orders.open(sealed).plain == PLAIN
    assert (order_of(sealed).server_serial, order_of(sealed).recipe) == ("SN-OLD", SHOWN)
    assert len(payload) < len(TEXT.encode()) + 200  # not in base64
    with pytest.raises(ProvisioningRefused):
        orders.open(replace(sealed, id=JOB_ID[:-1] + "B"))
    with pytest.raises(ProvisioningRefused):
        Orders(Vault(KEY[::-1])).open(sealed)


@on_sqlite
async def test_the_engine_shows_a_provisioning_job_without_its_encrypted_part(store_url: str, tmp_path: Path) -> None:
    async with lab(store_url, tmp_path) as room:
        await room.register()
        shown = (await room.api.get(f"/engine/jobs/{await room.submit()}")).good()["payload"]
        assert set(shown) == {"server_serial", "recipe"}
        assert shown["recipe"]["task_target"] == RECIPE["task_target"]


@on_sqlite
async def test_a_job_whose_key_is_lost_can_still_be_cancelled(store_url: str, tmp_path: Path) -> None:
    """Else its server could never have another job."""
    async with lab(store_url, tmp_path, script=SILENT) as room:
        job_id = await room.waiting()
        (await room.api.call("PUT", QUEUE, {"paused": True})).good()
    other = {"provisioning.key": "another key of more than thirty-two bytes, alas"}
    async with lab(store_url, tmp_path, script=SILENT, settings=other) as room:
        assert (await room.job(job_id))["status"] == "provisioning"
        (await room.api.post(f"/api/v1/jobs/{job_id}/cancel")).good()
        (await room.api.call("PUT", QUEUE, {"paused": False})).good()
        job = await room.reaches(job_id, "complete")
        assert job["outcome"] == "cancelled"
        assert any("left as it is" in warning for warning in job["warnings"])
