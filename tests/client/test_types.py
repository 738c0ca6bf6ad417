"""Every call of the client reads and sends what the route that it calls replies and takes, field by field.

A field that the server gains fails here until the client has it, and so does a call without a row in CALLS. The server's types are
those of its route table; the client meets a server that answers each call with an example of the route's reply.
"""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NamedTuple

import msgspec
import pytest
from aiohttp import web
from msgspec import inspect

from chargehand.client import AsyncClient, ClientError, NewTask, TaskArtifact, Wish
from chargehand.client.types import deliveries, engine, flows, inference, provisioning, schedules, tasks
from chargehand.http.route import Route
from tests.api.serving import on_sqlite, serving

ID = "01K8Z4T5Y6M7QW3RX2B9VN0HCD"
AT = "2026-01-01T00:00:00Z"
HOOK = "http://127.0.0.1:9/"
CONTENT = TaskArtifact("a", HOOK, "YQ==", "text/plain")
RATE = engine.RateOfStarts(1)
POLICY = schedules.Policy((0,), 1, "dead", 1, 1, RATE, schedules.KeyPolicy(1, RATE))
NEW_TASK = NewTask("resize", {}, 1, HOOK, 1, "key", "unique", AT, 1, {"a": 1}, "k")
NEW_STEP = flows.NewStep("a", "engine", {"queue": "q", "payload": {}}, (flows.After("b", "failed"),), "any")
NEW_RESULT = tasks.NewResult("COMPLETED", {}, "e", (CONTENT,), 1)

Made = Awaitable[object] | AsyncGenerator[object, None] | AbstractAsyncContextManager[object]


class Call(NamedTuple):
    make: Callable[[AsyncClient], Made]  # makes the call with every parameter, so that every field is sent
    # A type, or the members of a reply that the client takes apart itself; None: the reply is ignored, or is no JSON.
    reads: Any = None
    item_of: str = ""  # the call whose request is the item of a batch


