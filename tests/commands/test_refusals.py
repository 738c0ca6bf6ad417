"""A refusal is one line with the fix, or JSON with --json, and exit code 2."""

import json

import pytest

from chargehand.http.credentials import hash_token
from tests.api.serving import on_sqlite, serving
from tests.commands.running import chargehand, invoked

NOWHERE = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("submit", "hello"), "give one of --model M for a chat, --command C for a task"),
        (("submit", "-m", "a", "-c", "b", "x"), "--model and --command: give only one of them"),
        (("submit", "-c", "b", "hello"), "the payload is not JSON"),
        (("submit", "-c", "b", "hello"), "text needs quotes: '\"hello\"'"),
        (("submit", "-c", "b", "{oops"), "the payload is not JSON"),
        (("submit", "-c", "b", "@/no/such.json"), "/no/such.json cannot be read: No such file or directory"),
        (("submit", "-m", "a", " "), "the prompt is empty"),
        (("submit", "-m", "a", "x", "--option", "oops"), "write it as NAME=VALUE"),
        (("submit", "-c", "a", "1", "--system", "x"), "--system is for chats only: give --model"),
        (("submit", "--server", "SN-1", "/dev/null"), "/dev/null is not JSON"),
        (("submit", "--server", "SN-1", "/dev/null", "--delay", "3"), "a recipe starts when its server is free"),
        (("submit", "--server", "no serial", __file__), "is not JSON"),
        (("jobs", "list", "--state", "done"), "must be one of queued, running, succeeded, failed, cancelled"),
        (("jobs", "list", "--kind", "chat"), "must be one of inference, task, provision, batch, flow, job"),
        (("flows", "submit", "/nowhere.json"), "/nowhere.json cannot be read: No such file or directory"),
        (("jobs", "list", "--queue", "q"), "needs the kind of the queue too"),
        (("deliveries", "list", "--state", "lost"), "must be one of pending, delivered, dead"),
        (
            ("jobs", "list"),
            "cannot be reached (connection refused); start a server with `chargehand serve`, or give the URL of yours",
        ),
        (("jobs", "list", "--url", "nonsense"), "'nonsense' is not a URL"),
        (("bench",), "start a server with `chargehand serve`"),
    ],
)
async def test_a_refusal_is_one_line_that_says_what_to_do(words: tuple[str, ...], told: str) -> None:
    refused = (await invoked(NOWHERE, *words)).good(2)
    assert refused.out == ""
    assert refused.err.startswith("chargehand: ")
    assert refused.err.count("\n") == 1
    assert told in refused.err
    machine = await invoked(NOWHERE, *words, "--json")
    assert machine.good(2).err.startswith('{"error":"')


@on_sqlite
async def test_a_caller_without_the_scope_is_told_which_one_to_get(store_url: str) -> None:
    reader = {"name": "reader", "hash": hash_token("ch_reader"), "scopes": ["jobs:read"]}
    async with serving(store_url, {"auth.tokens": [reader]}) as server:
        nobody = (await invoked(server.url, "jobs", "list")).good(2)
        assert "set CHARGEHAND_TOKEN to one (`chargehand token` makes one)" in nobody.err
        wrong = (await invoked(server.url, "jobs", "list", "--token", "ch_other")).good(2)
        assert "the server does not know this token" in wrong.err
        assert "ch_other" not in wrong.err
        environ = {"CHARGEHAND_TOKEN": "ch_reader"}
        (await invoked(server.url, "jobs", "list", environ=environ)).good()
        few = (await invoked(server.url, "submit", "--queue", "q", "1", environ=environ)).good(2)
        assert "this needs `jobs:write`; your token needs that scope" in few.err


@on_sqlite
async def test_with_json_a_refusal_has_the_stable_code(store_url: str) -> None:
    async with serving(store_url) as server:
        unknown = (await invoked(server.url, "jobs", "show", "01M7HYHB0CBN67BKJPQJM86ZZZ", "--json")).good(2)
        assert json.loads(unknown.err)["error"] == "not_found"
        words = ("submit", "--queue", "q", "--idempotency-key", "same", "--json")
        (await invoked(server.url, *words, "1")).good()
        other = (await invoked(server.url, *words, "2")).good(2)
        assert json.loads(other.err)["error"] == "idempotency.mismatch"


@pytest.mark.xdist_group("processes")
async def test_a_usage_error_is_one_line_too() -> None:
    for words, told in (
        (("submit", "--modl", "x"), "no such option: --modl"),
        (("jbs",), "did you mean 'jobs'? see `chargehand --help`"),
    ):
        refused = (await chargehand(NOWHERE, *words)).good(2)
        assert refused.err.startswith("chargehand: ")
        assert refused.err.count("\n") == 1
        assert told in refused.err.replace("Did", "did")
    program = (await chargehand(NOWHERE, "jobs", "list", "--limit", "0", "--json")).good(2)
    assert program.err.startswith('{"error":"usage","message":"invalid value for')
