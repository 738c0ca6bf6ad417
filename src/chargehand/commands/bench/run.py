"""The measures, one after the other, so that none disturbs another."""

import asyncio
import contextlib
import secrets
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec
from aiohttp import web

from chargehand.client import AsyncClient, ClientError
from chargehand.client.errors import Conflict
from chargehand.client.transport.http import HttpTransport
from chargehand.client.types.engine import State
from chargehand.commands.bench.load import at_once, repeat
from chargehand.commands.bench.report import BenchReport, FirstToken, Throughput, rate

MAX_JOBS = 20_000
CLAIM = 50  # jobs at once
DELIVERIES = 200
RECEIVER_PORT = 48_484  # always the same if it is free, so that the server has one endpoint of ours and not many
ARRIVAL_SECONDS = 20.0
TOKEN_SECONDS = 60.0
REST_SECONDS = 30.0
SAMPLES = 5
PAYLOAD = {"made by": "chargehand bench", "filling": "x" * 200}


async def run(
    url: str, token: str, seconds: float, connections: int, model: str, say: Callable[[str], None]
) -> BenchReport:
    client = AsyncClient(url, token, retries=0)
    try:
        version = await _version(url)
        bench = Bench(client, connections)
        try:
            say("submitting jobs")
            accepted = await bench.accept(seconds)
            say("claiming and finishing them")
            worked = await bench.work()
            report = BenchReport(url=url, version=version, connections=connections, accept=accepted, work=worked)
            say("delivering webhooks")
            report.deliveries = await _told(report, "deliveries", bench.deliveries(url))
            await bench.work()  # what the webhooks were about
        except BaseException:  # Ctrl-C too
            await bench.cancel_rest()
            raise
        say("timing a model's first token")
        report.first_token = await _told(report, "first token", first_token(client, url, token, model))
        return report
    finally:
        await client.close()


async def _version(url: str) -> str:
    http = HttpTransport(url, "", retries=0)
    try:
        _, reply = await http.call("GET", "/healthz", safe=True)
        return str(msgspec.json.decode(reply, type=dict[str, Any]).get("version", "unknown"))
    finally:
        await http.close()


class NotMeasured(Exception):
    """The message says why."""


async def _told(report: BenchReport, what: str, measure: Any) -> Any:
    try:
        return await measure
    except NotMeasured as why:
        report.not_measured[what] = str(why)
    except ClientError as error:
        report.not_measured[what] = str(error)
    return None


