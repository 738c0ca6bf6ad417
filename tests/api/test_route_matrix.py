"""Call every route as every kind of caller that it must refuse.

The tests walk the route table itself. A new route must refuse callers without a token, other tenants, every scope but its own
and the ids of other doors' jobs. If it does not, or has no row in the tables below, one of these tests fails.
"""

import itertools
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from chargehand.app import Server
from chargehand.engine.engine import Engine
from chargehand.engine.guard import Guard
from chargehand.engine.job import Job, NewJob
from chargehand.engine.queue import Queue
from chargehand.errors import Conflict
from chargehand.http.credentials import hash_token
from chargehand.http.route import Route
from chargehand.http.scopes import SCOPES
from tests.api.serving import Answer, Api, on_sqlite, talking, until
from tests.provisioning.recipes import linux

pytestmark = on_sqlite

# Has all scopes and holds all jobs, so that neither scope nor tenant nor name is the cause of a refusal.
HOLDER = "holder"
KINDS = ("job", "flow", "inference", "batch", "task", "provision")

# Open to everybody: these show no data of any tenant.
OPEN = {
    "/", "/healthz", "/readyz", "/openapi.json", "/docs",
    "/console", "/console/static/{file:path}", "/console/{page:path}",
}  # fmt: skip
# These need no scope: they check credentials of their own (of a machine, in a signed path, of a registry client).
GUARDED = ("/api/v1/status-webhook/", "/media/", "/v2")

PRODUCER = {"codeq:produce", "codeq:admin"}
ADMIN = {"codeq:admin"}
WORKER = {f"codeq:{verb}" for verb in ("claim", "heartbeat", "abandon", "nack", "result", "subscribe")}
# The tasks door checks its scopes itself, because codeQ's refusals have their own shape. Any one of these scopes is enough.
TASKS = {
    "POST /tasks": PRODUCER,
    "POST /tasks/batch": PRODUCER,
    "POST /tasks/{task_id}/cancel": PRODUCER,
    "POST /tasks/claim": {"codeq:claim"},
    "POST /tasks/claim/batch": {"codeq:claim"},
    "POST /tasks/claim/stream": {"codeq:claim"},
    "DELETE /tasks/claim/stream/{stream}": {"codeq:claim"},
    "POST /tasks/{task_id}/heartbeat": {"codeq:heartbeat"},
    "POST /tasks/{task_id}/progress": {"codeq:heartbeat"},
    "POST /tasks/{task_id}/abandon": {"codeq:abandon"},
    "POST /tasks/{task_id}/nack": {"codeq:nack"},
    "POST /tasks/{task_id}/result": {"codeq:result"},
    "POST /tasks/batch/results": {"codeq:result"},
    "GET /tasks": PRODUCER | WORKER,
    "GET /tasks/{task_id}": PRODUCER | WORKER,
    "GET /tasks/{task_id}/result": PRODUCER | WORKER,
    "GET /tasks/{task_id}/events": PRODUCER | WORKER,
    "GET /tasks/{task_id}/artifacts/{name}": PRODUCER | WORKER,
    "GET /raft/status": PRODUCER | WORKER,
    "POST /workers/subscriptions": {"codeq:subscribe"},
    "GET /workers/subscriptions": {"codeq:subscribe", "codeq:admin"},
    "GET /workers/subscriptions/{subscription_id}": {"codeq:subscribe", "codeq:admin"},
    "DELETE /workers/subscriptions/{subscription_id}": {"codeq:subscribe", "codeq:admin"},
    "POST /workers/subscriptions/{subscription_id}/heartbeat": {"codeq:subscribe"},
    "POST /schedules": PRODUCER,
    "GET /schedules": PRODUCER,
    "GET /schedules/{name}": PRODUCER,
    "PUT /schedules/{name}": PRODUCER,
    "DELETE /schedules/{name}": PRODUCER,
    "POST /schedules/{name}/pause": PRODUCER,
    "POST /schedules/{name}/resume": PRODUCER,
    "POST /schedules/{name}/run": PRODUCER,
    "GET /admin/topics": ADMIN,
    "PUT /admin/topics/{topic_name}": ADMIN,
    "GET /admin/topics/{topic_name}": ADMIN,
    "DELETE /admin/topics/{topic_name}": ADMIN,
    "GET /admin/queues": ADMIN,
    "GET /admin/queues/{command:path}": ADMIN,
    "PUT /admin/queues/{command:path}": ADMIN,
    "GET /admin/workers": ADMIN,
    "POST /admin/tasks/cleanup": ADMIN,
    "GET /admin/dlq": ADMIN,
    "POST /admin/dlq/requeue": ADMIN,
    "POST /admin/dlq/purge": ADMIN,
    "GET /admin/dlq/{task_id}": ADMIN,
    "POST /admin/dlq/{task_id}/requeue": ADMIN,
    "DELETE /admin/dlq/{task_id}": ADMIN,
}
# The kinds of jobs that a route is for, by the start of its path; the routes in FOR_ALL_KINDS take all kinds.
OWN_KINDS = {
    "/engine/jobs/{job_id}": ("job",),
    "/engine/flows/{job_id}": ("flow",),
    "/jobs/{job_id}": ("inference",),
    "/v1/batches/{batch_id}": ("batch",),
    "/v1/codeq/tasks/{task_id}": ("task",),
    "/v1/codeq/admin/dlq/{task_id}": ("task",),
    "/api/v1/jobs/{job_id}": ("provision",),
}
FOR_ALL_KINDS = {
    "GET /engine/jobs/{job_id}", "GET /engine/jobs/{job_id}/events",
    "POST /engine/jobs/{job_id}/cancel", "POST /engine/jobs/{job_id}/requeue",
}  # fmt: skip
# The scopes that the routes in FOR_ALL_KINDS also need, by the kind of the job.
DOORS_OWN = {"task": ("codeq:produce", "codeq:admin"), "provision": ("provision:read", "provision:write")}
# Names, not ids: each tenant has its own names, so another tenant's call is about that tenant's own thing.
OWN_NAMES = (
    "{name",
    "{kind}",
    "{command",
    "{topic_name}",
    "{model",
    "{digest}",
    "{target}",
    "{file:",
    "{page:",
    "{stream}",
)
# Complete bodies, so that only the guard stops the call.
BODIES: dict[str, dict[str, Any]] = {
    "advance": {"stage": "forged"},
    "note": {"message": "forged"},
    "succeed": {"result": {"forged": True}},
    "retry": {"error": "forged"},
    "fail": {"error": "forged"},
    "progress": {"percent": 99, "message": "forged"},
    "nack": {"reason": "forged"},
    "result": {"status": "COMPLETED", "result": {"forged": True}},
}
SOME = {
    "name": "thing", "kind": "job", "model": "m", "digest": "sha256:0", "command": "render", "topic_name": "render",
    "target": "laptop", "page": "jobs", "file": "main.js", "stream": "0" * 32, "rest": "thing/tags/list", "permit": "1-x",
}  # fmt: skip


