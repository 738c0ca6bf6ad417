"""What a server must do however it was started: let the right callers in, show the console, carry a job from one end to the other."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.deploy.places import ROOT
from tests.e2e.server import eventually

STATIC = ROOT / "src/chargehand/console/static"


@asynccontextmanager
async def asking(url: str, said: Callable[[], str], within: float = 60) -> AsyncIterator[aiohttp.ClientSession]:
    """Yield a client of the server once it is ready. `said` returns its log, for the case that it never is."""
    async with aiohttp.ClientSession(url) as http:
        await eventually(
            lambda: answers(http, "/readyz", "", 200), within, lambda: f"{url} is ready:\n{said()[-3000:]}"
        )
        yield http


async def answers(http: aiohttp.ClientSession, path: str, token: str, status: int) -> bool:
    try:
        async with http.get(path, headers=bearer(token)) as response:
            return response.status == status
    except aiohttp.ClientError:
        return False


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


def read_token(secrets: Path, who: str) -> str:
    return (secrets / f"{who}-token").read_text().strip()


async def accepts_only_its_tokens(http: aiohttp.ClientSession, secrets: Path) -> None:
    operator, metrics = read_token(secrets, "operator"), read_token(secrets, "metrics")
    assert await answers(http, "/engine/jobs", "", 401)
    assert await answers(http, "/engine/jobs", operator, 200)
    assert await answers(http, "/engine/jobs", metrics, 403)
    assert await answers(http, "/metrics", metrics, 200)


async def shows_the_console(http: aiohttp.ClientSession) -> None:
    """Every file of it, byte for byte."""
    for page, name in {"/console": "index.html", "/docs": "docs.html"}.items():
        assert await _body(http, page) == (STATIC / name).read_bytes()
    files = [path for path in STATIC.rglob("*") if path.suffix in (".js", ".css", ".svg")]
    assert len(files) > 10
    for path in files:
        assert await _body(http, f"/console/static/{path.relative_to(STATIC)}") == path.read_bytes()


async def carries_a_job(
    http: aiohttp.ClientSession, token: str = "", through: aiohttp.ClientSession | None = None
) -> str:
    """Submit a job and do it, the second half with another node if one is given. Return its id."""
    other = through or http
    job: str = (await _post(http, "/engine/jobs", token, {"queue": "deploy", "payload": {"n": 1}}))["job_id"]
    [claimed] = (await _post(other, "/engine/claims", token, {"queues": ["deploy"], "wait_seconds": 10}))["jobs"]
    assert claimed["id"] == job
    await _post(other, f"/engine/jobs/{job}/succeed", token, {"lease": claimed["lease"], "result": {"n": 2}})
    assert await has_done(http, job, token)
    return job


async def has_done(http: aiohttp.ClientSession, job: str, token: str = "") -> bool:
    try:
        async with http.get(f"/engine/jobs/{job}", headers=bearer(token)) as response:
            found = await response.json()
    except aiohttp.ClientError:
        return False
    return (found["state"], found["result"]) == ("succeeded", {"n": 2})


async def tells_a_story(http: aiohttp.ClientSession, token: str = "") -> None:
    """With the tiny model that the package contains."""
    asked = {"model": "tiny-stories", "prompt": "Once upon a time", "stream": False, "options": {"num_predict": 20}}
    async with http.post("/api/generate", json=asked, headers=bearer(token)) as response:
        told = await response.json()
    assert response.status == 200, told
    assert told["eval_count"] > 5, told
    assert told["response"].strip(), told


async def _body(http: aiohttp.ClientSession, path: str) -> bytes:
    async with http.get(path) as response:
        assert response.status == 200, path
        return await response.read()


async def _post(http: aiohttp.ClientSession, path: str, token: str, body: Any) -> Any:
    async with http.post(path, json=body, headers=bearer(token)) as response:
        said = await response.json()
    assert response.status < 300, said
    return said
