"""Flows over HTTP."""

import asyncio
from typing import Any

import pytest

from chargehand.app import Server
from chargehand.engine.queue import Queue
from tests.api.serving import Api, until
from tests.webhooks.receiver import Receiver


def a_step(name: str, *after: Any, payload: Any = None, **more: Any) -> dict[str, Any]:
    return {"name": name, "door": "engine", "body": {"queue": name, "payload": payload}, "after": list(after), **more}


async def submit(api: Api, *steps: dict[str, Any], **more: Any) -> str:
    answer = await api.post("/engine/flows", {"steps": list(steps), **more})
    return str(answer.good(202)["job_id"])


async def flow_of(api: Api, flow_id: str, query: str = "") -> Any:
    return (await api.get(f"/engine/flows/{flow_id}{query}")).good()


async def states(api: Api, flow_id: str) -> dict[str, str]:
    return {step["name"]: step["state"] for step in (await flow_of(api, flow_id))["steps"]}


async def succeed(api: Api, queue: str, result: Any = None) -> dict[str, Any]:
    job = await api.claim(queues=[queue])
    (await api.move(job, "succeed", result=result)).good()
    return job


async def test_steps_run_one_after_the_other(api: Api) -> None:
    flow_id = await submit(api, a_step("a"), a_step("b", "a"))
    assert await states(api, flow_id) == {"a": "queued", "b": "waiting"}
    await succeed(api, "a")
    assert await states(api, flow_id) == {"a": "succeeded", "b": "queued"}
    await succeed(api, "b")
    flow = (await api.get(f"/engine/flows/{flow_id}/wait?seconds=5")).good()
    assert (flow["state"], flow["counts"]) == ("succeeded", {"succeeded": 2})


async def test_a_step_takes_over_the_results_of_those_before_it(api: Api) -> None:
    payload = {
        "whole": "{{a}}",
        "text": "at {{a.host.name}}!",
        "item": "{{a.ports.1}}",
        "big": 12345678901234567890123,
        "{{a}}": 1,
    }
    await submit(api, a_step("a"), a_step("b", "a"), a_step("c", "b", payload=payload))
    await succeed(api, "a", {"host": {"name": 'x "1"'}, "ports": [80, 443]})
    await succeed(api, "b")
    job = await api.claim(queues=["c"])
    assert job["payload"] == {
        "whole": {"host": {"name": 'x "1"'}, "ports": [80, 443]},
        "text": 'at x "1"!',
        "item": 443,
        "big": 12345678901234567890123,
        "{{a}}": 1,
    }


async def test_a_step_that_takes_over_what_no_result_has_fails_with_a_sentence_that_names_it(api: Api) -> None:
    flow_id = await submit(api, a_step("a"), a_step("b", "a", payload="{{a.host.port}}"))
    await succeed(api, "a", {"host": {}})
    assert (await api.post("/engine/claims", {"queues": ["b"]})).status == 204
    step = (await flow_of(api, flow_id))["steps"][1]
    assert (step["state"], step["error"]) == ("failed", "{{a.host.port}}: the result of step 'a' has no host.port")


async def test_of_steps_that_did_not_succeed_or_still_run_there_is_null_and_no_text(api: Api) -> None:
    payload = {
        "ran": "{{a.x}}",
        "runs": "{{b.x}}",
        "whole": "{{b}}",
        "failed": "{{c.x}}",
        "text": "<{{a.x}}{{b.x}}{{c.x}}>",
    }
    await submit(api, a_step("a"), a_step("b"), a_step("c"), a_step("d", "a", "b", "c", payload=payload, need="any"))
    job = await api.claim(queues=["c"])
    (await api.move(job, "fail", error="no")).good()
    await succeed(api, "a", {"x": 1})
    taken = {"ran": 1, "runs": None, "whole": None, "failed": None, "text": "<1>"}
    assert (await api.claim(queues=["d"]))["payload"] == taken


