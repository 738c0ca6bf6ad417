"""Every alert rule fires on a real server that was brought into that situation, and none on one that works normally."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import psutil  # type: ignore[import-untyped]
import pytest

from chargehand.doors.tasks.names import BASE
from tests.api.serving import on_sqlite, serving, until
from tests.observability.alerting import RULES, Rule, load_rules, read_rules
from tests.observability.door_stories import OF_DOORS
from tests.observability.promql import Binary, Number
from tests.observability.watched import HERE, SCRAPE_SECONDS, Story, Watched, watching
from tests.webhooks.receiver import Receiver, answer, hang, receiving

# Duration in seconds, threshold, severity.
NAMES = {
    "codeq.critical": {
        "CodeqDLQGrowing": (300, "> 0", "warning"),
        "CodeqDLQCritical": (600, "> 100", "critical"),
        "CodeqQueueBacklogHigh": (600, "> 1000", "warning"),
        "CodeqTaskCompletionSlow": (600, "> 60", "warning"),
        "CodeqHighFailureRate": (300, "> 0.1", "warning"),
        "CodeqLeaseExpirySpiking": (300, "> 1", "warning"),
        "CodeqNoTasksClaimed": (600, "> 0", "critical"),
        "CodeqWebhookFailureRate": (300, "> 0.2", "warning"),
        "CodeqRateLimitSustained": (600, "> 0.5", "warning"),
        "CodeqTargetDown": (120, "== 0", "critical"),
    },
    "chargehand": {
        "ChargehandStoreDown": (60, "== 0", "critical"),
        "ChargehandChoreDown": (600, "== 0", "warning"),
        "ChargehandServerErrors": (300, "> 0.05", "warning"),
        "ChargehandWebhooksOverdue": (300, "> 600", "warning"),
        "ChargehandBreakerOpen": (600, "> 0", "warning"),
        "ChargehandWorkWaitsBesideIdleWorkers": (300, "> 300", "warning"),
    },
    "chargehand.inference": {
        "ChargehandTargetAwayWhileJobsWait": (600, "== 0", "warning"),
        "ChargehandModelJobsFail": (600, "> 0.1", "warning"),
        "ChargehandModelsThrash": (300, "> 0.05", "warning"),
    },
    "chargehand.provisioning": {
        "ChargehandProvisioningFails": (300, "> 0.2", "warning"),
        "ChargehandBmcErrors": (600, "> 0.2", "warning"),
        "ChargehandStatusWebhooksRefused": (600, "> 0.01", "critical"),
    },
}
MAX_TICKS = 100  # 50 minutes


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as opened:
        yield opened


# the file ---------------------------------------------------------------------------------------------------------------


def test_the_rules_have_the_expected_name_duration_threshold_and_severity() -> None:
    found: dict[str, dict[str, tuple[float, str, str]]] = {}
    for rule in load_rules():
        found.setdefault(rule.group, {})[rule.alert] = (rule.for_seconds, threshold(rule), rule.labels["severity"])
    assert found == NAMES


def threshold(rule: Rule) -> str:
    node = rule.expr
    while isinstance(node, Binary) and node.sign in ("and", "unless"):
        node = node.left
    assert isinstance(node, Binary)
    assert isinstance(node.right, Number)
    return f"{node.sign} {node.right.value:g}"


def test_every_rule_describes_the_problem_and_what_to_do() -> None:
    for rule in load_rules():
        assert rule.annotations.keys() == {"summary", "description", "action"}, rule.alert
        assert all(text[-1] in ".?)" or name == "summary" for name, text in rule.annotations.items()), rule.alert


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("    rules:", "    rule:"),
        ("for: 5m", "for: soon"),
        ("severity: warning", "severity: 3"),
        ("        expr: max by", "        query: max by"),
        ("max by (command) (codeq_dlq_depth) > 0", "max by (command (codeq_dlq_depth) > 0"),
        ("rate(", "irate("),
    ],
)
def test_a_rules_file_with_a_mistake_is_refused(text: str, instead: str) -> None:
    good = RULES.read_text()
    assert text in good
    with pytest.raises(ValueError):
        read_rules(good.replace(text, instead))


@on_sqlite
async def test_every_route_and_setting_that_a_rule_names_exists(store_url: str, tmp_path: Path) -> None:
    text = re.sub(r"\{\{ \$labels\.(\w+) \}\}", r"\1", RULES.read_text())
    async with serving(store_url, {"provisioning.enabled": True, "server.data_dir": str(tmp_path)}) as server:
        paths = {(route.method, re.sub(r"[{}]|:path", "", route.path)) for route in server.routes()}
        named = set(re.findall(r"(GET|PUT|POST) (/[\w/]+)", text))
        assert len(named) > 5
        assert named - paths == set()
        settings = re.findall(
            r"\b(webhooks|tasks|inference|provisioning)\.(\w+)", text.replace("scope_per", "producer_per")
        )
        assert settings
        assert [name for section, name in settings if not hasattr(getattr(server.config, section), name)] == []
        pages = re.findall(r"docs/[\w/-]+\.md", text)
        assert len(pages) > 2
        assert [page for page in pages if not (RULES.parents[2] / page).is_file()] == []


# firing -----------------------------------------------------------------------------------------------------------------


RENDER = {"command": "Render"}


async def a_dead_letter(world: Watched) -> None:
    await world.create(maxAttempts=1)
    await world.bury(await world.claim())


async def many_dead_letters(world: Watched) -> None:
    await world.create_many(101, maxAttempts=1)
    for task_id in await world.claim_many(101):
        await world.bury(task_id)


async def many_tasks(world: Watched) -> None:
    await world.create_many(1001)


async def a_slow_task(world: Watched, _n: int) -> None:
    await world.create()
    world.clock.advance(90)
    await world.complete(await world.claim())


async def one_in_five_fails(world: Watched, n: int) -> None:
    await world.create_many(5)
    failed, *good = await world.claim_many(5)
    await world.fail(failed)
    for task_id in good:
        await world.complete(task_id)


async def forty_for_workers_that_die(world: Watched) -> None:
    await world.create_many(40, maxAttempts=1000)


async def forty_leases_lapse(world: Watched, _n: int) -> None:
    await world.claim_many(40, leaseSeconds=1)
    world.clock.advance(2)
    await world.server.engine.lapse_all()
    await until(lambda: _all_ready(world))


async def _all_ready(world: Watched) -> bool:
    """The server's own sweep may run at the same time as ours."""
    return [count.ready for count in await world.server.store.count_queues() if count.queue.kind == "task"] == [40]