def a_token(name: str, tenant: str, *scopes: str) -> dict[str, Any]:
    """The token's text is its name. It is for every event type, so that event types are not the cause of a refusal."""
    return {"name": name, "hash": hash_token(name), "tenant": tenant, "scopes": scopes, "event_types": ["*"]}


@pytest.fixture
def settings() -> dict[str, Any]:
    return {
        "auth.tokens": [
            a_token(HOLDER, "acme", "*"),
            a_token("umbrella", "umbrella", "*"),
            *(a_token(f"only-{scope}", "acme", scope) for scope in SCOPES),
        ],
        "webhooks.allow_networks": ["127.0.0.0/8"],
        "webhooks.max_attempts": 1,
        "inference.wait_seconds": 0,
        "provisioning.enabled": True,
    }


@pytest.fixture
async def nobody(server: Server) -> AsyncIterator[Api]:
    async with talking(server) as client:
        yield client


def name_of(route: Route) -> str:
    return f"{route.method} {route.path}"


def path_of(route: Route, ids: dict[str, str]) -> str:
    path = re.sub(r"\{(\w+).*?\}", lambda found: (SOME | ids)[found[1]], route.path)
    return f"{path}?seconds=0" if path.endswith("/wait") else path


def accepted(route: Route) -> set[str]:
    """Return the scopes of which each alone opens the route."""
    if route.scope:
        return {route.scope}
    return TASKS[name_of(route).replace("/v1/codeq", "")]


def guarded(route: Route) -> bool:
    return route.path.startswith(GUARDED)


def scoped_routes(server: Server) -> list[Route]:
    return [route for route in server.routes() if route.scope is not None]


