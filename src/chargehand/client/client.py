"""The client for programs with an event loop. `Client` has the same calls for programs without one.

    async with AsyncClient("http://127.0.0.1:8484", token="…") as client:
        job = await client.chat("llama3.2", "Why is the sky blue?")
        print(job.text)

The client's own calls are for models; `client.tasks`, `client.schedules` and `client.topics` (tasks by the clock, policies of commands),
`client.provisioning`, `client.engine` (jobs of all doors, queues), `client.flows` (jobs that wait for each other) and `client.deliveries` (webhooks)
are the other parts. Calls raise ClientError and nothing else.

A read is repeated when its answer is lost, and so is a call that creates something, because it always has an idempotency key, the caller's or
one that the client makes. Any other call is repeated only if the server did not begin with it.
"""

import os
from typing import Self

from chargehand.client.deliveries import DeliveryCalls
from chargehand.client.engine import EngineCalls
from chargehand.client.flows import FlowCalls
from chargehand.client.inference import InferenceCalls
from chargehand.client.provisioning import ProvisioningCalls
from chargehand.client.schedules import ScheduleCalls, TopicCalls
from chargehand.client.tasks import TaskCalls
from chargehand.client.transport.http import HttpTransport

DEFAULT_URL = "http://127.0.0.1:8484"


class AsyncClient(InferenceCalls):
    """Without arguments: CHARGEHAND_URL and CHARGEHAND_TOKEN, else the server on this machine."""

    def __init__(
        self, url: str | None = None, token: str | None = None, *, timeout: float = 30.0, retries: int = 4
    ) -> None:
        self.url = url or os.environ.get("CHARGEHAND_URL") or DEFAULT_URL
        given = os.environ.get("CHARGEHAND_TOKEN", "") if token is None else token
        super().__init__(HttpTransport(self.url, given, timeout=timeout, retries=retries))
        self.tasks = TaskCalls(self._http)
        self.schedules = ScheduleCalls(self._http)
        self.topics = TopicCalls(self._http)
        self.engine = EngineCalls(self._http)
        self.flows = FlowCalls(self._http)
        self.deliveries = DeliveryCalls(self._http)
        self.provisioning = ProvisioningCalls(self._http)

    @property
    def may_have_changed(self) -> bool:
        """Whether the server may have done anything but reads for this client."""
        return self._http.may_have_changed

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.close()