async def workers_come_and_go(world: Watched, n: int) -> None:
    await world.create()
    if n < 5:
        await world.complete(await world.claim())


async def webhooks_reach_nobody(world: Watched) -> None:
    world.receiver.otherwise = answer(500)
    await world.subscribe("render")


async def a_task_with_a_webhook(world: Watched, n: int) -> None:
    await world.create(webhook=world.receiver.url("/producer"))
    await until(lambda: len(world.receiver.at("/worker")) > n)
    await world.complete(await world.claim())
    await world.api.deliveries("state=dead", n + 1)


async def twenty_creates(world: Watched, _n: int) -> None:
    asked = {"command": "Render", "payload": {}}
    answers = [await world.api.post(f"{BASE}/tasks", asked) for _ in range(20)]
    assert answers[-1].status == 429


async def the_server_ends(world: Watched) -> None:
    await world.tick()
    await world.server.http.drain()


async def the_database_goes(world: Watched) -> None:
    await world.create()
    url = world.server.config.store_url
    name = re.search(r"/(test_\w+)\?", url)
    assert name is not None
    connection = await asyncpg.connect(url.replace(name[1], "postgres"))
    try:
        await connection.execute(f"ALTER DATABASE {name[1]} ALLOW_CONNECTIONS false")
        await connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", name[1])
    finally:
        await connection.close()


@asynccontextmanager
async def files_without_a_folder(folder: Path) -> AsyncIterator[dict[str, Any]]:
    (folder / "a file").touch()
    yield {"inference.artifacts_dir": str(folder / "a file")}


async def somebody_asks(world: Watched, _n: int) -> None:
    assert (await world.api.get("/engine/jobs")).status == 503


async def a_receiver_that_hangs(world: Watched) -> None:
    world.receiver.otherwise = hang
    await world.create(webhook=world.receiver.url())
    await world.complete(await world.claim())


async def a_receiver_that_fails(world: Watched) -> None:
    world.receiver.otherwise = answer(500)
    await world.create(webhook=world.receiver.url())
    await world.complete(await world.claim())
    await until(lambda: world.receiver.hooks)


async def an_idle_worker(world: Watched) -> None:
    await world.create()
    body = {"commands": ["Another"], "waitSeconds": 30}
    world.beside.append(asyncio.create_task(world.api.post(f"{BASE}/tasks/claim", body)))
    await until(lambda: world.server.engine.wakeups.waiting)


STORIES = {
    "CodeqDLQGrowing": Story([RENDER], a_dead_letter),
    "CodeqDLQCritical": Story([RENDER], many_dead_letters),
    "CodeqQueueBacklogHigh": Story([RENDER], many_tasks),
    "CodeqTaskCompletionSlow": Story([RENDER], step=a_slow_task),
    "CodeqHighFailureRate": Story([RENDER], step=one_in_five_fails),
    "CodeqLeaseExpirySpiking": Story(
        [RENDER], forty_for_workers_that_die, forty_leases_lapse, {"tasks.backoff_base_seconds": 0}
    ),
    "CodeqNoTasksClaimed": Story([RENDER], step=workers_come_and_go),
    "CodeqWebhookFailureRate": Story(
        [RENDER | {"kind": "queue_ready"}, RENDER | {"kind": "task_result"}],
        webhooks_reach_nobody,
        a_task_with_a_webhook,
        {"tasks.result_webhook_max_attempts": 1},
    ),
    "CodeqRateLimitSustained": Story(
        [{"scope": "producer", "operation": "create_task"}],
        step=twenty_creates,
        settings={"tasks.producer_per_minute": 1, "tasks.producer_burst": 1},
    ),
    "CodeqTargetDown": Story([HERE], the_server_ends),
    "ChargehandStoreDown": Story([HERE], the_database_goes),
    "ChargehandChoreDown": Story([HERE | {"chore": "orphaned files"}], beside=files_without_a_folder),
    "ChargehandServerErrors": Story([{"instance": HERE["instance"]}], the_database_goes, somebody_asks),
    "ChargehandWebhooksOverdue": Story([{}], a_receiver_that_hangs, settings={"tasks.result_webhook_max_attempts": 99}),
    "ChargehandBreakerOpen": Story(
        [{"instance": HERE["instance"]}],
        a_receiver_that_fails,
        settings={"webhooks.breaker_failures": 1, "webhooks.breaker_seconds": 600},
    ),
    "ChargehandWorkWaitsBesideIdleWorkers": Story([{"queue": "task/default/render"}], an_idle_worker),
    **OF_DOORS,
}
NEED_POSTGRES = {"ChargehandStoreDown", "ChargehandServerErrors"}


