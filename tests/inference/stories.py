"""What happened to jobs: the outcomes of their attempts, their state webhooks, and the requests that the target got."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from chargehand.app import Server
from tests.api.serving import until
from tests.inference.calling import Caller, before_targets, ran
from tests.inference.conformance import Model, OllamaTarget, Seen
from tests.webhooks.receiver import Receiver

Json = dict[str, Any]

MODELS = {
    "a": Model(),
    "b": Model(),
    "c": Model(),
    "big:cloud": Model(),
    "thinker": Model(capabilities=("completion", "thinking")),
    "embedder": Model(capabilities=("embedding",)),
}
RUNS = ("/api/chat", "/api/generate", "/api/embed")


class Place(Caller):
    """A caller, the server it calls, and the first target behind that."""

    server: Server
    target: OllamaTarget

    async def embedding(self, **fields: Any) -> str:
        """Submit a job that is neither a chat nor a completion."""
        body = {"model": "embedder", "input": "words", **fields}
        answer = await self.post("/api/embed", body, {"Prefer": "respond-async"})
        return str(answer.good(202)["job_id"])

    async def done(self, job_id: str, seconds: float = 10) -> Json:
        job = await self.ended(job_id, seconds)
        assert job["state"] == "done", job["error"]
        return job

    async def failed(self, job_id: str, seconds: float = 10) -> Json:
        job = await self.ended(job_id, seconds)
        assert job["state"] == "failed"
        return job

    async def run(self, **fields: Any) -> Json:
        return await self.done(await self.ask(**fields))

    async def parked(self, job_id: str, seconds: float = 10) -> Json:
        """Wait until the job was parked and return it."""

        async def found() -> Json | None:
            job = await self.seen(job_id)
            return job if "park" in outcomes(job) else None

        job: Json = await until(found, seconds)
        return job

    async def artifact(self, job: Json, name: str) -> bytes:
        [kept] = [each for each in job["artifacts"] if each["name"] == name]
        answer = await self.get(kept["url"])
        assert (answer.status, answer.headers["content-type"]) == (200, kept["media_type"])
        assert len(answer.body) == kept["size"]
        return answer.body

    async def events(self, job_id: str) -> list[Json]:
        found: list[Json] = (await self.get(f"/jobs/{job_id}/events")).good()["events"]
        return found

    async def cancel(self, job_id: str) -> None:
        (await self.call("DELETE", f"/jobs/{job_id}")).good()


@asynccontextmanager
async def a_place(folder: Path, *targets: OllamaTarget, **settings: Any) -> AsyncIterator[Place]:
    store_url = f"sqlite:///{folder}/chargehand.db"
    async with before_targets(store_url, folder, *targets, **settings) as (server, caller):
        place = Place(caller.url, caller.session)
        place.server, place.target = server, targets[0]
        yield place


@asynccontextmanager
async def some_targets(count: int = 1, **fields: Any) -> AsyncIterator[list[OllamaTarget]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(OllamaTarget(MODELS, **fields)) for _ in range(count)]


def target_tables(*targets: OllamaTarget, **fields: Any) -> list[Json]:
    """Return a value for `inference.targets`, with these fields for each target."""
    names = ("laptop", "desktop", "attic")
    return [{"name": name, "url": target.url, **fields} for name, target in zip(names, targets, strict=False)]


# how it went ----------------------------------------------------------------------------------------------------------


def outcomes(job: Json) -> list[str]:
    """Return how the attempts of a job ended."""
    return [each["outcome"] for each in job["attempts"]]


def failures(job: Json) -> list[str]:
    """Return the kind of failure of each attempt; "" for none."""
    return [(each["evidence"] or {}).get("failure", "") for each in job["attempts"]]


def said(job: Json) -> str:
    return str(job["result"]["message"]["content"])


def told(receiver: Receiver, job_id: str) -> list[Json]:
    """Return the state webhooks of a job, in the order of their events."""
    bodies = [msgspec.json.decode(hook.body) for hook in receiver.hooks]
    return sorted((body for body in bodies if body["job_id"] == job_id), key=lambda body: int(body["sequence"]))


def story(receiver: Receiver, job_id: str) -> list[str]:
    """Return the states of the webhooks, and assert that each begins with the state before it."""
    bodies = told(receiver, job_id)
    assert [body["previous_state"] for body in bodies] == [None, *(body["state"] for body in bodies)][: len(bodies)]
    return [body["state"] for body in bodies]


async def whole_story(receiver: Receiver, job_id: str) -> list[str]:
    """Return the states once the webhook of the last one has arrived."""
    await until(lambda: {"done", "failed"} & {body["state"] for body in told(receiver, job_id)})
    return story(receiver, job_id)


def loads(target: OllamaTarget) -> list[Seen]:
    """Return the orders to load a model, without those to unload one."""
    running = {id(seen) for path in RUNS for seen in ran(target, path)}
    asked = [seen for path in RUNS for seen in target.at(path) if id(seen) not in running]
    return [seen for seen in asked if seen.json.get("keep_alive") != 0]


def unloads(target: OllamaTarget) -> list[Seen]:
    running = {id(seen) for path in RUNS for seen in ran(target, path)}
    asked = [seen for path in RUNS for seen in target.at(path) if id(seen) not in running]
    return [seen for seen in asked if seen.json.get("keep_alive") == 0]