CALLS = {
    "submit": Call(
        lambda c: c.submit(
            "m", "hello", prompt="hello", options={}, format="json", tools=[], think=True, keep_alive="1m", system="s",
            suffix="s", template="t", raw=False, images=["YQ=="], webhook=HOOK, webhook_events=["done"], priority=1,
            max_attempts=1, run_at=AT, delay_seconds=1, deadline_seconds=1, metadata={"a": 1}, artifacts=["a", Wish("b")],
        ),
        engine.SubmittedJob,
    ),
    "chat": Call(lambda c: c.chat("m", "hello"), engine.SubmittedJob),
    "job": Call(lambda c: c.job(ID), inference.Job),
    "jobs": Call(lambda c: c.jobs(state="done", model="m"), {"jobs": list[inference.ListedInferenceJob], "next": str | None}),
    "wait": Call(lambda c: c.wait(ID), inference.Job),
    "stream": Call(lambda c: c.stream(ID), inference.Job),
    "events": Call(lambda c: c.events(ID), {"events": list[inference.Event]}),
    "watch": Call(lambda c: c.watch(ID), inference.Job),
    "follow": Call(lambda c: c.follow(ID), inference.Job),
    "cancel_batch": Call(lambda c: c.cancel_batch(ID)),
    "cancel": Call(lambda c: c.cancel(ID), inference.JobState),
    "retry": Call(lambda c: c.retry(ID), inference.JobState),
    "artifact": Call(lambda c: c.artifact(ID, "a")),
    "targets": Call(lambda c: c.targets(), {"targets": list[inference.ModelTarget]}),
    "engine.submit": Call(
        lambda c: c.engine.submit(
            "q", {}, webhook=engine.Webhook(HOOK, ("queued",)), priority=1, max_attempts=1, run_at=AT, delay_seconds=1,
            deadline_seconds=1, metadata={"a": 1}, limit_key="k",
        ),
        engine.SubmittedJob,
    ),
    "engine.job": Call(lambda c: c.engine.job(ID), engine.Job),
    "engine.jobs": Call(lambda c: c.engine.jobs(state="failed", kind="job", queue="q"), {"jobs": list[engine.ListedJob], "next": str | None}),
    "engine.wait": Call(lambda c: c.engine.wait(ID), engine.Job),
    "engine.events": Call(lambda c: c.engine.events(ID), {"events": list[engine.Event]}),
    "engine.watch": Call(lambda c: c.engine.watch(ID), engine.Job),
    "engine.cancel": Call(lambda c: c.engine.cancel(ID), engine.MovedJob),
    "engine.requeue": Call(lambda c: c.engine.requeue(ID), engine.MovedJob),
    "engine.claim": Call(
        lambda c: c.engine.claim(["q"], limit=2, lease_seconds=9, wait_seconds=1, owner="me"), {"jobs": list[engine.LeasedJob]}
    ),
    "engine.beat": Call(lambda c: c.engine.beat(ID, 1, 9), {"lease_until": str}),
    "engine.advance": Call(lambda c: c.engine.advance(ID, 1, "half", "m"), engine.MovedJob),
    "engine.note": Call(lambda c: c.engine.note(ID, 1, "m", level="warn", step="s", data={})),
    "engine.succeed": Call(lambda c: c.engine.succeed(ID, 1, {}), engine.MovedJob),
    "engine.retry": Call(lambda c: c.engine.retry(ID, 1, "e", failed_step="s", delay_seconds=1), engine.MovedJob),
    "engine.park": Call(lambda c: c.engine.park(ID, 1, "w", delay_seconds=1), engine.MovedJob),
    "engine.fail": Call(lambda c: c.engine.fail(ID, 1, "e", failed_step="s"), engine.MovedJob),
    "engine.queues": Call(lambda c: c.engine.queues(), {"queues": list[engine.QueueStatus], "as_of": str}),
    "engine.set_queue": Call(lambda c: c.engine.set_queue("q", paused=True, max_running=1, rate=RATE, key_max_running=1, key_rate=RATE), engine.QueueStatus),
    "flows.submit": Call(
        lambda c: c.flows.submit([NEW_STEP], name="n", webhook=HOOK, metadata={"a": 1}), engine.SubmittedJob
    ),
    "flows.get": Call(lambda c: c.flows.get(ID), flows.Flow),
    "flows.steps": Call(lambda c: c.flows.steps(ID), flows.Flow),
    "flows.find": Call(lambda c: c.flows.find(state="failed", name="n"), {"jobs": list[flows.ListedFlow], "next": str | None}),
    "flows.wait": Call(lambda c: c.flows.wait(ID), flows.Flow),
    "flows.events": Call(lambda c: c.flows.events(ID), {"events": list[engine.Event]}),
    "flows.watch": Call(lambda c: c.flows.watch(ID), flows.Flow),
    "flows.cancel": Call(lambda c: c.flows.cancel(ID), engine.MovedJob),
    "flows.retry": Call(lambda c: c.flows.retry(ID, "step"), engine.MovedJob),
    "deliveries.find": Call(
        lambda c: c.deliveries.find(state="dead", job=ID, endpoint="ep_1"), {"deliveries": list[deliveries.Delivery], "next": str | None}
    ),
    "deliveries.get": Call(lambda c: c.deliveries.get(ID), deliveries.DeliveryWithTries),
    "deliveries.replay": Call(lambda c: c.deliveries.replay(ID), {"replayed": int}),
    "deliveries.endpoints": Call(lambda c: c.deliveries.endpoints(), {"endpoints": list[deliveries.Endpoint], "next": str | None}),
    "deliveries.endpoint": Call(lambda c: c.deliveries.endpoint("ep_1"), deliveries.Endpoint),
    "deliveries.replay_all": Call(lambda c: c.deliveries.replay_all("ep_1"), {"replayed": int}),
    "deliveries.pause": Call(lambda c: c.deliveries.pause("ep_1"), deliveries.Endpoint),
    "deliveries.resume": Call(lambda c: c.deliveries.resume("ep_1"), deliveries.Endpoint),
    "tasks.create": Call(
        lambda c: c.tasks.create(
            "resize", {}, priority=1, webhook=HOOK, max_attempts=1, unique_key="u", run_at=AT, delay_seconds=1,
            metadata={"a": 1}, limit_key="k",
        ),
        tasks.Task,
    ),
    "tasks.create_many": Call(lambda c: c.tasks.create_many([NEW_TASK]), {"results": list[tasks.Created]}, item_of="tasks.create"),
    "tasks.get": Call(lambda c: c.tasks.get(ID), tasks.Task),
    "tasks.find": Call(lambda c: c.tasks.find(command="resize", status="PENDING"), {"tasks": list[tasks.Task], "next": str | None}),
    "tasks.result": Call(lambda c: c.tasks.result(ID, 1), tasks.Ended),
    "tasks.wait": Call(lambda c: c.tasks.wait(ID), tasks.Ended),
    "tasks.events": Call(lambda c: c.tasks.events(ID), {"events": list[tasks.Event]}),
    "tasks.watch": Call(lambda c: c.tasks.watch(ID), tasks.Task),
    "tasks.artifact": Call(lambda c: c.tasks.artifact(ID, "a")),
    "tasks.cancel": Call(lambda c: c.tasks.cancel(ID), tasks.Task),
    "tasks.claim": Call(lambda c: c.tasks.claim(["resize"], lease_seconds=9, wait_seconds=1), tasks.Task),
    "tasks.claim_many": Call(lambda c: c.tasks.claim_many(2, ["resize"], lease_seconds=9), tasks.ClaimedTasks),
    "tasks.claims": Call(lambda c: c.tasks.claims(["resize"], lease_seconds=9, max_in_flight=2), tasks.Task),
    "tasks.heartbeat": Call(lambda c: c.tasks.heartbeat(ID, 9, lease=1)),
    "tasks.abandon": Call(lambda c: c.tasks.abandon(ID, lease=1)),
    "tasks.nack": Call(lambda c: c.tasks.nack(ID, delay_seconds=1, reason="r", lease=1), tasks.Nacked),
    "tasks.complete": Call(lambda c: c.tasks.complete(ID, {}, lease=1), tasks.Result),
    "tasks.fail": Call(lambda c: c.tasks.fail(ID, "e", lease=1), tasks.Result),
    "tasks.submit": Call(lambda c: c.tasks.submit(ID, NEW_RESULT), tasks.Result),
    "tasks.submit_many": Call(
        lambda c: c.tasks.submit_many([msgspec.structs.replace(NEW_RESULT, task_id=ID)]), {"results": list[tasks.ReportedResult]}, item_of="tasks.submit"
    ),
    "tasks.progress": Call(lambda c: c.tasks.progress(ID, 1, "m", {}, lease=1)),
    "tasks.subscribe": Call(
        lambda c: c.tasks.subscribe(
            HOOK, ["resize"], ttl_seconds=9, delivery_mode="group", group_id="g", min_interval_seconds=1
        ),
        tasks.WorkerSubscription,
    ),
    "tasks.renew": Call(lambda c: c.tasks.renew("sub-1", 9), tasks.WorkerSubscription),
    "tasks.unsubscribe": Call(lambda c: c.tasks.unsubscribe("sub-1")),
    "schedules.put": Call(
        lambda c: c.schedules.put(
            "nightly", "@daily", "resize", {}, timezone="UTC", priority=1, webhook=HOOK, max_attempts=1, limit_key="k", metadata={"a": 1}
        ),
        schedules.Schedule,
    ),
    "schedules.get": Call(lambda c: c.schedules.get("nightly"), schedules.Schedule),
    "schedules.find": Call(lambda c: c.schedules.find(), {"schedules": list[schedules.ListedSchedule]}),
    "schedules.pause": Call(lambda c: c.schedules.pause("nightly"), schedules.Schedule),
    "schedules.resume": Call(lambda c: c.schedules.resume("nightly"), schedules.Schedule),
    "schedules.run": Call(lambda c: c.schedules.run("nightly"), tasks.Task),
    "schedules.remove": Call(lambda c: c.schedules.remove("nightly")),
    "topics.put": Call(lambda c: c.topics.put("resize", POLICY), schedules.Topic),
    "topics.get": Call(lambda c: c.topics.get("resize"), schedules.Topic),
    "topics.find": Call(lambda c: c.topics.find(), {"topics": list[schedules.Topic]}),
    "topics.remove": Call(lambda c: c.topics.remove("resize")),
    "provisioning.register": Call(
        lambda c: c.provisioning.register(
            "SN-1", HOOK, username="u", password="p", system_uuid="4c4c4544-0042-3510-8052-b4c04f303132", vendor="dell",
            tls="insecure", unidentified=True, labels={"a": "b"},
        ),
        provisioning.RegisteredServer,
    ),
    "provisioning.server": Call(lambda c: c.provisioning.server("SN-1"), provisioning.RegisteredServer),
    "provisioning.servers": Call(lambda c: c.provisioning.servers(), {"servers": list[provisioning.RegisteredServer], "next": str | None}),
    "provisioning.remove_server": Call(lambda c: c.provisioning.remove_server("SN-1")),
    "provisioning.probe": Call(lambda c: c.provisioning.probe("SN-1"), provisioning.ProbeReport),
    "provisioning.validate": Call(lambda c: c.provisioning.validate({})),
    "provisioning.recipe_schema": Call(lambda c: c.provisioning.recipe_schema()),
    "provisioning.submit": Call(
        lambda c: c.provisioning.submit(
            "SN-1", {}, webhook=provisioning.StatusWebhook(HOOK, ("complete",)), priority=1, metadata={"a": 1}
        ),
        provisioning.SubmittedProvisioningJob,
    ),
    "provisioning.job": Call(lambda c: c.provisioning.job(ID), provisioning.Job),
    "provisioning.jobs": Call(
        lambda c: c.provisioning.jobs(status="complete", serial="SN-1"), {"jobs": list[provisioning.ListedProvisioningJob], "next": str | None}
    ),
    "provisioning.wait": Call(lambda c: c.provisioning.wait(ID), provisioning.Job),
    "provisioning.cancel": Call(lambda c: c.provisioning.cancel(ID), provisioning.ListedProvisioningJob),
    "provisioning.retry": Call(lambda c: c.provisioning.retry(ID), provisioning.ListedProvisioningJob),
    "provisioning.events": Call(lambda c: c.provisioning.events(ID), {"events": list[provisioning.Event]}),
    "provisioning.watch": Call(lambda c: c.provisioning.watch(ID), provisioning.Job),
}  # fmt: skip