async def ask(api: Api, route: Route, ids: dict[str, str], lease: int = 1) -> Answer:
    body = {} if route.path.startswith("/engine/flows/") else BODIES.get(route.path.rpartition("/")[2], {})
    if "lease" in getattr(route.request, "__struct_fields__", ()):
        body = {"lease": lease, **body}
    return await api.call(route.method, path_of(route, ids), None if route.request is None else body)


# These answers show the time, count requests, or have no end.
RESTLESS = (
    "/engine/feed",
    "/engine/chores",
    "/engine/queues",
    "/metrics",
    "/engine/overview",
    "/targets",
    "/v1/codeq/admin/workers",
)
# These routes are for the operator and show all tenants.
OF_ALL_TENANTS = ("/metrics",)

NOTHING = dict.fromkeys(
    ("job_id", "task_id", "delivery_id", "batch_id", "file_id", "endpoint_id", "subscription_id", "server_serial"),
    "7ZZZZZZZZZZZZZZZZZZZZZZZZZ",
)


# no token -------------------------------------------------------------------------------------------------------------


async def test_every_route_without_a_scope_is_in_the_list_of_open_routes(server: Server) -> None:
    unlisted = [
        name_of(route)
        for route in server.routes()
        if route.scope is None and route.path not in OPEN and not guarded(route)
    ]
    assert unlisted == []


async def test_a_call_without_a_token_or_with_an_unknown_token_is_refused(
    server: Server, nobody: Api, subtests: pytest.Subtests
) -> None:
    for route in [*scoped_routes(server), *filter(guarded, server.routes())]:
        for stranger in (nobody, nobody.of("nonsense")):
            with subtests.test(route=name_of(route)):
                status = (await ask(stranger, route, NOTHING)).status
                assert status in ((401, 403, 405) if guarded(route) else (401,))


# another scope --------------------------------------------------------------------------------------------------------


async def test_no_scope_opens_a_route_that_needs_another_scope(
    server: Server, nobody: Api, subtests: pytest.Subtests
) -> None:
    for route, scope in itertools.product(scoped_routes(server), SCOPES):
        if scope in accepted(route):
            continue
        with subtests.test(route=name_of(route), scope=scope):
            assert (await ask(nobody.of(f"only-{scope}"), route, NOTHING)).status in (401, 403)


async def test_the_registry_is_read_and_written_by_its_own_scopes_alone(nobody: Api, subtests: pytest.Subtests) -> None:
    for scope in SCOPES:
        for method, path in (("GET", "/v2/thing/tags/list"), ("POST", "/v2/thing/blobs/uploads/")):
            opens = {"GET": {"registry:pull"}, "POST": {"registry:push"}}[method]
            if scope not in opens:
                with subtests.test(method=method, scope=scope):
                    assert (await nobody.of(f"only-{scope}").call(method, path)).status in (401, 403)


# another kind ---------------------------------------------------------------------------------------------------------


async def held_job(engine: Engine, kind: str, payload: bytes = b"{}", metadata: bytes | None = None) -> Job:
    """Return a running job of this kind, in a queue of another node, from which no door of this server claims."""
    queue = Queue(kind, "acme", kind, "another-node")
    await engine.submit(NewJob(engine.new_id(), queue, payload, max_attempts=9, metadata=metadata))
    [job] = await engine.claim((queue,), HOLDER, 600)
    return job


def by_job_id(server: Server) -> Iterator[tuple[Route, str, tuple[str, ...]]]:
    """Yield the routes that name one job, with the parameter that names it and the kinds of jobs they are for."""
    for route in scoped_routes(server):
        if named := re.search(r"\{(job_id|task_id|batch_id)\}", route.path):
            yield route, named[1], OWN_KINDS[route.path[: named.end()]]


async def test_no_route_moves_or_shows_a_job_of_another_kind_even_to_its_lease_holder(
    server: Server, nobody: Api, subtests: pytest.Subtests
) -> None:
    holder, store = nobody.of(HOLDER), server.store
    jobs = {kind: await held_job(server.engine, kind) for kind in KINDS}
    for route, parameter, own in by_job_id(server):
        if name_of(route) in FOR_ALL_KINDS:
            continue
        for kind in set(KINDS) - set(own):
            job = jobs[kind]
            job_id = f"batch_{job.id}" if parameter == "batch_id" else job.id
            with subtests.test(route=name_of(route), kind=kind):
                assert (await ask(holder, route, NOTHING | {parameter: job_id}, job.lease)).status == 404
                assert await store.get_job(job.id) is not None
                assert (await server.engine.get(job.id)).seq == job.seq


