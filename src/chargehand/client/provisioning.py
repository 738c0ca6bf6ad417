"""Machines and their provisioning, as calls: `client.provisioning`.

    async with AsyncClient("http://127.0.0.1:8484") as client:
        made = await client.provisioning.submit("SN-1", recipe)
        async for event in client.provisioning.watch(made.job_id):
            print(event.time, event.message)

What goes wrong on the way is a ClientError: `text` is the key (`validation.schema`), `detail` the sentence, and `details` names
every field that a recipe has wrong.
"""

from collections.abc import AsyncGenerator, Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from chargehand.client.errors import JobFailed, NotDone
from chargehand.client.transport.calls import Calls, key_header
from chargehand.client.transport.job_log import Away, Back, Log, nothing
from chargehand.client.types.provisioning import (
    Event,
    Job,
    ListedProvisioningJob,
    ListedProvisioningJobs,
    NewProvisioningJob,
    NewServer,
    ProbeReport,
    RegisteredServer,
    RegisteredServers,
    StatusWebhook,
    SubmittedProvisioningJob,
)

PROBE_SECONDS = 180.0  # a BMC takes its time


class ProvisioningCalls(Calls):
    base = "/api/v1"

    # servers ------------------------------------------------------------------------------------------------------------

    async def register(
        self,
        serial: str,
        bmc_address: str,
        *,
        username: str = "",
        password: str | None = None,
        system_uuid: str | None = None,
        vendor: str | None = None,
        tls: str = "verify",
        unidentified: bool = False,
        labels: Mapping[str, str] = {},
    ) -> RegisteredServer:
        """A server that is known already becomes what is said here; only a password that is not given stays as it is."""
        new = NewServer(
            bmc_address=bmc_address,
            bmc_username=username,
            bmc_password=password,
            system_uuid=system_uuid,
            vendor=vendor,
            tls=tls,
            unidentified=unidentified,
            labels=dict(labels),
        )
        return await self._call("PUT", _server(serial), RegisteredServer, new, safe=True)

    async def server(self, serial: str) -> RegisteredServer:
        return await self._call("GET", _server(serial), RegisteredServer, safe=True)

    async def servers(self) -> AsyncGenerator[RegisteredServer, None]:
        """All of them, by their serials."""
        async for page in self._pages("/servers", RegisteredServers, {}, "after"):
            for server in page.servers:
                yield server

    async def remove_server(self, serial: str) -> None:
        await self._http.call("DELETE", self.base + _server(serial), safe=False)

    async def probe(self, serial: str) -> ProbeReport:
        """What its BMC is and can do. Nothing is changed at the machine; one that cannot be asked is `ok=False`."""
        return await self._call("POST", _server(serial, "/probe"), ProbeReport, safe=True, timeout=PROBE_SECONDS)

    # recipes ------------------------------------------------------------------------------------------------------------

    async def validate(self, recipe: Any) -> None:
        """Returns if the recipe is good. Bytes are taken for its JSON."""
        await self._http.call("POST", f"{self.base}/recipes/validate", _raw(recipe), safe=True)

    async def recipe_schema(self) -> dict[str, Any]:
        return await self._call("GET", "/recipe-schema", dict[str, Any], safe=True)

    # jobs ---------------------------------------------------------------------------------------------------------------

    async def submit(
        self,
        serial: str,
        recipe: Any,
        *,
        webhook: StatusWebhook | str | None = None,
        priority: int = 0,
        metadata: Mapping[str, Any] = {},
        idempotency_key: str = "",
    ) -> SubmittedProvisioningJob:
        """A key is made where none is given, so that an answer that was lost is asked for again without a second job."""
        new = NewProvisioningJob(
            server_serial=serial,
            recipe=_raw(recipe),
            webhook=StatusWebhook(webhook) if isinstance(webhook, str) else webhook,
            priority=priority,
            metadata=dict(metadata),
        )
        return await self._call(
            "POST", "/jobs", SubmittedProvisioningJob, new, safe=True, headers=key_header(idempotency_key)
        )

    async def job(self, job_id: str, *, retries: int | None = None) -> Job:
        return await self._call("GET", _job(job_id), Job, safe=True, retries=retries)

    async def jobs(self, *, status: str = "", serial: str = "") -> AsyncGenerator[ListedProvisioningJob, None]:
        """Newest first, all there are: stop reading when it is enough."""
        async for page in self._pages("/jobs", ListedProvisioningJobs, {"status": status, "server_serial": serial}):
            for job in page.jobs:
                yield job

    async def wait(self, job_id: str, *, timeout: float | None = None) -> Job:
        """The job once it is complete and has succeeded. JobFailed if it did not, NotDone if it is not complete by then."""
        job = await self._log(job_id).end(timeout) or Job(job_id=job_id, status="unknown")
        if not job.finished:
            raise NotDone(job, f"{job.status}, at {job.progress.step}" if job.progress.step else job.status)
        if job.outcome != "succeeded":
            raise JobFailed(job, job.error or job.outcome or "it does not say why")
        return job

    async def cancel(self, job_id: str) -> ListedProvisioningJob:
        """Media are ejected before the job is complete."""
        return await self._call("POST", _job(job_id, "/cancel"), ListedProvisioningJob, safe=False)

    async def retry(self, job_id: str) -> ListedProvisioningJob:
        """A job that failed or was cancelled starts again, from the beginning."""
        return await self._call("POST", _job(job_id, "/retry"), ListedProvisioningJob, safe=False)

    def events(self, job_id: str, after: int = 0) -> AsyncGenerator[Event, None]:
        """What happened to it until now."""
        return self._log(job_id).read(after)

    def watch(
        self, job_id: str, after: int = 0, *, away: Away = nothing, back: Back = nothing
    ) -> AsyncGenerator[Event, None]:
        """Its events as they happen, each once and in order, until the job is complete. A server that is away is waited for."""
        return self._log(job_id).watch(after, away, back)

    def _log(self, job_id: str) -> Log[Event, Job]:
        return Log(self._http, self.base + _job(job_id, "/events"), Event, lambda: self.job(job_id, retries=0))


def _raw(recipe: Any) -> Any:
    """JSON as it was written: that a name stands in it twice is for the server to see."""
    return msgspec.Raw(recipe) if isinstance(recipe, bytes) else recipe


def _server(serial: str, verb: str = "") -> str:
    return f"/servers/{quote(serial, safe='')}{verb}"


def _job(job_id: str, verb: str = "") -> str:
    return f"/jobs/{quote(job_id, safe='')}{verb}"