# Calls that send a part of what another call of the same route sends, and fields that the client does not offer.
PARTIAL = {"chat", "tasks.complete", "tasks.fail"}
NOT_OFFERED = {
    "schedules.put": {"name"},  # it is in the path
    "submit": {"stream"},  # the server ignores it: a job's answer comes whole
    "tasks.claim_many": {"waitSeconds"},  # only a claim of one task waits
    "tasks.claims": {"waitSeconds"},  # a stream waits as long as it is open
}


# types as JSON shows them -----------------------------------------------------------------------------------------------

TEXTS = (inspect.StrType, inspect.DateTimeType, inspect.LiteralType, inspect.EnumType)
LISTS = (inspect.ListType, inspect.VarTupleType, inspect.SetType, inspect.FrozenSetType)
KINDS: dict[type, str] = {
    inspect.AnyType: "anything",
    inspect.RawType: "anything",
    inspect.BoolType: "boolean",
    inspect.IntType: "integer",
    inspect.FloatType: "number",
    inspect.DictType: "object",
    inspect.StructType: "struct",
    **dict.fromkeys(TEXTS, "text"),
    **dict.fromkeys(LISTS, "list"),
}


def plain(kind: inspect.Type) -> tuple[inspect.Type, bool]:
    """Return the type without its description and without null, and whether it may be null. Any may be null."""
    if isinstance(kind, inspect.Metadata):
        return plain(kind.type)
    if isinstance(kind, inspect.UnionType):
        [other] = [each for each in kind.types if not isinstance(each, inspect.NoneType)]
        return plain(other)[0], not isinstance(other, inspect.AnyType | inspect.RawType)
    return kind, False


