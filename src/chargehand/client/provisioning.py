"""Calls for servers and provisioning jobs: `client.provisioning`.

    async with AsyncClient("http://127.0.0.1:8484") as client:
        made = await client.provisioning.submit("SN-1", recipe)
        async for event in client.provisioning.watch(made.job_id):
            print(event.time, event.message)

Calls raise ClientError: `text` is the key (`validation.schema`), `detail` the sentence, and `details` names every wrong field of
a recipe.
"""

from collections.abc import AsyncGenerator, Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from chargehand.client.errors import JobFailed, NotDone
from chargehand.client.transport.calls import Calls, key_header
from chargehand.client.transport.job_log import Away, Back, JobLog, ignore
from chargehand.client.types.provisioning import (
    Event,
    Job,
    ListedProvisioningJob,
    ListedProvisioningJobs,
    ListedServers,
    NewProvisioningJob,
    NewServer,
    ProbeReport,
    RegisteredServer,
    StatusWebhook,
    SubmittedProvisioningJob,
)

PROBE_SECONDS = 180.0  # a BMC may be slow


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
        """Register a server, or replace all of its record but a password that is not given."""
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
        """All servers, by serial."""
        async for page in self._pages("/servers", ListedServers, {}, cursor="after"):
            for server in page.servers:
                yield server

    async def remove_server(self, serial: str) -> None:
        await self._http.call("DELETE", self.base + _server(serial), safe=False)

    async def probe(self, serial: str) -> ProbeReport:
        """Ask the BMC what it is and can do. Nothing changes at the machine. `ok` is False if the BMC could not be asked."""
        return await self._call("POST", _server(serial, "/probe"), ProbeReport, safe=True, timeout=PROBE_SECONDS)

    # recipes ------------------------------------------------------------------------------------------------------------

    async def validate(self, recipe: Any) -> None:
        """Return if the recipe is valid, else raise. Bytes are taken for its JSON."""
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
        """Submit a job for a server. Bytes are taken for the recipe's JSON."""
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

    async def jobs(
        self, *, status: str = "", serial: str = "", before: str = "", limit: int | None = None
    ) -> AsyncGenerator[ListedProvisioningJob, None]:
        """Newest first. Without a limit: all; stop reading when you have enough."""
        by = {"status": status, "server_serial": serial}
        async for page in self._pages("/jobs", ListedProvisioningJobs, by, before=before, limit=limit):
            for job in page.jobs:
                yield job

    async def wait(self, job_id: str, *, timeout: float | None = None) -> Job:
        """Return the job once it is complete and has succeeded. JobFailed if it did not, NotDone if it is not complete in time."""
        job = await self._log(job_id).end(timeout) or Job(job_id=job_id, status="unknown")
        if not job.finished:
            step = f", at {job.progress.step}" if job.progress.step else ""
            raise NotDone(job, job_id, job.status + step)
        if job.outcome != "succeeded":
            raise JobFailed(job, job.error or job.outcome or "the server gives no reason")
        return job

    async def cancel(self, job_id: str) -> ListedProvisioningJob:
        """Cancel a job. Its media are ejected before it is complete."""
        return await self._call("POST", _job(job_id, "/cancel"), ListedProvisioningJob, safe=False)

    async def retry(self, job_id: str) -> ListedProvisioningJob:
        """Start a job that failed or was cancelled again, from the beginning."""
        return await self._call("POST", _job(job_id, "/retry"), ListedProvisioningJob, safe=False)

    def events(self, job_id: str, after: int = 0) -> AsyncGenerator[Event, None]:
        """The events until now."""
        return self._log(job_id).read(after)

    def watch(
        self, job_id: str, after: int = 0, *, away: Away = ignore, back: Back = ignore
    ) -> AsyncGenerator[Event, None]:
        """The events as they happen, each once and in order, until the job is complete. Waits while the server is away."""
        return self._log(job_id).watch(after, away, back)

    def _log(self, job_id: str) -> JobLog[Event, Job]:
        return JobLog(self._http, self.base + _job(job_id, "/events"), Event, lambda: self.job(job_id, retries=0))


def _raw(recipe: Any) -> Any:
    """Send JSON as it was written, so that the server can see a name that occurs twice."""
    return msgspec.Raw(recipe) if isinstance(recipe, bytes) else recipe


def _server(serial: str, verb: str = "") -> str:
    return f"/servers/{quote(serial, safe='')}{verb}"


def _job(job_id: str, verb: str = "") -> str:
    return f"/jobs/{quote(job_id, safe='')}{verb}"
