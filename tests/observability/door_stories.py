"""Stories that make the inference and the provisioning door raise each of their alerts."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.api.serving import until
from tests.inference.calling import Caller, settings_for
from tests.inference.conformance import Model, OllamaTarget
from tests.observability.watched import HERE, Story, Watched
from tests.provisioning.bmc import FakeBmc
from tests.provisioning.bmc_habits import PASSWORD, USER, Habits
from tests.provisioning.lab import QUICK, RECIPE, SERIAL

NOBODY = "http://127.0.0.1:9"  # a port where no service listens


# models -----------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def a_target(folder: Path) -> AsyncIterator[dict[str, Any]]:
    """A target with room for one model."""
    async with OllamaTarget({"a": Model(), "b": Model()}) as target:
        yield settings_for(folder, target, inference__targets=[{"name": "laptop", "url": target.url, "slots": 1}])


def caller(world: Watched) -> Caller:
    return Caller(world.api.url, world.api.session)


async def a_job_for_a_model(world: Watched) -> None:
    await caller(world).ask()


async def jobs_for_a_model_that_nobody_has(world: Watched, _n: int) -> None:
    job = await caller(world).ended(await caller(world).ask(model="missing"))
    assert job["state"] == "failed"


async def jobs_for_two_models_in_turn(world: Watched, _n: int) -> None:
    for model in ("a", "b"):
        job = await caller(world).ended(await caller(world).ask(model=model))
        assert job["state"] == "done"


# machines ---------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def a_controller(folder: Path) -> AsyncIterator[dict[str, Any]]:
    yield {**QUICK, "server.data_dir": str(folder)}


async def register(world: Watched, bmc: str, password: str) -> None:
    body = {"bmc_address": bmc, "bmc_username": USER, "bmc_password": password}
    (await world.api.call("PUT", f"/api/v1/servers/{SERIAL}", body)).good()


async def a_server(world: Watched) -> None:
    await register(world, NOBODY, PASSWORD)


class ChangedPassword:
    """A BMC whose password is no longer the registered one."""

    def __init__(self) -> None:
        self._url = ""

    @asynccontextmanager
    async def beside(self, folder: Path) -> AsyncIterator[dict[str, Any]]:
        async with a_controller(folder) as settings, FakeBmc(Habits(sessions="no")) as bmc:
            self._url = bmc.url
            yield settings

    async def begin(self, world: Watched) -> None:
        await register(world, self._url, "the password before")


async def a_job_without_a_maintenance_image(world: Watched, _n: int) -> None:
    answer = await world.api.post("/api/v1/jobs", {"server_serial": SERIAL, "recipe": RECIPE})
    job_id = answer.good(202)["job_id"]

    async def complete() -> bool:
        return bool((await world.api.get(f"/api/v1/jobs/{job_id}")).good()["status"] == "complete")

    await until(complete)


async def somebody_probes(world: Watched, _n: int) -> None:
    found = await world.api.post(f"/api/v1/servers/{SERIAL}/probe")
    assert found.good()["ok"] is False


async def a_report_with_a_wrong_secret(world: Watched, _n: int) -> None:
    headers = {"X-Webhook-Secret": "that of the last image"}
    answer = await world.api.post(f"/api/v1/status-webhook/{SERIAL}", {"status": "success"}, headers)
    assert answer.status == 403


BMC = ChangedPassword()
OF_DOORS = {
    "ChargehandTargetAwayWhileJobsWait": Story(
        [{"target": "127.0.0.1:9", "instance": HERE["instance"]}],
        a_job_for_a_model,
        settings={"inference.targets": [NOBODY], "inference.probe_seconds": 0.25},
    ),
    "ChargehandModelJobsFail": Story([{}], step=jobs_for_a_model_that_nobody_has, beside=a_target),
    "ChargehandModelsThrash": Story([{"target": "laptop"}], step=jobs_for_two_models_in_turn, beside=a_target),
    "ChargehandProvisioningFails": Story([{}], a_server, a_job_without_a_maintenance_image, beside=a_controller),
    "ChargehandBmcErrors": Story([{"vendor": "other"}], BMC.begin, somebody_probes, beside=BMC.beside),
    "ChargehandStatusWebhooksRefused": Story([{}], step=a_report_with_a_wrong_secret, beside=a_controller),
}
