"""Rules that hold for every route. A new route is tested here, or fails because it has no row in BODIES."""

import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from chargehand.app import Server
from chargehand.http.credentials import hash_token
from chargehand.http.problems import write_problem
from chargehand.http.route import Route
from tests.api.serving import Answer, Api, exchange, on_sqlite, talking
from tests.webhooks.receiver import Receiver, answer

SCOPES = (
    "jobs:read",
    "jobs:write",
    "work",
    "admin",
    "metrics",
    "provision:read",
    "provision:write",
    "provision:servers",
)
UNKNOWN = {"job_id": "7ZZZZZZZZZZZZZZZZZZZZZZZZZ", "delivery_id": "7ZZZZZZZZZZZZZZZZZZZZZZZZZ", "endpoint_id": "ep_no"}
OTHERS = {"kind": "job", "name": "q", "model": "m", "digest": "sha256:0", "file_id": "file-0", "batch_id": "batch_0"} | {
    "task_id": "7ZZZZZZZZZZZZZZZZZZZZZZZZZ", "command": "q", "topic_name": "q", "subscription_id": "sub-0", "id": "sub-0",
    "server_serial": "SN-1", "permit": "1-x", "rest": "a/tags/list", "target": "laptop",
    "page": "jobs", "file": "main.js", "stream": "0" * 32,
}  # fmt: skip
# These need no scope: they check credentials of their own (of a machine, in a signed path, of a registry client).
GUARDED = ("/api/v1/status-webhook/", "/media/", "/v2")

# Streams without an end; tests/console tests who receives which events.
ENDLESS = ("/engine/feed",)

# The smallest valid body for each route that takes one, by the last part of its path.
BODIES: dict[str, dict[str, Any]] = {
    "jobs": {"queue": "q", "payload": None},
    "flows": {"steps": [{"name": "a", "door": "engine", "body": {"queue": "q", "payload": None}}]},
    "claims": {"queues": ["nothing-here"]},
    "beat": {"lease": 1},
    "advance": {"lease": 1, "stage": "on-its-way"},
    "note": {"lease": 1, "message": "hello"},
    "succeed": {"lease": 1},
    "retry": {"lease": 1, "error": "broke"},
    "park": {"lease": 1},
    "fail": {"lease": 1, "error": "broke"},
    "{name:path}": {},
    "{server_serial}": {"bmc_address": "http://127.0.0.1:1"},
    "unload": {"model": "m"},
    "validate": {"task_target": "install-esxi.target"},
    "batches": {"input_file_id": "file-0", "endpoint": "/v1/embeddings", "completion_window": "24h"},
}


def token_of(name: str) -> str:
    return f"the token of {name}".replace(" ", "-")


def a_token(name: str, tenant: str, scopes: list[str]) -> dict[str, Any]:
    return {"name": name, "hash": hash_token(token_of(name)), "tenant": tenant, "scopes": scopes}


@pytest.fixture
def settings() -> dict[str, Any]:
    only = [a_token(f"only {scope}", "acme", [scope]) for scope in SCOPES]
    without = [a_token(f"all but {scope}", "acme", [each for each in SCOPES if each != scope]) for scope in SCOPES]
    return {
        "auth.tokens": [a_token("acme", "acme", ["*"]), a_token("umbrella", "umbrella", ["*"]), *only, *without],
        "server.max_body_bytes": 2000,
        "webhooks.max_attempts": 1,
        "inference.wait_seconds": 0,
        "provisioning.enabled": True,
    }


@pytest.fixture
async def nobody(server: Server) -> AsyncIterator[Api]:
    async with talking(server) as client:
        yield client


@pytest.fixture
def acme(nobody: Api) -> Api:
    return nobody.of(token_of("acme"))


def body_of(route: Route) -> Any:
    if route.request is None:
        return None
    if route.path == "/api/v1/jobs":
        return {"server_serial": "SN-1", "recipe": {}}
    if route.path.startswith("/engine/flows/"):
        return {}
    # The codeQ routes check the token first and read the body last, and ignore unknown fields.
    return {} if route.path.startswith(("/v1/codeq/", *GUARDED)) else BODIES[route.path.rpartition("/")[2]]


def path_of(route: Route, ids: dict[str, str] = UNKNOWN) -> str:
    return re.sub(r"\{(\w+).*?\}", lambda field: (OTHERS | ids)[field[1]], route.path)


def with_an_id(server: Server) -> Iterator[tuple[Route, str]]:
    for route in server.routes():
        for name in UNKNOWN:
            shaped = route.error_writer is write_problem and route.scope is not None
            if f"{{{name}}}" in route.path and shaped and route.method != "HEAD":
                yield route, name


