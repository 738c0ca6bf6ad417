"""Claims for a worker that holds no connection: the server notifies it when there is work, and it claims now and then anyway.

A notification only makes the worker claim, so a lost one delays work and loses none. Anybody who can reach the port can make the worker
claim; with the secret of the server's webhooks only the server can.
"""

import asyncio
import logging
from contextlib import suppress

from aiohttp import web

from chargehand.client.errors import ClientError
from chargehand.client.types.tasks import Task
from chargehand.client.webhook import verify_webhook
from chargehand.client.worker.sources import ClaimSource, claim_now, owned, until_one_ends
from chargehand.webhooks.signature import Dialect, SignatureError

log = logging.getLogger("chargehand.client")

TTL_SECONDS = 300
CLAIM_SECONDS = 60.0
MAX_BODY = 64 << 10


class NotifiedClaims:
    def __init__(self, source: ClaimSource, *, host: str, port: int, url: str, secret: str, group: str) -> None:
        self._source = source
        self._host, self._port = host, port
        self._url = url
        self._secret = secret
        self._group = group
        self._notified = asyncio.Event()
        self._subscription = ""

    async def run(self) -> None:
        app = web.Application(client_max_size=MAX_BODY)
        app.router.add_post("/{path:.*}", self._receive)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            site = web.TCPSite(runner, self._host, self._port)
            await site.start()
            port = runner.addresses[0][1]
            host = f"[{self._host}]" if ":" in self._host else self._host
            await until_one_ends(self._keep_subscribed(self._url or f"http://{host}:{port}/"), self._claim())
        finally:
            await self._unsubscribe()
            await runner.cleanup()

    async def _receive(self, request: web.Request) -> web.Response:
        body = await request.read()
        if self._secret:
            try:
                # codeQ has only its own signature. That it allows repeats does no harm: a notification only makes the worker claim.
                dialect: Dialect = "standard" if "webhook-signature" in request.headers else "codeq"
                verify_webhook(self._secret, request.headers, body, dialect=dialect)
            except SignatureError as error:
                return web.json_response({"error": str(error)}, status=401)
        self._notified.set()
        return web.Response(status=204)

    async def _keep_subscribed(self, url: str) -> None:
        """Renew the subscription at each third of its time, so that two renewals may fail; subscribe again if the server lost it."""
        while True:
            await self._source.insist(lambda: self._subscribe(url))
            await asyncio.sleep(TTL_SECONDS / 3)

    async def _subscribe(self, url: str) -> None:
        tasks = self._source.tasks
        if self._subscription:
            try:
                await tasks.renew(self._subscription, TTL_SECONDS)
                return
            except ClientError as error:
                if error.status != 404:
                    raise
                self._subscription = ""
        made = await tasks.subscribe(
            url,
            self._source.commands,
            ttl_seconds=TTL_SECONDS,
            delivery_mode="group" if self._group else "",
            group_id=self._group,
            min_interval_seconds=1,
        )
        self._subscription = made.subscription_id
        self._notified.set()  # there is no notification for work from before

    async def _unsubscribe(self) -> None:
        if not self._subscription:
            return
        try:
            async with asyncio.timeout(2):
                await self._source.tasks.unsubscribe(self._subscription)
        except (ClientError, TimeoutError) as error:
            log.debug("the subscription %s will lapse by itself: %s", self._subscription, error)

    async def _claim(self) -> None:
        while True:
            tasks = await self._source.insist(self._claimed)
            for task in tasks:
                self._source.pool.start(task)
            if not tasks:
                with suppress(TimeoutError):
                    async with asyncio.timeout(CLAIM_SECONDS):
                        await self._notified.wait()

    async def _claimed(self) -> list[Task]:
        free = await self._source.pool.room()
        self._notified.clear()
        return await owned(self._source.pool, claim_now(self._source, free))
