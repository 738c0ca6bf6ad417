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

import msgspec

from chargehand.client.errors import JobFailed, NotDone
from chargehand.client.transport.calls import filled, key_header, path_of
from chargehand.client.transport.job_log import JobCalls, JobLog
from chargehand.client.types.provisioning import (
    Event,
    Job,
    ListedProvisioningJob,
    ProbeReport,
    RegisteredServer,
    StatusWebhook,
    SubmittedProvisioningJob,
)

PROBE_SECONDS = 180.0  # a BMC may be slow


class ProvisioningCalls(JobCalls[Event, Job]):
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
        record = {
            "bmc_address": bmc_address,
            "bmc_username": username,
            "bmc_password": password,
            "system_uuid": system_uuid,
            "vendor": vendor,
            "tls": tls,
            "unidentified": unidentified,
            "labels": labels,
        }
        new = {name: value for name, value in record.items() if value is not None}
        return await self._call("PUT", path_of("servers", serial), RegisteredServer, new, safe=True)

    async def server(self, serial: str) -> RegisteredServer:
        return await self._get(path_of("servers", serial), RegisteredServer)

    def servers(self) -> AsyncGenerator[RegisteredServer, None]:
        """All servers, by serial."""
        return self._items("/servers", "servers", list[RegisteredServer], {}, cursor="after")

    async def remove_server(self, serial: str) -> None:
        await self._http.call("DELETE", self.base + path_of("servers", serial), safe=False)

    async def probe(self, serial: str) -> ProbeReport:
        """Ask the BMC what it is and can do. Nothing changes at the machine. `ok` is False if the BMC could not be asked."""
        return await self._call(
            "POST", path_of("servers", serial, "/probe"), ProbeReport, safe=True, timeout=PROBE_SECONDS
        )

    # recipes ------------------------------------------------------------------------------------------------------------

    async def validate(self, recipe: Any) -> None:
        """Return if the recipe is valid, else raise. Bytes are taken for its JSON."""
        await self._http.call("POST", f"{self.base}/recipes/validate", _raw(recipe), safe=True)

    async def recipe_schema(self) -> dict[str, Any]:
        return await self._get("/recipe-schema", dict[str, Any])

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
        hook = StatusWebhook(webhook) if isinstance(webhook, str) else webhook
        wishes = filled({"webhook": hook, "priority": priority, "metadata": metadata})
        new = {"server_serial": serial, "recipe": _raw(recipe), **wishes}
        return await self._call(
            "POST", "/jobs", SubmittedProvisioningJob, new, safe=True, headers=key_header(idempotency_key)
        )

    async def job(self, job_id: str, *, retries: int | None = None) -> Job:
        return await self._get(path_of("jobs", job_id), Job, retries=retries)

    def jobs(
        self, *, status: str = "", serial: str = "", before: str = "", limit: int | None = None
    ) -> AsyncGenerator[ListedProvisioningJob, None]:
        """Newest first. Without a limit: all; stop reading when you have enough."""
        by = {"status": status, "server_serial": serial}
        return self._items("/jobs", "jobs", list[ListedProvisioningJob], by, before=before, limit=limit)

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
        return await self._call("POST", path_of("jobs", job_id, "/cancel"), ListedProvisioningJob, safe=False)

    async def retry(self, job_id: str) -> ListedProvisioningJob:
        """Start a job that failed or was cancelled again, from the beginning."""
        return await self._call("POST", path_of("jobs", job_id, "/retry"), ListedProvisioningJob, safe=False)

    def _log(self, job_id: str) -> JobLog[Event, Job]:
        return JobLog(
            self._http, self.base + path_of("jobs", job_id, "/events"), Event, lambda: self.job(job_id, retries=0)
        )


def _raw(recipe: Any) -> Any:
    """Send JSON as it was written, so that the server can see a name that occurs twice."""
    return msgspec.Raw(recipe) if isinstance(recipe, bytes) else recipe