def refused_as(route: Route, given: Answer, status: int, code: str) -> None:
    """Assert the refusal; routes made for other clients have errors in the shape that those clients read."""
    if route.error_writer is write_problem and route.method != "HEAD":
        given.problem(status, code)
    else:
        assert given.status == status


def engine_routes(server: Server) -> list[Route]:
    return [route for route in server.routes() if route.path.startswith("/engine/")]


async def ask(api: Api, route: Route, ids: dict[str, str] = UNKNOWN) -> Answer:
    if route.path in ENDLESS:
        return await glance(api, route.path)
    return await api.call(route.method, path_of(route, ids), body_of(route))


async def glance(api: Api, path: str) -> Answer:
    """Read only the head of a stream that has no end."""
    async with api.session.get(api.url + path, headers=api._headers) as response:
        return Answer(response.status, response.headers, b"" if response.status == 200 else await response.read())


# ── who may ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@on_sqlite
async def test_a_route_with_a_scope_needs_a_token_and_the_others_need_none(
    server: Server, nobody: Api, subtests: pytest.Subtests
) -> None:
    for route in server.routes():
        with subtests.test(route=f"{route.method} {route.path}"):
            for stranger in (nobody, nobody.of("nonsense")):
                given = await ask(stranger, route)
                if route.scope is not None:
                    refused_as(route, given, 401, "auth.unauthenticated")
                    assert given.headers["www-authenticate"] == 'Bearer realm="chargehand"'
                elif route.path.startswith(GUARDED):
                    assert given.status in (401, 403, 405)
                else:
                    assert given.status == 200


@on_sqlite
async def test_a_route_needs_its_own_scope_and_no_other(server: Server, nobody: Api, subtests: pytest.Subtests) -> None:
    scoped = [route for route in server.routes() if route.scope]
    assert {route.scope for route in scoped} == set(SCOPES)
    for route in scoped:
        with subtests.test(route=f"{route.method} {route.path}"):
            refused = await ask(nobody.of(token_of(f"all but {route.scope}")), route)
            refused_as(route, refused, 403, "auth.forbidden")
            assert f"`{route.scope}`" in refused.body.decode() or route.method == "HEAD"
            admitted = await ask(nobody.of(token_of(f"only {route.scope}")), route)
            assert admitted.status not in (401, 403, 500)


# ── ids ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_things_of_another_tenant_are_not_found(
    server: Server, acme: Api, nobody: Api, receiver: Receiver, subtests: pytest.Subtests
) -> None:
    receiver.otherwise = answer(500)
    job_id = await acme.submit(webhook={"url": receiver.url(), "on": ["queued"]})
    [delivery] = await acme.deliveries(f"job={job_id}&state=dead")
    assert (await acme.claim())["id"] == job_id
    ids = {"job_id": job_id, "delivery_id": delivery["id"], "endpoint_id": delivery["endpoint_id"]}

    async def as_acme_sees_it() -> list[bytes]:
        views = [f"/engine/jobs/{job_id}", f"/engine/jobs/{job_id}/events", f"/engine/deliveries/{delivery['id']}"]
        views += [f"/engine/endpoints/{delivery['endpoint_id']}", "/engine/jobs", "/engine/queues"]
        return [(await acme.get(view)).body.partition(b',"as_of"')[0] for view in views]

    before = await as_acme_sees_it()
    umbrella = nobody.of(token_of("umbrella"))
    for route, _ in with_an_id(server):
        with subtests.test(route=f"{route.method} {route.path}"):
            (await ask(umbrella, route, ids)).problem(404, "not_found")
    for route in server.routes():
        if route.method == "GET" and route.scope == "jobs:read" and "{" not in route.path and route.path not in ENDLESS:
            with subtests.test(route=f"{route.method} {route.path}"):
                seen = (await umbrella.get(route.path)).body.decode()
                assert not [text for text in (*ids.values(), receiver.url()) if text in seen]
    assert await as_acme_sees_it() == before


async def test_tenants_may_use_the_same_idempotency_key(nobody: Api) -> None:
    job, key = {"queue": "q", "payload": 1}, {"Idempotency-Key": "k"}
    first = await nobody.of(token_of("acme")).post("/engine/jobs", job, key)
    second = await nobody.of(token_of("umbrella")).post("/engine/jobs", job | {"payload": 2}, key)
    assert first.good(202) != second.good(202)


