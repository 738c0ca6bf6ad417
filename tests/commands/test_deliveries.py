"""`chargehand deliveries`: list, show, replay, pause and resume."""

import json
from typing import Any

from tests.api.serving import on_sqlite, serving, talking, until
from tests.commands.running import invoked
from tests.webhooks.receiver import answer, receiving

GIVES_UP = {"webhooks.max_attempts": 1}


@on_sqlite
async def test_dead_deliveries_are_listed_shown_and_sent_again(store_url: str) -> None:
    async with serving(store_url, GIVES_UP) as server, talking(server) as api, receiving() as receiver:
        url, hook = server.url, receiver.url("/broken")
        assert "submit --webhook URL" in (await invoked(url, "deliveries", "list")).good().out
        receiver.otherwise = answer(500, body=b"out of\npaper \033[31m")
        jobs = [await api.submit(webhook={"url": f"{hook}?secret=1"}) for _ in range(3)]
        dead = await api.deliveries("state=dead", 3)

        listed = (await invoked(url, "deliveries", "list", "--state", "dead", "--limit", "2")).good()
        assert [line.split()[2] for line in listed.out.splitlines()[1:]] == ["dead", "dead"]
        assert "secret=1" not in listed.out
        assert f"--before {dead[1]['id']}" in listed.err
        of_job = ("deliveries", "list", "--job", jobs[0], "--json")
        [one] = (await invoked(url, *of_job)).good().json["deliveries"]
        assert one["job_id"] == jobs[0]
        of_endpoint = ("deliveries", "list", "--endpoint", hook, "--before", dead[0]["id"], "--json")
        assert len((await invoked(url, *of_endpoint)).good().json["deliveries"]) == 2

        shown = (await invoked(url, "deliveries", "show", one["id"])).good().out
        assert f"about     job {jobs[0]}, event 1" in shown
        assert "  | out of\n  | paper  [31m\n" in shown
        assert f"to send it once more: chargehand deliveries replay {one['id']}" in shown
        assert (await invoked(url, "deliveries", "show", one["id"], "--json")).good().json["attempts"][0][
            "status"
        ] == 500

        receiver.otherwise = answer(200)
        told = (await invoked(url, "deliveries", "replay", one["id"])).good()
        assert told.out == "1 delivery will be sent once more.\n"
        await api.deliveries("state=delivered", 1)
        told = (await invoked(url, "deliveries", "replay", "--endpoint", hook, "--json")).good()
        assert told.json == {"replayed": 2}
        await api.deliveries("state=delivered", 3)
        assert (await invoked(url, "deliveries", "replay", "--endpoint", hook)).good().out == "No delivery was dead.\n"


@on_sqlite
async def test_a_refused_id_does_not_stop_the_others(store_url: str) -> None:
    async with serving(store_url, GIVES_UP) as server, talking(server) as api, receiving() as receiver:
        receiver.otherwise = answer(500)
        for _ in range(2):
            await api.submit(webhook={"url": receiver.url()})
        first, second = [each["id"] for each in await api.deliveries("state=dead", 2)]
        receiver.otherwise = answer(200)
        (await invoked(server.url, "deliveries", "replay", first, "123")).good(2)
        assert await api.deliveries("state=dead", 2), "all ids are looked at before anything is done"
        unknown = "01M7HYHB0CBN67BKJPQJM86ZZZ"
        told = (await invoked(server.url, "deliveries", "replay", first, unknown, second, "--json")).good(1)
        assert told.json == {"replayed": 2}
        assert json.loads(told.err)["delivery_id"] == unknown
        await api.deliveries("state=delivered", 2)


@on_sqlite
async def test_an_endpoint_is_paused_and_resumed_by_its_url_or_id(store_url: str) -> None:
    async with serving(store_url) as server, talking(server) as api, receiving() as receiver:
        url, hook = server.url, receiver.url("/hook")
        await api.submit(webhook={"url": hook})
        await until(lambda: receiver.hooks)
        assert (await invoked(url, "deliveries", "pause", hook)).good().out == f"{hook} is paused.\n"
        [place] = (await invoked(url, "deliveries", "endpoints", "--json")).good().json["endpoints"]
        assert place["state"] == "paused"
        assert "paused by" in (await invoked(url, "deliveries", "endpoints")).good().out
        resumed: dict[str, Any] = (await invoked(url, "deliveries", "resume", place["id"], "--json")).good().json
        assert resumed["state"] == "active"


@on_sqlite
async def test_an_unknown_id_names_the_command_that_lists(store_url: str) -> None:
    async with serving(store_url) as server:
        unknown = (await invoked(server.url, "deliveries", "show", "01M7HYHB0CBN67BKJPQJM86ZZZ")).good(2)
        assert unknown.err.endswith("to list what exists: chargehand deliveries list\n")
        nowhere = (await invoked(server.url, "deliveries", "pause", "http://nowhere/")).good(2)
        assert nowhere.err.endswith("to list the endpoints: chargehand deliveries endpoints\n")
        both = (await invoked(server.url, "deliveries", "replay")).good(2)
        assert "give either ids" in both.err
