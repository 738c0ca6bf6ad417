"""Machines and their provisioning, as calls: `client.provisioning`.

    async with Client("http://127.0.0.1:8484") as client:
        made = await client.provisioning.submit("SN-1", recipe)
        async for event in client.provisioning.watch(made.job_id):
            print(event.time, event.message)

What goes wrong on the way is a ClientError: `text` is the key (`validation.schema`), `detail` the sentence, and `details` names
every field that a recipe has wrong.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from chargehand.client.errors import ClientError
from chargehand.client.machines import (
    Event,
    EventPage,
    Job,
    JobPage,
    NewJob,
    NewServer,
    Probe,
    Server,
    ServerPage,
    Submitted,
    Summary,
    Webhook,
)
from chargehand.client.sse import Events, TooLong
from chargehand.client.transport import Transport
from chargehand.client.waits import pause

BASE = "/api/v1"
PAGE = 100
PROBE_SECONDS = 180.0  # a BMC takes its time
SILENCE_SECONDS = 45.0  # a job may have nothing to say for long; a new connection then costs nothing

Answer = TypeVar("Answer")
_event = msgspec.json.Decoder(Event)


class Provisioning:
    def __init__(self, transport: Transport) -> None:
        self._http = transport

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
    ) -> Server:
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
        return await self._call("PUT", _server(serial), Server, new, safe=True)

    async def server(self, serial: str) -> Server:
        return await self._call("GET", _server(serial), Server, safe=True)

    async def servers(self) -> AsyncIterator[Server]:
        """All of them, by their serials."""
        after: str | None = ""
        while after is not None:
            query = {"limit": str(PAGE), **({"after": after} if after else {})}
            page = await self._call("GET", "/servers", ServerPage, query=query, safe=True)
            for server in page.servers:
                yield server
            after = page.next

    async def remove_server(self, serial: str) -> None:
        await self._http.call("DELETE", _server(serial), safe=False)

    async def probe(self, serial: str) -> Probe:
        """What its BMC is and can do. Nothing is changed at the machine; one that cannot be asked is `ok=False`."""
        return await self._call("POST", _server(serial, "/probe"), Probe, safe=True, timeout=PROBE_SECONDS)

    # recipes ------------------------------------------------------------------------------------------------------------

    async def validate(self, recipe: Any) -> None:
        """Returns if the recipe is good. Bytes are taken for its JSON."""
        await self._http.call("POST", "/recipes/validate", _raw(recipe), safe=True)

    async def recipe_schema(self) -> dict[str, Any]:
        return await self._call("GET", "/recipe-schema", dict[str, Any], safe=True)

    # jobs ---------------------------------------------------------------------------------------------------------------

    async def submit(
        self,
        serial: str,
        recipe: Any,
        *,
        webhook: Webhook | str | None = None,
        priority: int = 0,
        metadata: Mapping[str, Any] = {},
        idempotency_key: str = "",
    ) -> Submitted:
        """A key is made where none is given, so that an answer that was lost is asked for again without a second job."""
        new = NewJob(
            server_serial=serial,
            recipe=_raw(recipe),
            webhook=Webhook(webhook) if isinstance(webhook, str) else webhook,
            priority=priority,
            metadata=dict(metadata),
        )
        headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
        return await self._call("POST", "/jobs", Submitted, new, safe=True, headers=headers)

    async def job(self, job_id: str, *, retries: int | None = None) -> Job:
        return await self._call("GET", _job(job_id), Job, safe=True, retries=retries)

    async def jobs(self, *, status: str = "", serial: str = "") -> AsyncIterator[Summary]:
        """Newest first, all there are: stop reading when it is enough."""
        by = {name: value for name, value in (("status", status), ("server_serial", serial)) if value}
        cursor: str | None = ""
        while cursor is not None:
            query = {**by, "limit": str(PAGE), **({"cursor": cursor} if cursor else {})}
            page = await self._call("GET", "/jobs", JobPage, query=query, safe=True)
            for job in page.jobs:
                yield job
            cursor = page.next

    async def cancel(self, job_id: str) -> Summary:
        """Media are ejected before the job is complete."""
        return await self._call("POST", _job(job_id, "/cancel"), Summary, safe=False)

    async def retry(self, job_id: str) -> Summary:
        """A job that failed or was cancelled starts again, from the beginning."""
        return await self._call("POST", _job(job_id, "/retry"), Summary, safe=False)

    async def events(self, job_id: str, after: int = 0) -> AsyncIterator[Event]:
        """What happened to it until now."""
        while found := await self._page(job_id, after):
            for event in found:
                yield event
            after = found[-1].sequence

    async def watch(
        self,
        job_id: str,
        after: int = 0,
        *,
        away: Callable[[ClientError], None] = lambda _: None,
        back: Callable[[], None] = lambda: None,
    ) -> AsyncIterator[Event]:
        """Its events as they happen, each once and in order, until the job is complete.

        A server that is away, or is started again, is waited for: `away` is told, at each try. Whoever wants to wait no longer
        raises there. `back` is told when it answers.
        """
        failures = 0
        while True:
            seen, began = after, time.monotonic()
            try:
                async for event in self._follow(job_id, after, back):
                    after = event.sequence
                    yield event
            except ClientError as error:
                if not error.away:
                    raise
            # A stream ends with the job, with the server, or because something on the way does not like streams. What the
            # job is now tells them apart, if after that nothing is left to be read.
            try:
                job = await self.job(job_id, retries=0)
                rest = await self._page(job_id, after, retries=0)
            except ClientError as error:
                if not error.away:
                    raise
                failures += 1
                away(error)
            else:
                back()
                for event in rest:
                    after = event.sequence
                    yield event
                if job.finished and not rest:
                    return
                was_good = after > seen or time.monotonic() - began >= SILENCE_SECONDS
                failures = 0 if was_good else failures + 1
            await asyncio.sleep(pause(failures))

    async def _follow(self, job_id: str, after: int, began: Callable[[], None]) -> AsyncIterator[Event]:
        """Until the stream ends, or nothing came for so long that the server may be gone without a word."""
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
        events = Events()
        path = _job(job_id, "/events")
        async with self._http.stream(path, None, 2 * SILENCE_SECONDS, headers=headers) as answer:
            began()
            while arrived := await _within(SILENCE_SECONDS, answer.content.readany()):
                try:
                    found = [_event.decode(sent) for sent in events.read(arrived)]
                except (msgspec.DecodeError, TooLong) as error:
                    raise ClientError(502, "this is not a stream of events of a job", str(error)) from None
                for event in found:
                    yield event

    async def _page(self, job_id: str, after: int, retries: int | None = None) -> list[Event]:
        query = {"after": str(after)}
        path = _job(job_id, "/events")
        return (await self._call("GET", path, EventPage, query=query, safe=True, retries=retries)).events

    # how they are made --------------------------------------------------------------------------------------------------

    async def _call(
        self,
        method: str,
        path: str,
        kind: type[Answer],
        body: Any = None,
        *,
        safe: bool,
        query: Mapping[str, str] = {},
        headers: Mapping[str, str] = {},
        timeout: float | None = None,
        retries: int | None = None,
    ) -> Answer:
        _, told = await self._http.call(
            method, path, body, safe=safe, query=query, headers=headers, timeout=timeout, retries=retries
        )
        try:
            return msgspec.json.decode(told, type=kind)
        except msgspec.DecodeError as error:
            raise ClientError(502, "this is not an answer of a provisioning server", str(error)) from None


def _raw(recipe: Any) -> Any:
    """JSON as it was written: that a name stands in it twice is for the server to see."""
    return msgspec.Raw(recipe) if isinstance(recipe, bytes) else recipe


async def _within(seconds: float, reading: Awaitable[bytes]) -> bytes:
    """Nothing, if nothing came."""
    try:
        async with asyncio.timeout(seconds):
            return await reading
    except TimeoutError:
        return b""


def _server(serial: str, verb: str = "") -> str:
    return f"/servers/{quote(serial, safe='')}{verb}"


def _job(job_id: str, verb: str = "") -> str:
    return f"/jobs/{quote(job_id, safe='')}{verb}"