@pytest.mark.parametrize(
    ("steps", "field", "says"),
    [
        ([a_step("a", "b")], "steps[0].after[0]", "there is no step 'b'"),
        ([a_step("a"), a_step("a")], "steps[1].name", "steps[0] already"),
        ([a_step("a"), a_step("b", "a", "a")], "steps[1].after[1]", "a second time"),
        ([a_step("a", "a")], "steps[0].after[0]", "closes a circle: a after a"),
        ([a_step("a", "c"), a_step("b", "a"), a_step("c", "b")], "steps[1].after[0]", "closes a circle: a after c after b after a"),
        ([a_step("a") | {"body": {}}], "steps[0].body.queue", "is missing"),
        ([a_step("a") | {"door": "tasks", "body": {"command": "x"}}], "steps[0].body.payload", "is required"),
        ([a_step("a") | {"door": "inference", "body": {"model": "m", "prompt": ""}}], "steps[0].body.prompt", "must not be empty"),
        ([a_step("a"), a_step("b", payload="{{a.x}}")], "steps[1].body", "does not come after"),
        ([a_step("a"), a_step("b", "a") | {"body": {"queue": "{{a}}", "payload": 1}}], "steps[1].body", "{{a}} is not allowed here"),
        ([a_step("a b")], "steps[0].name", "regex"),
        ([], "steps", "length"),
    ],
)  # fmt: skip
async def test_a_flow_that_cannot_work_is_refused_with_the_field(
    api: Api, steps: list[Any], field: str, says: str
) -> None:
    problem = (await api.post("/engine/flows", {"steps": steps})).problem(400, "request.invalid_field", field)
    assert says in problem["detail"]
    assert (await api.get("/engine/jobs")).good()["jobs"] == []


async def test_a_flow_crosses_doors(api: Api) -> None:
    task = {"name": "measure", "door": "tasks", "body": {"command": "measure", "payload": {"room": "attic"}}}
    report = a_step("report", "measure", payload={"text": "{{measure.degrees}} degrees"})
    flow_id = await submit(api, task, report)
    claimed = (await api.post("/v1/codeq/tasks/claim", {"commands": ["measure"]})).good()
    result = {"status": "COMPLETED", "result": {"degrees": 21}}
    (await api.post(f"/v1/codeq/tasks/{claimed['id']}/result", result)).good()
    assert (await api.claim(queues=["report"]))["payload"] == {"text": "21 degrees"}
    assert [step["door"] for step in (await flow_of(api, flow_id))["steps"]] == ["tasks", "engine"]


async def test_a_failed_step_hands_on_its_error(api: Api) -> None:
    mend = a_step("mend", {"step": "a", "on": "failed"}, payload="{{a.state}}: {{a.error}}")
    await submit(api, a_step("a"), mend)
    job = await api.claim(queues=["a"])
    (await api.move(job, "fail", error="no disk")).good()
    assert (await api.claim(queues=["mend"]))["payload"] == "failed: no disk"


async def test_a_waiting_step_shows_what_it_waits_for_and_no_due_time(api: Api) -> None:
    flow_id = await submit(api, a_step("a"), a_step("b", "a"))
    step = (await flow_of(api, flow_id))["steps"][1]
    job = await api.job(step["job_id"])
    assert (job["state"], job["waiting_for"], job["run_at"]) == ("queued", "steps", None)
    assert (job["flow"], job["step"]) == (flow_id, 1)
    assert (step["state"], step["waiting_for"]) == ("waiting", "steps")


async def test_a_step_says_what_holds_its_queue_once_no_other_step_does(api: Api) -> None:
    flow_id = await submit(api, a_step("a"), a_step("b", "a"))
    for queue in ("a", "b"):
        (await api.call("PUT", f"/engine/queues/job/{queue}", {"paused": True})).good()
    assert await waits_for(api, flow_id) == ["queue paused", "steps"]
    (await api.call("PUT", "/engine/queues/job/a", {"paused": False})).good()
    await succeed(api, "a")
    assert await waits_for(api, flow_id) == [None, "queue paused"]
    (await api.call("PUT", "/engine/queues/job/b", {"max_running": 1})).good()
    await api.submit(queue="b", priority=9)
    await api.claim(queues=["b"])
    assert await waits_for(api, flow_id) == [None, "limit: 1 of this queue at once"]


async def waits_for(api: Api, flow_id: str) -> list[str | None]:
    """What the flow says of its steps, which is what is said of the jobs."""
    steps = (await flow_of(api, flow_id))["steps"]
    assert [(await api.job(step["job_id"]))["waiting_for"] for step in steps] == [step["waiting_for"] for step in steps]
    return [step["waiting_for"] for step in steps]