async def test_the_engine_routes_need_the_scope_of_the_jobs_own_door(
    server: Server, nobody: Api, subtests: pytest.Subtests
) -> None:
    for kind in DOORS_OWN:
        job = await held_job(server.engine, kind)
        for route, parameter, _ in by_job_id(server):
            if name_of(route) in FOR_ALL_KINDS:
                with subtests.test(route=name_of(route), kind=kind):
                    answer = await ask(nobody.of(f"only-{route.scope}"), route, NOTHING | {parameter: job.id})
                    wanted = answer.problem(403, "auth.forbidden")["detail"]
                    assert any(f"`{scope}`" in wanted for scope in DOORS_OWN[kind])
        assert (await server.engine.get(job.id)).seq == job.seq


async def test_a_list_shows_only_kinds_that_the_caller_may_read_at_their_own_door(server: Server, nobody: Api) -> None:
    jobs = {kind: await held_job(server.engine, kind) for kind in KINDS}
    reader = nobody.of("only-jobs:read")
    shown = (await reader.get("/engine/jobs")).good()["jobs"]
    assert {job["kind"] for job in shown} == {"job", "flow", "inference", "batch"}
    assert {job["kind"] for job in (await nobody.of(HOLDER).get("/engine/jobs")).good()["jobs"]} == set(KINDS)
    for kind in DOORS_OWN:
        (await reader.get(f"/engine/jobs?kind={kind}")).problem(403, "auth.forbidden")
    assert not {jobs["task"].id, jobs["provision"].id} & set(re.findall(r"[0-9A-Z]{26}", str(shown)))
    doors = {door["kind"] for door in (await reader.get("/engine/overview")).good()["doors"]}
    assert not doors & set(DOORS_OWN)
    queues = (await reader.get("/engine/queues")).good()["queues"]
    assert not {queue["kind"] for queue in queues} & set(DOORS_OWN)


async def test_a_worker_cannot_guess_the_lease_of_another_workers_job(
    server: Server, nobody: Api, subtests: pytest.Subtests
) -> None:
    job = await held_job(server.engine, "job")
    thief = nobody.of("only-work")
    guesses = [*range(1, 50), job.claims, job.claims << 32, job.lease - 1, job.lease + 1]
    for move in ("beat", "advance", "note", "succeed", "retry", "park", "fail"):
        with subtests.test(move=move):
            for lease in guesses:
                answer = await thief.post(f"/engine/jobs/{job.id}/{move}", {"lease": lease, **BODIES.get(move, {})})
                answer.problem(409, "conflict.stale_lease")
    assert await server.engine.get(job.id) == job


# another tenant -------------------------------------------------------------------------------------------------------


_ULID = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}")
UPLOAD = (
    b'--B\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--B\r\n'
    b'Content-Disposition: form-data; name="file"; filename="acme.jsonl"\r\n\r\n'
    b'{"custom_id":"1","method":"POST","url":"/v1/chat/completions","body":{"model":"m","messages":[]}}\n\r\n--B--\r\n'
)


