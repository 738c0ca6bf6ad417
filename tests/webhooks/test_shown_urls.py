"""The query of a URL may hold a secret: the server calls the URL with it, and no view of any door shows it."""

import asyncio
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from aiohttp import web

from chargehand.app import Server
from chargehand.doors.tasks.names import BASE
from chargehand.engine.delivery import shown_url
from chargehand.observability.logs import configure_logs
from chargehand.webhooks.sending import without_query
from tests.api.serving import Api, serving, talking, until
from tests.provisioning.lab import SERIAL
from tests.webhooks.doors import DOORS, filled
from tests.webhooks.receiver import receiving

SECRET = "s3cr3t"
QUERY = f"?token={SECRET}%2Fof-the-receiver&n=1"
SETTINGS = {
    "webhooks.max_attempts": 1,
    "tasks.result_webhook_max_attempts": 1,
    "provisioning.enabled": True,
    "tracing.endpoint": f"http://127.0.0.1:9/traces{QUERY}",
    "tracing.sample_ratio": 0,
}


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    configure_logs("debug", "json", stream)
    yield stream
    structlog.reset_defaults()


async def repeat(request: web.BaseRequest) -> web.StreamResponse:
    """Answer with the request's own URL, as many servers do for an unknown path."""
    return web.Response(status=500, text=f"cannot POST {request.raw_path}, that is {dict(request.query)}")


async def test_no_view_log_or_stream_shows_the_query_of_a_webhook(
    tmp_path: Path, logged: io.StringIO, subtests: pytest.Subtests
) -> None:
    async with receiving() as receiver, serving(f"sqlite:///{tmp_path}/jobs.db", SETTINGS) as server:
        receiver.otherwise = repeat
        async with talking(server) as api, api.session.get(f"{api.url}/engine/feed") as feed:
            bmc = {"bmc_address": "http://127.0.0.1:9", "bmc_username": "u", "bmc_password": "p"}
            await api.call("PUT", f"/api/v1/servers/{SERIAL}", bmc)
            for door, (method, path, body) in DOORS.items():
                with subtests.test(door=door):
                    made = await api.call(method, path, filled(body, receiver.url(f"/{door}{QUERY}")))
                    assert made.status in (200, 201, 202), made.body
                    assert SECRET not in made.body.decode()
            claimed = await api.post(f"{BASE}/tasks/claim", {"commands": ["c"]})
            assert claimed.good()["webhook"].startswith(receiver.url("/task"))
            assert SECRET not in claimed.body.decode()
            (await api.post(f"{BASE}/tasks/{claimed.json['id']}/result", {"status": "COMPLETED", "result": {}})).good()
            ended = [door for door in DOORS if door not in ("schedule", "tasks")]
            await until(lambda: {f"/{door}{QUERY}" for door in ended} <= {hook.target for hook in receiver.hooks})
            await until(lambda: "a worker could not be notified of work" in logged.getvalue())

            for path in await views(server, api):
                with subtests.test(view=path):
                    assert SECRET not in await read(api, path)
            heard = ""
            async with asyncio.timeout(10):
                while "delivery." not in heard:
                    heard += (await feed.content.readany()).decode()
            assert SECRET not in heard
    assert SECRET not in logged.getvalue()


async def views(server: Server, api: Api) -> list[str]:
    """Return the path of every GET route with every id that exists."""
    deliveries = (await until_dead(api)).good()["deliveries"]
    shown = [each["answer"] for each in (await attempts(api, deliveries)) if each["answer"]]
    assert all("cannot POST" in each for each in shown)  # it is shown, without its secret
    assert shown
    jobs = [each["id"] for each in (await api.get("/engine/jobs?limit=100")).good()["jobs"]]
    subscriptions = (await api.get(f"{BASE}/workers/subscriptions")).good()["subscriptions"]
    ids = {
        "job_id": jobs,
        "task_id": jobs,
        "delivery_id": [each["id"] for each in deliveries],
        "endpoint_id": [each["endpoint_id"] for each in deliveries],
        "subscription_id": [each["subscriptionId"] for each in subscriptions],
        "server_serial": [SERIAL],
        "name": ["n"],
        "command": ["c"],
        "topic_name": ["c"],
    }
    paths = [route.path for route in server.routes() if route.method == "GET" and route.path != "/engine/feed"]
    field = re.compile(r"\{(\w+).*?\}")
    first = [(path, field.search(path)) for path in paths]
    filled_in = [
        field.sub(each, path, 1) for path, named in first for each in ids.get(named[1] if named else "", ["x"])
    ]
    return [field.sub("x", path) for path in filled_in]


