"""Rate limits: how often a producer may create, a worker claim and an administrator clean up."""

from typing import Any

from tests.api.serving import on_sqlite
from tests.tasks.calling import TOKENS, Shop, a_jwt, calling, refused
from tests.tasks.subscribing import a_token

pytestmark = on_sqlite

ONE = {"command": "render", "payload": 1}
# Slow enough that no token comes back while a test runs.
SETTINGS: dict[str, Any] = {
    "tasks.producer_per_minute": 2,
    "tasks.producer_burst": 2,
    "tasks.worker_per_minute": 2,
    "tasks.worker_burst": 3,
    "tasks.admin_per_minute": 2,
    "tasks.admin_burst": 1,
    "auth.tokens": [
        *TOKENS,
        a_token("producer-2", scopes="codeq:produce"),
        a_token("both", scopes="codeq:produce codeq:claim"),
        a_token("scraper", scopes="metrics"),
    ],
}


async def hits(shop: Shop, scope: str, operation: str) -> float:
    """Return how often this limit was hit, from the metrics."""
    page = (await shop.by("scraper").api.get("/metrics")).body.decode()
    name = f'codeq_rate_limit_hits_total{{operation="{operation}",scope="{scope}"}} '
    return sum(float(line.removeprefix(name)) for line in page.splitlines() if line.startswith(name))


async def test_each_scope_has_its_own_bucket_and_a_refusal_says_when_to_retry(store_url: str) -> None:
    async with calling(store_url, SETTINGS) as shop:
        for caller, path, body, burst, scope, operation in [
            (shop.producer, "/tasks", ONE, 2, "producer", "create_task"),
            (shop.worker, "/tasks/claim", {}, 3, "worker", "claim"),
            (shop.boss, "/admin/tasks/cleanup", {}, 1, "admin", "cleanup"),
        ]:
            for _ in range(burst):
                assert (await caller.post(path, body)).status in (200, 202, 204)
            answer = await caller.post(path, body)
            said = refused(answer, 429, "rate limit exceeded")
            assert (said["scope"], said["operation"]) == (scope, operation)
            assert 1 <= said["retryAfterSeconds"] <= 30
            assert answer.headers["retry-after"] == str(said["retryAfterSeconds"])
            assert await hits(shop, scope, operation) == 1


async def test_a_batch_costs_one_token_of_the_same_bucket_as_a_single_call(store_url: str) -> None:
    async with calling(store_url, SETTINGS) as shop:
        assert (await shop.producer.post("/tasks/batch", {"tasks": [ONE] * 50})).status == 200
        assert (await shop.producer.post("/tasks", ONE)).status == 202
        for path, body in (("/tasks", ONE), ("/tasks/batch", {"tasks": [ONE]})):
            assert refused(await shop.producer.post(path, body), 429, "rate limit exceeded")["scope"] == "producer"
        for _ in range(3):
            assert (await shop.worker.post("/tasks/claim/batch", {"count": 2})).status == 200
        for path in ("/tasks/claim", "/tasks/claim/batch", "/tasks/claim/stream"):
            said = refused(await shop.worker.post(path, {"count": 1}), 429, "rate limit exceeded")
            assert said["operation"] == "claim"
        assert await hits(shop, "worker", "claim") == 3


async def test_each_caller_has_one_bucket_for_each_scope(store_url: str) -> None:
    async with calling(store_url, SETTINGS) as shop:
        for _ in range(3):
            last = await shop.producer.post("/tasks", ONE)
        assert last.status == 429
        for token in ("producer-2", "other-producer", a_jwt(tid="acme")):
            assert (await shop.by(token).post("/tasks", ONE)).status == 202
        both = shop.by("both")
        assert [(await both.post("/tasks", ONE)).status for _ in range(3)] == [202, 202, 429]
        assert [(await both.post("/tasks/claim", {})).status for _ in range(4)] == [200, 200, 200, 429]
        assert (await shop.producer.get("/tasks")).status == 200  # calls without a limit still work


async def test_a_new_token_of_the_same_subject_gets_no_new_bucket(store_url: str) -> None:
    async with calling(store_url, SETTINGS) as shop:
        statuses = [(await shop.by(a_jwt(tid="acme", jti=str(n))).post("/tasks", ONE)).status for n in range(3)]
        assert statuses == [202, 202, 429]


async def test_a_refusal_by_the_limit_of_all_requests_has_the_shape_of_this_wire(store_url: str) -> None:
    async with calling(store_url, {"auth.rate_per_second": 0.1, "auth.rate_burst": 1}) as shop:
        assert (await shop.producer.get("/tasks")).status == 200
        said = refused(await shop.producer.get("/tasks"), 429, "rate limit exceeded")
        assert 1 <= said["retryAfterSeconds"] <= 10


async def test_a_refused_create_makes_no_task_and_an_invalid_one_costs_a_token(store_url: str) -> None:
    async with calling(store_url, SETTINGS) as shop:
        assert [(await shop.producer.post("/tasks", {})).status for _ in range(2)] == [400, 400]
        assert (await shop.producer.post("/tasks", ONE)).status == 429
        assert (await shop.producer.get("/tasks")).good()["tasks"] == []


async def test_there_is_no_limit_unless_both_numbers_are_set(store_url: str) -> None:
    for off in ({"tasks.producer_per_minute": 0}, {"tasks.producer_burst": 0}):
        async with calling(store_url, {**SETTINGS, **off}) as shop:
            assert {(await shop.producer.post("/tasks", ONE)).status for _ in range(20)} == {202}
