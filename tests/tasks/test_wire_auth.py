"""Who may do what at the tasks door, and that no tenant sees another: the table of refusals, row by row."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.api.serving import Answer, on_sqlite
from tests.tasks.calling import NOBODY, TOKENS, WORK, Shop, a_jwt, calling, refused
from tests.tasks.subscribing import a_token

pytestmark = on_sqlite

CREATE = {"command": "render", "payload": 1}
FAILED = {"status": "FAILED", "error": "x"}
# Every endpoint for one task: caller, method, path, body, and the error for an unknown task.
OF_A_TASK: list[tuple[str, str, str, dict[str, Any] | None, str]] = [
    ("producer", "GET", "/tasks/{id}", None, "not found"),
    ("worker", "GET", "/tasks/{id}", None, "not found"),
    ("producer", "GET", "/tasks/{id}/result", None, "task not found"),
    ("worker", "GET", "/tasks/{id}/result?waitSeconds=5", None, "task not found"),
    ("producer", "GET", "/tasks/{id}/events", None, "not found"),
    ("producer", "GET", "/tasks/{id}/artifacts/a.txt", None, "not found"),
    ("producer", "POST", "/tasks/{id}/cancel", None, "not found"),
    ("worker", "POST", "/tasks/{id}/heartbeat", {}, "not-found"),
    ("worker", "POST", "/tasks/{id}/progress", {}, "not-found"),
    ("worker", "POST", "/tasks/{id}/abandon", {}, "not-found"),
    ("worker", "POST", "/tasks/{id}/nack", {}, "not-found"),
    ("worker", "POST", "/tasks/{id}/result", FAILED, "task not found"),
    ("boss", "GET", "/admin/dlq/{id}", None, "not found"),
    ("boss", "POST", "/admin/dlq/{id}/requeue", {}, "not found"),
    ("boss", "DELETE", "/admin/dlq/{id}", None, "not found"),
]
# Every worker endpoint with its scope.
WORKING: list[tuple[str, dict[str, Any], str]] = [
    ("/tasks/claim", {}, "codeq:claim"),
    ("/tasks/claim/batch", {"count": 1}, "codeq:claim"),
    ("/tasks/claim/stream", {}, "codeq:claim"),
    (f"/tasks/{NOBODY}/heartbeat", {}, "codeq:heartbeat"),
    (f"/tasks/{NOBODY}/progress", {}, "codeq:heartbeat"),
    (f"/tasks/{NOBODY}/abandon", {}, "codeq:abandon"),
    (f"/tasks/{NOBODY}/nack", {}, "codeq:nack"),
    (f"/tasks/{NOBODY}/result", FAILED, "codeq:result"),
    ("/tasks/batch/results", {"results": [{}]}, "codeq:result"),
]
ADMINISTERING: list[tuple[str, str, dict[str, Any] | None]] = [
    ("GET", "/admin/queues", None),
    ("GET", "/admin/queues/render", None),
    ("PUT", "/admin/queues/render", {}),
    ("POST", "/admin/tasks/cleanup", None),
    ("GET", "/admin/dlq", None),
    ("GET", f"/admin/dlq/{NOBODY}", None),
    ("POST", "/admin/dlq/requeue", {}),
    ("POST", "/admin/dlq/purge", {"command": "*"}),
    ("POST", f"/admin/dlq/{NOBODY}/requeue", {}),
    ("DELETE", f"/admin/dlq/{NOBODY}", None),
]


@pytest.fixture
async def shop(store_url: str) -> AsyncIterator[Shop]:
    no_types = a_token("no-types", scopes=WORK, event_types=[])
    no_scopes = a_token("no-scopes", scopes="")
    async with calling(store_url, {"auth.tokens": [*TOKENS, no_types, no_scopes]}) as opened:
        yield opened


async def call(shop: Shop, token: str, method: str, path: str, body: Any = None, **headers: str) -> Answer:
    return await shop.nobody.api.of(token).call(method, f"/v1/codeq{path}", body, headers=headers)


# proving a name -----------------------------------------------------------------------------------------------------------


async def test_a_missing_or_incomplete_authorization_header_is_refused(shop: Shop) -> None:
    for method, path in (
        ("GET", f"/tasks/{NOBODY}"),
        ("POST", "/tasks"),
        ("POST", "/tasks/claim"),
        ("GET", "/admin/dlq"),
    ):
        refused(await call(shop, "", method, path), 401, "missing Authorization header")
        for header in ("Bearer", "Bearer ", "Basic eDp5", "producer", "Token producer"):
            answer = await call(shop, "", method, path, Authorization=header)
            said = refused(answer, 401, "invalid Authorization format")
            assert "Bearer <token>" in said["detail"]
            assert answer.headers["www-authenticate"].startswith("Bearer")


async def test_the_scheme_is_read_in_any_case(shop: Shop) -> None:
    for scheme in ("bearer", "BEARER", "Bearer"):
        assert (await call(shop, "", "GET", "/raft/status", Authorization=f"{scheme} producer")).status == 200


async def test_an_unknown_token_is_refused_everywhere(shop: Shop) -> None:
    for path, body, _ in WORKING:
        refused(await call(shop, "unknown", "POST", path, body), 401, "invalid token")
    refused(await call(shop, "unknown", "POST", "/tasks", CREATE), 401, "invalid token")
    refused(await call(shop, "unknown", "GET", f"/tasks/{NOBODY}"), 401, "invalid token")


async def test_an_untrusted_jwt_is_refused_with_the_reason(shop: Shop) -> None:
    for token, why in [
        (a_jwt(secret="another secret of more than thirty-two bytes"), "signature"),
        (a_jwt(exp=1_000_000_000), "expired"),
        (a_jwt(exp=...), "exp"),
        ("a.b.c", "header"),
    ]:
        answer = await call(shop, token, "POST", "/tasks", CREATE)
        assert answer.status == 401
        assert why in answer.json["error"]


# producers ----------------------------------------------------------------------------------------------------------------


async def test_a_jwt_without_scopes_is_a_producer(shop: Shop) -> None:
    for claims in ({}, {"scope": "openid profile"}, {"scope": "codeq:produce"}):
        made = (await call(shop, a_jwt(tid="acme", **claims), "POST", "/tasks", CREATE)).good(202)
        assert made["tenantId"] == "acme"
    refused(await call(shop, a_jwt(), "POST", "/tasks/claim", {}), 401, "missing eventTypes")


async def test_the_token_of_a_worker_cannot_create_or_cancel_tasks(shop: Shop) -> None:
    task = await shop.producer.create()
    jwt = a_jwt("worker", tid="acme", scope=WORK, eventTypes=["*"])
    for token in ("worker", jwt):
        for path, body in (
            ("/tasks", CREATE),
            ("/tasks/batch", {"tasks": [CREATE]}),
            (f"/tasks/{task['id']}/cancel", {}),
        ):
            said = refused(await call(shop, token, "POST", path, body), 401, "invalid token")
            assert "codeq:produce" in said["detail"]
    assert (await shop.producer.task(task))["status"] == "PENDING"


# workers ------------------------------------------------------------------------------------------------------------------


async def test_a_worker_needs_event_types_and_each_verb_its_scope(shop: Shop) -> None:
    for path, body, scope in WORKING:
        refused(await call(shop, "no-types", "POST", path, body), 401, "missing eventTypes")
        refused(await call(shop, "no-scopes", "POST", path, body), 401, "missing scope")
        rest = " ".join(each for each in WORK.split() if each != scope)
        for token in (a_jwt(tid="acme", eventTypes=["*"], scope=rest), "producer"):
            said = refused(await call(shop, token, "POST", path, body), 403, "missing scope")
            assert scope in said["detail"]
        refused(await call(shop, a_jwt(eventTypes=["*"]), "POST", path, body), 401, "missing scope")
        refused(await call(shop, a_jwt(scope=WORK), "POST", path, body), 401, "missing eventTypes")
        if "stream" not in path:
            allowed = await call(shop, a_jwt(tid="acme", eventTypes=["*"], scope=scope), "POST", path, body)
            assert allowed.status in (200, 204, 404), path


async def test_the_subject_of_a_jwt_is_the_workers_name(shop: Shop) -> None:
    task = await shop.producer.create()
    token = a_jwt("robot-7", tid="acme", scope=WORK, eventTypes=["render"])
    held = (await call(shop, token, "POST", "/tasks/claim", {})).good()
    assert (held["id"], held["workerId"]) == (task["id"], "robot-7")
    another = a_jwt("robot-7", tid="acme", scope=WORK, eventTypes=["render"], jti="renewed")
    assert (await call(shop, another, "POST", f"/tasks/{task['id']}/heartbeat", {})).good() == {"ok": True}


# tenants ------------------------------------------------------------------------------------------------------------------


async def test_the_tenant_is_the_claim_under_any_of_its_names_or_else_the_subject(shop: Shop) -> None:
    for claims, tenant in [
        ({"tid": "acme"}, "acme"),
        ({"tenantId": "acme"}, "acme"),
        ({"tenant_id": "acme"}, "acme"),
        ({"organizationId": "acme"}, "acme"),
        ({"organization_id": "acme", "tid": "acme"}, "acme"),
        ({"sub": "solo"}, "sub-solo"),
    ]:
        made = (await call(shop, a_jwt(**claims), "POST", "/tasks", CREATE)).good(202)
        assert made["tenantId"] == tenant


async def test_a_subject_that_is_called_like_a_tenant_is_not_that_tenant(shop: Shop) -> None:
    task = await shop.producer.create()
    namesake = a_jwt("acme", scope=f"codeq:admin {WORK}", eventTypes=["*"])
    assert (await call(shop, namesake, "GET", f"/tasks/{task['id']}")).status == 404
    assert (await call(shop, namesake, "POST", "/tasks/claim", {})).status == 204
    assert (await call(shop, namesake, "GET", "/admin/queues")).good() == {}
    acme = a_jwt("robot", tid="acme", scope="codeq:admin", eventTypes=["*"])
    assert (await call(shop, acme, "GET", f"/tasks/{task['id']}")).good()["tenantId"] == "acme"


async def test_tenant_claims_that_conflict_or_are_malformed_are_refused_everywhere(shop: Shop) -> None:
    bad: list[dict[str, Any]] = [
        {"tid": "acme", "tenantId": "globex"},
        {"tid": ""},
        {"tid": 7},
        {"tid": None},
        {"tid": "Acme"},
        {"tid": "a/b"},
        {"tid": "a" * 64},
        {"sub": "someone@example.com"},
    ]
    for claims in bad:
        token = a_jwt(**{"scope": f"codeq:admin {WORK}", "eventTypes": ["*"], **claims})
        for method, path, body in (
            ("POST", "/tasks", CREATE),
            ("POST", "/tasks/claim", {}),
            ("GET", "/admin/queues", None),
            ("GET", f"/tasks/{NOBODY}", None),
        ):
            refused(await call(shop, token, method, path, body), 403, "invalid tenant claims")


async def test_another_tenant_finds_nothing_and_changes_nothing(shop: Shop) -> None:
    held = await shop.producer.create()
    await shop.worker.claim()
    dead = await shop.dead_letter("burn")
    for task in (held, dead):
        for who, method, path, body, text in OF_A_TASK:
            where = path.format(id=task["id"])
            refused(await call(shop, f"other-{who}", method, where, body), 404, text)
    results = {"results": [{"taskId": held["id"], **FAILED}]}
    [one] = (await shop.other_worker.post("/tasks/batch/results", results)).good()["results"]
    assert one == {"taskId": held["id"], "error": "task not found"}
    assert (await shop.producer.task(held))["status"] == "IN_PROGRESS"
    assert (await shop.producer.task(dead))["lastKnownLocation"] == "DLQ_SET"


async def test_lists_counts_and_claims_are_of_the_callers_tenant_alone(shop: Shop) -> None:
    await shop.producer.create()
    await shop.dead_letter("burn")
    for each in ("render", "burn"):
        await shop.other_worker.claims_nothing(each)
    await shop.other_worker.claims_nothing()
    assert (await shop.other_worker.post("/tasks/claim/batch", {"count": 9})).status == 204
    assert (await shop.other_producer.get("/tasks")).good() == {"tasks": [], "next": None}
    assert (await shop.other_boss.get("/admin/queues")).good() == {}
    assert (await shop.other_boss.get("/admin/queues/render")).good()["ready"] == 0
    assert (await shop.other_boss.get("/admin/dlq")).good() == {"tasks": [], "next": None, "counts": {}}
    for what in ("requeue", "purge"):
        assert (await shop.other_boss.post(f"/admin/dlq/{what}", {"command": "*"})).good() == {"count": 0}
    cleaned = await shop.other_boss.post("/admin/tasks/cleanup", {"before": "2999-01-01T00:00:00Z"})
    assert cleaned.good()["deleted"] == 0
    assert (await shop.other_boss.put("/admin/queues/render", {"paused": True})).good()["paused"] is True
    assert await shop.worker.claim("render")


async def test_jobs_of_other_doors_are_not_found_as_tasks(store_url: str) -> None:
    plain = a_token("plain", scopes="jobs:read jobs:write work")
    async with calling(store_url, {"auth.tokens": [*TOKENS, plain]}) as shop:
        waiting = await shop.by("plain").api.submit()
        running = await shop.by("plain").api.submit(queue="r")
        await shop.by("plain").api.claim(queues=["r"])
        for job_id in (waiting, running):
            for who, method, path, body, text in OF_A_TASK:
                refused(await call(shop, who, method, path.format(id=job_id), body), 404, text)
        namesake = await shop.by("plain").api.submit(queue="n")
        await shop.by("plain").api.claim(queues=["n"], owner="worker")
        refused(await shop.worker.on({"id": namesake}, "nack"), 404, "not-found")
        assert (await shop.producer.get("/tasks")).good()["tasks"] == []
        await shop.worker.claims_nothing()
        assert (await shop.by("plain").api.job(waiting))["state"] == "queued"


async def test_keys_are_separate_for_each_tenant(shop: Shop) -> None:
    for field in ("idempotencyKey", "uniqueKey"):
        mine = await shop.producer.create(payload="secret", **{field: "k"})
        theirs = await shop.other_producer.create(payload="other", **{field: "k"})
        assert mine["id"] != theirs["id"]
        assert theirs["payload"] == '"other"'


async def test_a_fleet_for_all_tenants_needs_its_own_scope(shop: Shop) -> None:
    await shop.producer.create()
    await shop.other_producer.create()
    everything = a_jwt("fleet", scope="*", eventTypes=["*"])
    assert (await call(shop, everything, "POST", "/tasks/claim", {})).status == 204
    fleet = a_jwt("fleet", scope=f"{WORK} codeq:all-tenants", eventTypes=["*"])
    held = [(await call(shop, fleet, "POST", "/tasks/claim", {})).good() for _ in range(2)]
    assert {task["tenantId"] for task in held} == {"acme", "globex"}
    for task in held:
        done = await call(shop, fleet, "POST", f"/tasks/{task['id']}/result", FAILED)
        assert done.good()["status"] == "FAILED"


# administrators -----------------------------------------------------------------------------------------------------------


async def test_only_administrators_may_administer_whatever_the_headers_say(shop: Shop) -> None:
    plain = a_jwt(tid="acme")
    for method, path, body in ADMINISTERING:
        for token in ("producer", "worker", plain, a_jwt(tid="acme", role="USER")):
            answer = await call(shop, token, method, path, body, **{"X-Role": "ADMIN"})
            said = refused(answer, 401, "unauthorized. Admin only")
            assert "codeq:admin" in said["detail"]


async def test_a_scope_or_a_role_makes_an_administrator(shop: Shop) -> None:
    for claims in ({"scope": "codeq:admin"}, {"role": "ADMIN"}, {"role": "admin"}):
        for method, path, body in ADMINISTERING:
            answer = await call(shop, a_jwt(tid="acme", **claims), method, path, body)
            assert answer.status == (404 if NOBODY in path else 200), (claims, path, answer.body)


async def test_producers_and_workers_may_read_and_other_tokens_may_not(shop: Shop) -> None:
    task = await shop.producer.create()
    path = f"/tasks/{task['id']}"
    for token in ("producer", "worker", "boss", a_jwt(tid="acme"), a_jwt(tid="acme", eventTypes=["x"], scope=WORK)):
        assert (await call(shop, token, "GET", path)).good()["id"] == task["id"]
    for token in ("no-types", "no-scopes", a_jwt(tid="acme", scope=WORK), a_jwt(tid="acme", scope="jobs:read")):
        refused(await call(shop, token, "GET", path), 401, "invalid token")


async def test_without_any_auth_everybody_may_do_everything(store_url: str) -> None:
    async with calling(store_url, {"auth.tokens": [], "auth.jwt_secret": ""}) as shop:
        task = await shop.nobody.create()
        assert (await shop.nobody.claim())["workerId"] == "anonymous"
        await shop.nobody.complete(task)
        assert (await shop.nobody.get("/admin/queues")).status == 200