async def until_dead(api: Api) -> Any:
    async def there() -> Any:
        answer = await api.get("/engine/deliveries?limit=500&state=dead")
        return answer if len(answer.good()["deliveries"]) >= 4 else None

    return await until(there)


async def attempts(api: Api, deliveries: list[Any]) -> list[Any]:
    shown = [(await api.get(f"/engine/deliveries/{each['id']}")).good() for each in deliveries]
    return [attempt for each in shown for attempt in each["attempts"]]


async def read(api: Api, path: str) -> str:
    async with api.session.get(api.url + path) as response:
        if "event-stream" in response.headers.get("content-type", ""):
            return (await response.content.readany()).decode()
        return (await response.read()).decode(errors="replace")


async def test_saving_a_schedule_as_it_was_shown_keeps_the_query_of_its_url(tmp_path: Path) -> None:
    async with receiving() as receiver, serving(f"sqlite:///{tmp_path}/jobs.db") as server, talking(server) as api:
        path = f"{BASE}/schedules/n"
        body = {"cron": "@daily", "command": "c", "payload": 1, "webhook": receiver.url(f"/hook{QUERY}")}
        made = (await api.call("PUT", path, body)).good(201)
        assert made["webhook"] == receiver.url("/hook")
        assert (await api.call("PUT", path, made)).good()["version"] == 1
        assert (await api.call("PUT", path, {**made, "payload": 2})).good()["version"] == 2
        task = (await api.post(f"{path}/run")).good(202)
        assert task["webhook"] == receiver.url("/hook")
        await api.post(f"{BASE}/tasks/{task['id']}/cancel")
        await until(lambda: receiver.hooks)
        assert receiver.hooks[0].target == f"/hook{QUERY}"
        other = (await api.call("PUT", path, {**made, "webhook": receiver.url("/other")})).good()
        assert (other["webhook"], other["version"]) == (receiver.url("/other"), 3)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://h/p?token=x", "http://h/p"),
        ("https://user:pw@h:8443/p?q#f", "https://h:8443/p"),
        ("https://user@h", "https://h/"),
        ("http://[::1]:9/?a@b", "http://[::1]:9/"),
        ("http://a:b@c@h/", "http://h/"),
    ],
)
def test_a_url_is_shown_without_user_and_query(url: str, shown: str) -> None:
    assert shown_url(url) == shown


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("no /p?token=a%2Fsecret&x=1 here", "no /p?*** here"),
        ("no /p?token=a%2Fsecret&amp;x=1 here", "no /p?*** here"),
        ("no /p?token=a/secret&x=1 here", "no /p?*** here"),
        ('{"args": {"token": "a/secret", "x": "1"}}', '{"args": {"token": "***", "x": "1"}}'),
        ("only token=a%2Fsecret here", "only token=*** here"),
        ("cut off: token=a%2Fsec", "cut off: ***"),
        ("cut off: a/sec", "cut off: ***"),
        ("nothing of it: token 1", "nothing of it: token 1"),
    ],
)
def test_a_query_that_a_receiver_repeats_is_hidden_in_its_answer(said: str, shown: str) -> None:
    assert without_query(said, "http://h/p?token=a%2Fsecret&x=1") == shown
    assert without_query(said, "http://h/p") == said