def differences(ours: inspect.Type, theirs: inspect.Type, where: str) -> Iterator[str]:
    (ours, null), (theirs, their_null) = plain(ours), plain(theirs)
    kind, their_kind = KINDS[type(ours)], KINDS[type(theirs)]
    if (kind, null) != (their_kind, their_null):
        yield f"{where} is {kind}{', or null' * null}; the server's is {their_kind}{', or null' * their_null}"
    elif isinstance(ours, LISTS) and isinstance(theirs, LISTS):
        yield from differences(ours.item_type, theirs.item_type, f"{where}[]")
    elif isinstance(ours, inspect.DictType) and isinstance(theirs, inspect.DictType):
        yield from differences(ours.value_type, theirs.value_type, f"{where}{{}}")
    elif isinstance(ours, inspect.StructType) and isinstance(theirs, inspect.StructType):
        yield from field_differences(ours, theirs, where)


def field_differences(ours: inspect.StructType, theirs: inspect.StructType, where: str) -> Iterator[str]:
    mine = {field.encode_name: field for field in ours.fields}
    names = [field.encode_name for field in theirs.fields]
    if list(mine) != names:
        yield f"{where}: {ours.cls.__name__} has {', '.join(mine)}; the server has {', '.join(names)}"
    leaves_out = getattr(theirs.cls, "__origin__", theirs.cls).__struct_config__.omit_defaults
    for field in theirs.fields:
        if (own := mine.get(field.encode_name)) is not None:
            if leaves_out and not field.required and own.required:
                yield f"{where}.{field.encode_name} must be there; the server may leave it out"
            yield from differences(own.type, field.type, f"{where}.{field.encode_name}")


def example(kind: inspect.Type) -> Any:
    """A value with every field filled."""
    kind, _ = plain(kind)
    match kind:
        case inspect.LiteralType(values):
            return values[0]
        case inspect.EnumType(cls):
            return next(iter(cls)).value
        case inspect.DictType():
            return {"a": example(kind.value_type)}
        case inspect.StructType():
            return {field.encode_name: None if field.name == "next" else example(field.type) for field in kind.fields}
    if isinstance(kind, LISTS):
        return [example(kind.item_type)]
    return {"text": "x", "boolean": True, "integer": 1, "number": 1.5, "anything": {"a": 1}}[KINDS[type(kind)]]


