"""A server, as calls, in a loop of yours. `Client` has the same calls without one.

    async with AsyncClient("http://127.0.0.1:8484", token="…") as client:
        job = await client.chat("llama3.2", "Why is the sky blue?")
        print(job.text)

Models are the client's own calls; beside them are `client.tasks`, `client.provisioning`, `client.engine` (jobs of any sort, queues) and
`client.deliveries` (webhooks). What goes wrong on the way is always a ClientError.

Reads are repeated when their answer is lost. What makes something always has an idempotency key, yours or one of ours, and is
repeated too; anything else only where the server is known not to have done it.
"""

import os
from types import TracebackType
from typing import Self

from chargehand.client.deliveries import DeliveryCalls
from chargehand.client.engine import EngineCalls
from chargehand.client.inference import InferenceCalls
from chargehand.client.provisioning import ProvisioningCalls
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
        self.engine = EngineCalls(self._http)
        self.deliveries = DeliveryCalls(self._http)
        self.provisioning = ProvisioningCalls(self._http)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.close()