@dataclass
class World:
    """One of everything that belongs to acme."""

    api: Api
    ids: dict[str, str] = field(default_factory=dict)

    async def make(self, engine: Engine) -> None:
        api, codeq = self.api, "/v1/codeq"
        hook = {"url": "http://127.0.0.1:9/acme-hook", "on": ["queued"]}
        told = await api.submit(queue="acme-queue", webhook=hook)
        [delivery] = await api.deliveries(f"job={told}&state=dead")
        self.ids |= {"told job": told, "delivery_id": delivery["id"], "endpoint_id": delivery["endpoint_id"]}
        subscription = {"callbackUrl": "http://127.0.0.1:9/acme-worker", "eventTypes": ["acme-event"]}
        made = (await api.post(f"{codeq}/workers/subscriptions", subscription)).good(201)
        self.ids["subscription_id"] = made["subscriptionId"]
        schedule = {"name": "acme-nightly", "cron": "0 3 * * *", "command": "acme-command", "payload": 1}
        assert (await api.post(f"{codeq}/schedules", schedule)).status in (200, 201)
        task = {"command": "acme-command", "payload": 1, "maxAttempts": 1}
        self.ids["dead letter"] = dead = (await api.post(f"{codeq}/tasks", task)).good(202)["id"]
        assert (await api.post(f"{codeq}/tasks/claim", {"commands": ["acme-command"]})).good()["id"] == dead
        (await api.post(f"{codeq}/tasks/{dead}/nack", {"reason": "acme-reason"})).good()
        machine = {"bmc_address": "http://127.0.0.1:9", "bmc_username": "acme-user", "bmc_password": "acme-password"}
        assert (await api.call("PUT", "/api/v1/servers/ACME-1", machine)).status in (200, 201)
        self.ids["server_serial"] = "ACME-1"
        headers = {"Content-Type": "multipart/form-data; boundary=B"}
        self.ids["file_id"] = (await api.call("POST", "/v1/files", data=UPLOAD, headers=headers)).good()["id"]
        await self._hold_jobs(engine)

    async def _hold_jobs(self, engine: Engine) -> None:
        """Hold one running job of each kind, with the payload and the metadata that its own door gives it."""
        asked = {
            "inference": ("/jobs", {"model": "m", "messages": [{"role": "user", "content": "hello"}]}),
            "batch": ("/v1/batches", {"input_file_id": self.ids["file_id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}),
            "provision": ("/api/v1/jobs", {"server_serial": "ACME-1", "recipe": linux()}),
        }  # fmt: skip
        for kind in KINDS:
            payload, metadata = b"{}", None
            if kind in asked:
                answer = await self.api.post(*asked[kind])
                [job_id, *_] = _ULID.findall(answer.body.decode()) or [pytest.fail(answer.body.decode())]
                made = await engine.get(job_id)
                payload, metadata = made.payload, made.metadata
                await self._end(engine, job_id)
            self.ids[f"{kind} job"] = (await held_job(engine, kind, payload, metadata)).id

    async def _end(self, engine: Engine, job_id: str) -> None:
        with suppress(Conflict):
            await engine.cancel(Guard.seen(await engine.get(job_id)))

        async def finished() -> bool:
            return (await engine.get(job_id)).finished

        await until(finished)

    def of(self, route: Route) -> dict[str, str]:
        """Return the ids of acme that a path of this route can name."""
        kind = next((kinds[0] for start, kinds in OWN_KINDS.items() if route.path.startswith(start)), "job")
        job_id = self.ids[f"{kind} job"]
        task_id = self.ids["dead letter"] if "/dlq/" in route.path else self.ids["task job"]
        return {**self.ids, "job_id": job_id, "task_id": task_id, "batch_id": f"batch_{self.ids['batch job']}"}

    async def seen(self, server: Server) -> dict[str, bytes]:
        """Return everything that acme can read, except what shows the time or counts requests."""
        routes = [route for route in scoped_routes(server) if route.method == "GET" and route.path not in RESTLESS]
        answers = {name_of(route): await self.api.get(path_of(route, self.of(route))) for route in routes}
        assert [name for name, answer in answers.items() if answer.status == 500] == []
        return {name: answer.body for name, answer in answers.items()}


@pytest.fixture
async def acme(server: Server, nobody: Api) -> World:
    world = World(nobody.of(HOLDER))
    await world.make(server.engine)
    return world


async def test_the_things_of_another_tenant_are_not_found_and_do_not_change(
    server: Server, nobody: Api, acme: World, subtests: pytest.Subtests
) -> None:
    umbrella = nobody.of("umbrella")
    before = await acme.seen(server)
    for route in scoped_routes(server):
        own = any(name in route.path for name in OWN_NAMES) or name_of(route) == "PUT /api/v1/servers/{server_serial}"
        if "{" in route.path and not own:
            with subtests.test(route=name_of(route)):
                job_id = acme.of(route)["job_id"]
                answer = await ask(umbrella, route, acme.of(route), (await server.engine.get(job_id)).lease)
                assert answer.status == 404, answer.body
    assert await acme.seen(server) == before


async def test_no_list_and_no_name_shows_data_of_another_tenant(
    server: Server, nobody: Api, acme: World, subtests: pytest.Subtests
) -> None:
    umbrella = nobody.of("umbrella")
    secrets = (*acme.ids.values(), "acme-hook", "acme-command", "acme-nightly", "acme-user", "acme-event")
    for route in scoped_routes(server):
        if route.method == "GET" and route.path not in (*OF_ALL_TENANTS, "/engine/feed"):
            with subtests.test(route=name_of(route)):
                path = path_of(route, acme.of(route))
                body = (await umbrella.get(path)).body.decode()
                assert [text for text in secrets if text in body and text not in path] == []