def fields_of(kind: Any) -> set[str]:
    info, _ = plain(inspect.type_info(kind))
    return {field.encode_name for field in info.fields} if isinstance(info, inspect.StructType) else set()


def fits(body: Any, kind: Any) -> None:
    msgspec.json.decode(msgspec.json.encode(body), type=kind)


# a server that answers by its route table -------------------------------------------------------------------------------


class Heard(NamedTuple):
    route: Route
    query: dict[str, str]
    body: Any


class Examples:
    """Answers the first request of a call with an example of its route's reply, and all others with 404."""

    def __init__(self, routes: list[Route]) -> None:
        self._routes = [(route, re.compile(re.sub(r"\{\w+(:path)?\}", "[^/]+", route.path))) for route in routes]
        self.heard: list[Heard] = []

    async def answer(self, request: web.Request) -> web.Response:
        [route] = [r for r, path in self._routes if r.method == request.method and path.fullmatch(request.path)][:1]
        body = await request.read()
        self.heard.append(Heard(route, dict(request.query), msgspec.json.decode(body) if body else None))
        if len(self.heard) > 1 or route.reply is None:
            return web.json_response({"error": "not found"}, status=404)
        return web.json_response(example(inspect.type_info(route.reply)), status=route.status)


@asynccontextmanager
async def examples(routes: list[Route]) -> AsyncIterator[tuple[Examples, AsyncClient]]:
    server = Examples(routes)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        async with AsyncClient(f"http://127.0.0.1:{runner.addresses[0][1]}", "") as client:
            yield server, client
    finally:
        await runner.cleanup()


async def first_request(call: Call, routes: list[Route]) -> Heard:
    async with examples(routes) as (server, client):
        try:
            made = call.make(client)
            if isinstance(made, AsyncGenerator):
                async for _ in made:
                    pass
            elif isinstance(made, AbstractAsyncContextManager):
                async with made:
                    pass
            else:
                await made
        except ClientError as error:
            if error.status != 404:  # the 404 to the second request, made after the example was read
                raise
        return server.heard[0]


@pytest.fixture
async def routes(store_url: str) -> AsyncIterator[list[Route]]:
    async with serving(store_url, {"provisioning.enabled": True}) as server:
        yield list(server.routes())


# the tests --------------------------------------------------------------------------------------------------------------


def test_every_call_of_the_client_is_in_the_table() -> None:
    client = AsyncClient("http://127.0.0.1:9", "")
    parts = {"": client} | {
        f"{name}.": part for name, part in vars(client).items() if not name.startswith("_") and name != "url"
    }
    calls = {
        prefix + name
        for prefix, part in parts.items()
        for name in dir(part)
        if not name.startswith("_") and callable(getattr(part, name))
    }
    assert calls - {"close", *(name.rstrip(".") for name in parts)} == set(CALLS)


@on_sqlite
async def test_every_call_reads_what_the_server_replies(routes: list[Route]) -> None:
    found: list[str] = []
    for name, call in CALLS.items():
        route = (await first_request(call, routes)).route
        if call.reads is None:
            continue
        reads = call.reads
        if isinstance(reads, dict):
            reads = msgspec.defstruct("Reply", list(reads.items()))
        found += differences(inspect.type_info(reads), inspect.type_info(route.reply), name)
    assert not found, "\n".join(found)


@on_sqlite
async def test_every_call_sends_what_the_server_takes(routes: list[Route]) -> None:
    found: list[str] = []
    for name, call in CALLS.items():
        route, query, body = await first_request(call, routes)
        if route.query is not None:
            msgspec.convert(query, route.query, strict=False)
        if route.request is None:
            continue
        if call.item_of:
            [[body]] = body.values()
            other = (await first_request(CALLS[call.item_of], routes)).route
            fits(body, other.request)
            found += [f"{name} does not send {field}" for field in fields_of(other.request) - set(body)]
        elif name not in PARTIAL:
            fits(body, route.request)
            missing = fields_of(route.request) - set(body) - NOT_OFFERED.get(name, set())
            found += [f"{name} does not send {field}" for field in missing]
            unknown = set(body) - fields_of(route.request) if fields_of(route.request) else set()
            found += [f"{name} sends {field}, which the server does not know" for field in unknown]
    assert not found, "\n".join(found)
