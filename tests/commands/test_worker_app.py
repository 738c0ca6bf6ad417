"""`chargehand worker` for the tasks that an app declares: found by a name, run as a process."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chargehand.client import AsyncClient
from chargehand.client.declared.discovery import NotFoundHere, find
from chargehand.testing import ChargehandServer
from tests.commands.running import Told, chargehand, ended, running

pytestmark = pytest.mark.xdist_group("processes")

SECONDS = 60.0
APP = """
from chargehand.client import App

app = App()
"""
TASKS = """
from shop.app import app

@app.task(queue="shop-{name}", max_running=5)
def {name}(text: str) -> str:
    return "{name} " + text
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package with an app, and tasks in two modules that the app does not import."""
    for folder in ("shop", "shop/orders"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").touch()
    (tmp_path / "shop/app.py").write_text(APP)
    (tmp_path / "shop/tasks.py").write_text(TASKS.format(name="greet"))
    (tmp_path / "shop/orders/tasks.py").write_text(TASKS.format(name="pack"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name == "shop" or name.startswith("shop.")]:
        del sys.modules[name]


@pytest.mark.parametrize("target", ["shop", "shop.app", "shop.app:app", "shop.orders.tasks:app"])
def test_an_app_is_found_by_its_package_or_its_name_with_the_tasks_around_it(shop: Path, target: str) -> None:
    found = find(target)
    assert found is sys.modules["shop.app"].app
    assert "shop-pack" in found.tasks
    assert target == "shop.orders.tasks:app" or "shop-greet" in found.tasks


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("ship", "there is no module 'ship' here: Python looks in "),
        ("shop.cellar:app", "there is no module 'shop.cellar' here"),
        ("shop.app:apps", "shop.app:apps is no App"),
        ("shop.orders", "shop.orders has several: say which of shop.orders.tasks:app, shop.orders.tasks:other"),
        ("shop.plain", "shop.plain has no App"),
    ],
)
def test_what_is_not_found_is_named(shop: Path, target: str, says: str) -> None:
    with (shop / "shop/orders/tasks.py").open("a") as more:
        more.write("\nfrom chargehand.client import App\nother = App()\n")
    (shop / "shop/plain.py").touch()
    with pytest.raises(NotFoundHere) as missing:
        find(target)
    assert str(missing.value).startswith(says)


@pytest.mark.parametrize("where", ["shop/orders/tasks.py", "shop/orders/__init__.py"])
def test_a_module_that_cannot_be_imported_is_not_passed_over(shop: Path, where: str) -> None:
    (shop / where).write_text("import shop_of_nobody")
    with pytest.raises(ModuleNotFoundError, match="shop_of_nobody"):
        find("shop")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChargehandServer]:
    with ChargehandServer(tmp_path_factory.mktemp("chargehand")) as opened:
        yield opened


async def test_the_command_works_on_the_tasks_of_an_app(server: ChargehandServer, shop: Path) -> None:
    async with AsyncClient(server.url) as client:
        tasks = {name: await client.tasks.create(f"shop-{name}", {"text": "it"}) for name in ("greet", "pack")}
        async with running(server.url, "worker", "--concurrency", "2", "shop") as process:
            for name, task in tasks.items():
                assert (await client.tasks.wait(task.id, timeout=SECONDS))[1].result == {"value": f"{name} it"}
            process.terminate()
            told = await ended(process)
    assert told.code == 0
    assert f"Working on shop-greet, shop-pack for {server.url}" in told.err.replace(
        "shop-pack, shop-greet", "shop-greet, shop-pack"
    )
    assert "completed in" in told.err


async def test_the_tasks_of_an_app_run_in_processes_of_their_own(server: ChargehandServer, shop: Path) -> None:
    pid = "import os\n" + TASKS.format(name="pid").replace('"pid " + text', "str(os.getpid())")
    (shop / "shop/tasks.py").write_text(pid)
    async with AsyncClient(server.url) as client:
        made = [await client.tasks.create("shop-pid", {"text": "it"}) for _ in range(4)]
        words = ("worker", "--processes", "2", "--max-tasks-per-child", "1", "--queue", "shop-pid")
        more = ("--max-memory-per-child", "1000000000", "--soft-timeout", "60", "shop")
        async with running(server.url, *words, *more) as process:
            results = [(await client.tasks.wait(task.id, timeout=SECONDS))[1].result["value"] for task in made]
            process.terminate()
            await ended(process)
    assert len({*results, str(process.pid)}) == 5


async def test_the_url_of_the_command_line_and_one_queue_alone(server: ChargehandServer, shop: Path) -> None:
    (shop / "shop/app.py").write_text(APP.replace("App()", 'App("http://127.0.0.1:9")'))
    async with AsyncClient(server.url) as client:
        task = await client.tasks.create("shop-greet", {"text": "it"})
        words = ("worker", "--url", server.url, "--queue", "shop-greet", "--json", "shop.app:app")
        async with running("http://127.0.0.1:9", *words) as process:
            assert (await client.tasks.wait(task.id, timeout=SECONDS))[1].status == "COMPLETED"
            process.terminate()
            told = await ended(process)
    assert [(each["command"], each["outcome"]) for each in told.objects] == [("shop-greet", "completed")]


async def test_a_worker_that_would_have_to_overwrite_is_refused_in_a_line(server: ChargehandServer, shop: Path) -> None:
    (shop / "shop/tasks.py").write_text(TASKS.format(name="label"))
    async with AsyncClient(server.url) as client:
        async with running(server.url, "worker", "--queue", "shop-label", "shop") as process:
            task = await client.tasks.create("shop-label", {"text": "it"})
            await client.tasks.wait(task.id, timeout=SECONDS)
            process.terminate()
            await ended(process)
        (shop / "shop/tasks.py").write_text(TASKS.format(name="label").replace("max_running=5", "max_running=6"))
        told = await chargehand(server.url, "worker", "--queue", "shop-label", "shop")
        assert _line(told).startswith(
            "chargehand: the server refuses this worker: 409 the topic shop-label is not as declared"
        )
        async with running(server.url, "worker", "--overwrite", "--queue", "shop-label", "shop") as process:
            task = await client.tasks.create("shop-label", {"text": "it"})
            await client.tasks.wait(task.id, timeout=SECONDS)
            process.terminate()
            await ended(process)
        assert (await client.topics.get("shop-label")).policy.max_consumers == 6


async def test_what_cannot_be_meant_is_refused_in_a_line(shop: Path) -> None:
    for words, says in [
        (("shop.app:nothing",), "shop.app:nothing is no App"),
        (("--queue", "cellar", "shop"), "no task is declared for 'cellar'; there are shop-greet, shop-pack"),
        (("shop", "--concurrency", "4"), "an app comes last, after its options"),
        (("--command", "a", "--overwrite", "cat"), "--soft-timeout are for an app, --command is for a program"),
        (("--command", "a", "--soft-timeout", "1", "cat"), "--soft-timeout are for an app, --command is for a program"),
    ]:
        told = await chargehand("http://127.0.0.1:9", "worker", *words)
        assert says in _line(told).replace("shop-pack, shop-greet", "shop-greet, shop-pack")


def _line(told: Told) -> str:
    assert told.code == 2, told
    return told.err.splitlines()[-1]  # after the introduction
