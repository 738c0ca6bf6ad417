"""Calls for flows, jobs of any door that wait for each other: `client.flows`."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from chargehand.client.errors import JobFailed, NotDone
from chargehand.client.transport.calls import LARGEST_PAGE, given, key_header, path_of
from chargehand.client.transport.job_log import JobCalls, JobLog
from chargehand.client.types.engine import Event, MovedJob, State, SubmittedJob, Webhook
from chargehand.client.types.flows import Flow, FlowStep, ListedFlow, NewStep


class FlowCalls(JobCalls[Event, Flow]):
    base = "/engine"

    async def submit(
        self,
        steps: Sequence[NewStep | Mapping[str, Any]],
        *,
        name: str = "",
        webhook: Webhook | str | None = None,
        metadata: Mapping[str, Any] | None = None,
        idempotency_key: str = "",
    ) -> SubmittedJob:
        """Submit a flow: all of its steps, or none if one is refused."""
        wishes = {
            "name": name,
            "webhook": Webhook(webhook) if isinstance(webhook, str) and webhook else webhook,
            "metadata": metadata,
        }
        body = {"steps": list(steps), **given(wishes)}
        return await self._call("POST", "/flows", SubmittedJob, body, safe=True, headers=key_header(idempotency_key))

    async def get(self, flow_id: str, *, first: int = 0, limit: int = LARGEST_PAGE, retries: int | None = None) -> Flow:
        """The flow with so many of its steps, up to 500, from this number on."""
        query = {"first": str(first), "limit": str(limit)}
        return await self._get(path_of("flows", flow_id), Flow, query=query, retries=retries)

    async def steps(self, flow_id: str) -> AsyncGenerator[FlowStep, None]:
        """All steps of the flow, in the order in which they were submitted."""
        first: int | None = 0
        while first is not None:
            flow = await self.get(flow_id, first=first)
            for step in flow.steps:
                yield step
            first = flow.next

    def find(
        self, *, state: State | None = None, name: str = "", before: str = "", limit: int | None = None
    ) -> AsyncGenerator[ListedFlow, None]:
        """Newest first. Without a limit: all; stop reading when you have enough."""
        by = {"state": state, "name": name}
        return self._items("/flows", "jobs", list[ListedFlow], by, before=before, limit=limit)

    async def wait(self, flow_id: str, *, timeout: float | None = None) -> Flow:
        """Return the flow once it has succeeded. JobFailed if it did not, NotDone if it has not ended in time."""
        flow = await self._log(flow_id).end(timeout) or Flow(id=flow_id, state="unknown")
        if not flow.finished:
            raise NotDone(flow, flow_id, flow.state)
        if flow.state != "succeeded":
            raise JobFailed(flow, flow.error or flow.state)
        return flow

    async def cancel(self, flow_id: str) -> MovedJob:
        """Cancel the flow and its steps. It ends when those that run have ended."""
        return await self._call("POST", path_of("flows", flow_id, "/cancel"), MovedJob, {}, safe=False)

    async def retry(self, flow_id: str, step: str = "") -> MovedJob:
        """Run a step and all that come after it again; without a step all that did not succeed."""
        return await self._call(
            "POST", path_of("flows", flow_id, "/retry"), MovedJob, given({"from": step}), safe=False
        )

    def _log(self, job_id: str) -> JobLog[Event, Flow]:
        return JobLog(
            self._http, self.base + path_of("flows", job_id, "/events"), Event, lambda: self.get(job_id, retries=0)
        )