@on_sqlite
async def test_an_unknown_id_is_404_and_a_malformed_id_is_400(
    server: Server, acme: Api, subtests: pytest.Subtests
) -> None:
    malformed = ["no-ulid", "7zzzzzzzzzzzzzzzzzzzzzzzzz", "8ZZZZZZZZZZZZZZZZZZZZZZZZZ", "7" * 27, "%00", "%C3%A9"]
    for route, name in with_an_id(server):
        with subtests.test(route=f"{route.method} {route.path}"):
            assert (await ask(acme, route)).problem(404, "not_found")["detail"].endswith(UNKNOWN[name])
            for text in ["x" * 65] if name == "endpoint_id" else malformed:
                (await ask(acme, route, UNKNOWN | {name: text})).problem(400, "request.invalid_field", name)


# ── bodies and queries ────────────────────────────────────────────────────────────────────────────────────────────────


@on_sqlite
async def test_a_body_that_cannot_be_read_is_400(server: Server, acme: Api, subtests: pytest.Subtests) -> None:
    broken = {b"": "is empty", b"{": "not valid JSON", b"nonsense": "not valid JSON", b"\xff\xfe": "not valid JSON"}
    for route in engine_routes(server):
        if route.request is None:
            continue
        with subtests.test(route=f"{route.method} {route.path}"):
            for body, why in broken.items():
                refused = await acme.call(route.method, path_of(route), data=body)
                assert why in refused.problem(400, "request.invalid")["detail"]
            for body in (b"[]", b'"text"', b"null", b"1"):
                refused = await acme.call(route.method, path_of(route), data=body)
                refused.problem(400, "request.invalid_field", "body")
            misspelt = await acme.call(route.method, path_of(route), body_of(route) | {"misspelt": 1})
            misspelt.problem(400, "request.invalid_field", "misspelt")


@on_sqlite
async def test_a_required_field_that_is_missing_is_named(server: Server, acme: Api, subtests: pytest.Subtests) -> None:
    for route in engine_routes(server):
        for field in body_of(route) or {}:
            rest = {name: value for name, value in body_of(route).items() if name != field}
            with subtests.test(route=f"{route.method} {route.path}", field=field):
                refused = await acme.call(route.method, path_of(route), rest)
                assert "missing" in refused.problem(400, "request.invalid_field", field)["detail"]


@on_sqlite
async def test_a_body_that_is_too_large_is_413_with_and_without_a_length(
    server: Server, acme: Api, subtests: pytest.Subtests
) -> None:
    async def in_pieces() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b" " * 1000

    for route in engine_routes(server):
        if route.request is None:
            continue
        with subtests.test(route=f"{route.method} {route.path}"):
            for data in (b" " * 20_000, in_pieces()):
                (await acme.call(route.method, path_of(route), data=data)).problem(413, "request.too_large")


@on_sqlite
async def test_a_body_that_is_announced_too_large_is_refused_before_it_is_sent(server: Server) -> None:
    bearer = f"Authorization: Bearer {token_of('acme')}"
    head = f"POST /engine/jobs HTTP/1.1\r\n{bearer}\r\nContent-Length: 1000000000000\r\n\r\n"
    status, _ = await exchange(server, head.encode() + b"{")
    assert status == 413


@on_sqlite
async def test_an_unknown_name_in_a_query_is_400(server: Server, acme: Api, subtests: pytest.Subtests) -> None:
    for route in server.routes():
        if route.query is not None and route.error_writer is write_problem:
            with subtests.test(route=f"{route.method} {route.path}"):
                refused = await acme.get(f"{path_of(route)}?misspelt=1")
                refused.problem(400, "request.invalid_field", "misspelt")


# ── what is not there ─────────────────────────────────────────────────────────────────────────────────────────────────


@on_sqlite
async def test_an_unknown_path_is_answered_with_a_problem(acme: Api, subtests: pytest.Subtests) -> None:
    for path in ("/nowhere", "/engine", "/engine/jobs/1/2/3", "/%00", "/engine%2Fjobs%2F1%2F2"):
        with subtests.test(path=path):
            (await acme.get(path)).problem(404, "http.404")


@on_sqlite
async def test_a_method_that_is_not_allowed_is_answered_with_a_problem_and_the_allowed_ones(
    server: Server, acme: Api, subtests: pytest.Subtests
) -> None:
    methods: dict[str, set[str]] = {}
    for route in server.routes():
        methods.setdefault(path_of(route), set()).add(route.method)
    for path, served in methods.items():
        if "PATCH" in served:
            continue
        with subtests.test(path=path):
            refused = await acme.call("PATCH", path)
            refused.problem(405, "http.405")
            assert served <= {method.strip() for method in refused.headers["allow"].split(",")}
