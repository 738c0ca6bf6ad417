"""A receiver of webhooks on loopback that verifies and records them, with scripted answers. It survives the servers under test."""

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec
from aiohttp import web
from standardwebhooks.webhooks import Webhook, WebhookVerificationError


class Delivery(NamedTuple):
    webhook_id: str
    job_id: str
    sequence: int
    attempt: int
    url: str
    body: bytes

    @property
    def data(self) -> dict[str, Any]:
        data: dict[str, Any] = msgspec.json.decode(self.body)["data"]
        return data


Answer = Callable[[Delivery], Awaitable[int]]


def always(status: int) -> Answer:
    async def answer(_: Delivery) -> int:
        return status

    return answer


async def hang(_: Delivery) -> int:
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


class Receiver:
    def __init__(self, secret: str) -> None:
        self.received: list[Delivery] = []  # every copy, whatever the answer was
        self.taken: list[Delivery] = []  # those answered with a 2xx
        self.forged: list[Delivery] = []
        self.answer: Answer = always(200)
        self._webhook = Webhook(secret)
        app = web.Application()
        app.router.add_post("/{name}", self._receive)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()

    async def _receive(self, request: web.Request) -> web.Response:
        body, headers = await request.read(), request.headers
        delivery = Delivery(
            headers["webhook-id"],
            headers["X-Chargehand-Job"],
            int(headers["X-Chargehand-Sequence"]),
            int(headers["X-Chargehand-Attempt"]),
            f"{self.url}{request.path}",
            body,
        )
        try:
            # At once and not at the end: a signature is valid for five minutes.
            self._webhook.verify(body, dict(headers))
        except WebhookVerificationError:
            self.forged.append(delivery)
            return web.Response(status=401)
        self.received.append(delivery)
        status = await self.answer(delivery)
        if status < 300:
            self.taken.append(delivery)
        return web.Response(status=status, headers={"Retry-After": "1"} if status == 429 else {})