class Bench:
    def __init__(self, client: AsyncClient, connections: int) -> None:
        self._engine = client.engine
        self._connections = connections
        self._queue = f"chargehand-bench-{secrets.token_hex(4)}"
        self._left = 0  # jobs that were submitted and not yet finished

    async def _submit(self, **fields: Any) -> str:
        job_id = (await self._engine.submit(self._queue, PAYLOAD, **fields)).job_id
        self._left += 1
        return job_id

    async def accept(self, seconds: float) -> Throughput:
        load = await repeat(range(self._connections), lambda _: self._submit(), seconds=seconds, count=MAX_JOBS)
        return rate(load.latencies, load.seconds)

    async def work(self) -> Throughput:
        """Claim many jobs at once and finish them one by one; the time is that of finishing one."""
        durations: list[float] = []
        began = time.monotonic()

        async def worker() -> None:
            while jobs := await self._engine.claim([self._queue], owner="chargehand bench", limit=CLAIM):
                for job in jobs:
                    start = time.monotonic()
                    await self._engine.succeed(job.id, job.lease)
                    durations.append(time.monotonic() - start)
                    self._left -= 1

        await at_once(worker() for _ in range(self._connections))
        return rate(durations, time.monotonic() - began)

    async def cancel_rest(self) -> None:
        """Cancel the jobs that a failed measure has left. They stay if the server does not answer."""
        with contextlib.suppress(ClientError, TimeoutError):
            async with asyncio.timeout(REST_SECONDS):
                states: tuple[State, ...] = ("queued", "running")
                for state in states:
                    found = self._engine.jobs(state=state, kind="job", queue=self._queue)
                    await self._cancel([job.id async for job in found])

    async def _cancel(self, ids: list[str]) -> None:
        async def canceller() -> None:
            while ids:
                with contextlib.suppress(Conflict):  # it has just ended
                    await self._engine.cancel(ids.pop())

        await at_once(canceller() for _ in range(self._connections))

    async def deliveries(self, url: str) -> Throughput:
        if urlsplit(url).hostname not in ("127.0.0.1", "::1", "localhost"):
            raise NotMeasured("the server is on another machine, from which this one may not be reached")
        arrived: dict[str, float] = {}
        everything = asyncio.Event()

        async def receive(request: web.Request) -> web.Response:
            told: Mapping[str, Any] = msgspec.json.decode(await request.read())
            arrived.setdefault(told["data"]["job_id"], time.monotonic())
            if len(arrived) >= DELIVERIES:
                everything.set()
            return web.Response()

        runner, hook = await _receiver(receive)
        try:
            accepted: dict[str, float] = {}
            began = time.monotonic()

            async def submit(_: int) -> None:
                job_id = await self._submit(webhook={"url": hook, "on": ["queued"]})
                accepted[job_id] = time.monotonic()

            await repeat(range(self._connections), submit, count=DELIVERIES)
            try:
                async with asyncio.timeout(ARRIVAL_SECONDS):
                    await everything.wait()
            except TimeoutError:
                raise NotMeasured(
                    f"{len(arrived)} of {DELIVERIES} webhooks arrived within {ARRIVAL_SECONDS:g} s; "
                    "`chargehand deliveries list` says why"
                ) from None
            # A webhook may arrive before the answer to the submission of its job.
            durations = [max(0.0, at - accepted.get(job_id, at)) for job_id, at in arrived.items()]
            return rate(durations, max(arrived.values()) - began)
        finally:
            await runner.cleanup()


async def _receiver(receive: Callable[[web.Request], Any]) -> tuple[web.AppRunner, str]:
    app = web.Application()
    app.router.add_post("/bench", receive)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", RECEIVER_PORT).start()
    except OSError:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    return runner, f"http://{host}:{port}/bench"


async def first_token(client: AsyncClient, url: str, token: str, model: str) -> FirstToken:
    chosen = model or await _a_model(client)
    timeout = aiohttp.ClientTimeout(total=TOKEN_SECONDS)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with aiohttp.ClientSession(timeout=timeout, headers=headers) as session:
        cold = await _one_token(session, url, chosen)
        warm = [await _one_token(session, url, chosen) for _ in range(SAMPLES)]
    return FirstToken(chosen, round(statistics.median(warm), 4), SAMPLES, round(cold, 4))


async def _a_model(client: AsyncClient) -> str:
    targets = await client.targets()
    resident = [each.model for target in targets for each in target.resident]
    installed = [name for target in targets if target.state == "up" for name in sorted(target.installed)]
    if not resident and not installed:
        raise NotMeasured("there is no model; `chargehand targets` shows what there is")
    return str((resident or installed)[0])


async def _one_token(session: aiohttp.ClientSession, url: str, model: str) -> float:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Count from one to ten."}],
        "options": {"num_predict": 8},
        "stream": True,
    }
    began = time.monotonic()
    try:
        async with session.post(f"{url.rstrip('/')}/api/chat", json=body) as response:
            if response.status != 200:
                raise NotMeasured(f"{model}: {response.status} {(await response.text())[:200]}")
            await response.content.readline()
            took = time.monotonic() - began
            await response.read()
            return took
    except (aiohttp.ClientError, TimeoutError) as error:
        raise NotMeasured(f"{model} did not answer within {TOKEN_SECONDS:g} s ({type(error).__name__})") from None