def test_every_rule_has_a_story() -> None:
    assert [rule.alert for rule in load_rules()] == list(STORIES)


@pytest.mark.parametrize(
    ("name", "store_url"),
    [(name, "postgres" if name in NEED_POSTGRES else "sqlite") for name in STORIES],
    indirect=["store_url"],
    ids=list(STORIES),
)
async def test_every_rule_can_fire(name: str, store_url: str, receiver: Receiver, tmp_path: Path) -> None:
    story = STORIES[name]
    [rule] = [rule for rule in load_rules() if rule.alert == name]
    async with story.beside(tmp_path) as found, watching(store_url, receiver, story.settings | found) as world:
        if story.begin is not None:
            await story.begin(world)
        pending_at = None
        for n in range(MAX_TICKS):
            if story.step is not None:
                await story.step(world, n)
            fired = [alert for alert in await world.tick() if alert.name == name]
            if name not in world.prometheus.pending:
                pending_at = None
            elif pending_at is None:
                pending_at = world.clock.now
            if len(fired) == len(story.labels):
                break
        assert sorted(sorted(alert.labels.items()) for alert in fired) == sorted(
            sorted(x.items()) for x in story.labels
        )
        assert pending_at is not None
        assert world.clock.now - pending_at >= (rule.for_seconds - SCRAPE_SECONDS) * 1_000_000
        for alert in fired:
            said = " ".join(alert.text(part) for part in rule.annotations)
            assert "{{" not in said
            assert all(value in said for key, value in alert.labels.items() if key not in ("job", "operation"))


@on_sqlite
async def test_a_store_whose_writer_died_is_down(store_url: str, receiver: Receiver) -> None:
    async with watching(store_url, receiver) as world:
        await world.tick()
        file = store_url.removeprefix("sqlite:///")
        [writer] = [child for child in psutil.Process().children() if file in " ".join(child.cmdline())]
        writer.kill()
        await until(lambda: writer.status() == psutil.STATUS_ZOMBIE)
        assert [await _fires(world, "ChargehandStoreDown") for _ in range(3)] == [False, False, True]


# at rest ----------------------------------------------------------------------------------------------------------------


async def an_ordinary_minute(world: Watched, n: int) -> None:
    told = len(world.receiver.at("/worker"))
    await world.create_many(3, webhook=world.receiver.url())
    await world.create("Index", delaySeconds=20)
    await world.create("Mail", priority=9)
    await world.complete(await world.claim("Mail"))
    await until(lambda: len(world.receiver.at("/worker")) > told)
    first, *others = await world.claim_many(3)
    if n % 10 == 0:
        await world.on(first, "nack", delaySeconds=0)
        first = await world.claim()
    world.clock.advance(25)
    for task_id in [*others, await world.claim("Index")]:
        await world.complete(task_id)
    await (world.fail if n % 5 == 4 else world.complete)(first)
    # By their ids: the clock jumps half a minute, after which a delivery's lease may have lapsed, and it is sent again.
    await until(lambda: len({hook.id for hook in world.receiver.at("/hook")}) == 3 * n + 3)


@on_sqlite
async def test_no_rule_fires_on_a_server_that_works_normally(store_url: str, receiver: Receiver) -> None:
    async with watching(store_url, receiver) as world:
        await world.subscribe("render", "index")
        await world.create_many(5, "Mail")  # lowest priority, so that some jobs are always ready
        for n in range(60):
            await an_ordinary_minute(world, n)
            fired = await world.tick()
            assert not fired, f"{fired[0].name}: {fired[0].text('description')}"
        assert world.prometheus.pending == set()


@on_sqlite
async def test_an_alert_ends_with_its_cause(store_url: str, receiver: Receiver) -> None:
    async with watching(store_url, receiver) as world:
        await a_dead_letter(world)
        await until(lambda: _fires(world, "CodeqDLQGrowing"))
        assert (await world.api.post(f"{BASE}/admin/dlq/purge", {"command": "*"})).good() == {"count": 1}
        assert await world.tick() == []
        assert world.prometheus.pending == set()


async def _fires(world: Watched, name: str) -> bool:
    return name in {alert.name for alert in await world.tick()}