async def test_a_step_for_a_model_waits_for_steps_then_for_its_queue_then_for_a_target(
    api: Api, server: Server
) -> None:
    ask = {"name": "ask", "door": "inference", "body": {"model": "m", "prompt": "Why?"}, "after": ["a"]}
    flow_id = await submit(api, a_step("a"), ask)
    job_id = (await flow_of(api, flow_id))["steps"][1]["job_id"]

    async def why() -> tuple[str, str]:
        job, listed = (await api.get(f"/jobs/{job_id}")).good(), (await api.get("/jobs")).good()["jobs"]
        assert [job["waiting_for"]] == [each["waiting_for"] for each in listed if each["id"] == job_id]
        return job["waiting_for"], job["waiting"]

    (await api.post("/jobs", {"model": "m", "prompt": "Who?"})).good(202)
    assert await server.engine.claim((Queue("inference", "default", "m"),), "a target", 60)
    (await api.call("PUT", "/engine/queues/inference/m", {"max_running": 1})).good()
    assert await why() == ("steps", "waits for other steps of its flow")
    await succeed(api, "a")
    assert await why() == ("queue", "limit: 1 of this queue at once")
    (await api.call("PUT", "/engine/queues/inference/m", {"paused": True})).good()
    assert await why() == ("queue", "an operator has paused its queue")
    (await api.call("PUT", "/engine/queues/inference/m", {"paused": False})).good()

    async def waits_for_a_target() -> bool:  # once the scheduler has seen that the queue goes on
        return (await why())[0] == "target"

    await until(waits_for_a_target)


async def test_steps_come_in_pages(api: Api) -> None:
    flow_id = await submit(api, *[a_step(f"s{number}") for number in range(5)])
    first = await flow_of(api, flow_id, "?limit=3")
    assert ([step["number"] for step in first["steps"]], first["next"]) == ([0, 1, 2], 3)
    second = await flow_of(api, flow_id, "?limit=3&first=3")
    assert ([step["number"] for step in second["steps"]], second["next"]) == ([3, 4], None)


async def test_who_follows_a_flow_is_woken_by_the_end_of_each_step(api: Api, server: Server) -> None:
    flow_id = await submit(api, a_step("a"), a_step("b", "a"), a_step("c", "b"))
    news = asyncio.Event()
    stop = server.engine.watching(flow_id, news)
    for queue in ("a", "b"):
        await succeed(api, queue)
        assert news.is_set(), "it need not wait until the log is read again anyway"
        news.clear()
    stop()


async def test_a_flow_is_cancelled_with_its_steps(api: Api) -> None:
    flow_id = await submit(api, a_step("a"), a_step("b", "a"), a_step("c"))
    job = await api.claim(queues=["a"])
    assert (await api.post(f"/engine/flows/{flow_id}/cancel")).good()["state"] == "cancelled"
    assert await states(api, flow_id) == {"a": "cancelled", "b": "cancelled", "c": "cancelled"}
    assert (await api.move(job, "succeed", result=1)).status == 409
    assert (await api.post(f"/engine/flows/{flow_id}/cancel")).good()["state"] == "cancelled"


async def test_a_flow_is_tried_again_from_a_step(api: Api) -> None:
    flow_id = await submit(api, a_step("a"), a_step("b", "a"), a_step("c", "b", payload="{{a}} {{b}}"))
    await succeed(api, "a", 1)
    await succeed(api, "b", 1)
    job = await api.claim(queues=["c"])
    (await api.move(job, "fail", error="no")).good()
    (await api.post(f"/engine/jobs/{job['id']}/requeue")).problem(409, "conflict")
    (await api.post(f"/engine/flows/{flow_id}/retry", {"from": "x"})).problem(400, "request.invalid_field", "from")
    assert (await api.post(f"/engine/flows/{flow_id}/retry", {"from": "b"})).good()["state"] == "queued"
    await succeed(api, "b", 2)
    assert (await api.claim(queues=["c"]))["payload"] == "1 2"
    (await api.post(f"/engine/flows/{flow_id}/retry", {})).problem(409, "conflict")


async def test_a_flow_with_an_idempotency_key_is_submitted_once(api: Api) -> None:
    body, key = {"steps": [a_step("a")]}, {"Idempotency-Key": "k"}
    answers = [await api.post("/engine/flows", body, key) for _ in range(2)]
    assert answers[0].good(202) == answers[1].good(202)
    other = await api.post("/engine/flows", {"steps": [a_step("b")]}, key)
    other.problem(422, "idempotency.mismatch")
    assert len((await api.get("/engine/flows")).good()["jobs"]) == 1


async def test_a_flow_tells_its_end_to_its_webhook(api: Api, receiver: Receiver) -> None:
    flow_id = await submit(api, a_step("a"), webhook={"url": receiver.url(), "on": ["succeeded"]})
    await succeed(api, "a")
    [told] = await api.deliveries("state=delivered")
    assert (told["job_id"], told["kind"], told["topic"]) == (flow_id, "flow", "succeeded")
