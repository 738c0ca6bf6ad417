"""The end of a task: results, alone and in batches, their artifacts, and waiting for a result."""

import asyncio
import base64
import hashlib
import json
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.api.serving import on_sqlite, until
from tests.tasks.calling import NOBODY, Shop, calling, refused


@pytest.fixture
async def shop(store_url: str) -> AsyncIterator[Shop]:
    async with calling(store_url) as opened:
        yield opened


async def held(shop: Shop, command: str = "render") -> dict[str, Any]:
    task = await shop.producer.create(command)
    await shop.worker.claim(command)
    return task


async def outcome(shop: Shop, task: dict[str, Any], query: str = "") -> dict[str, Any]:
    answer: dict[str, Any] = (await shop.producer.get(f"/tasks/{task['id']}/result{query}")).good()
    assert answer.keys() == {"task", "result"}
    return answer


async def watched(shop: Shop, task: dict[str, Any]) -> None:
    """Wait until a caller waits for the task."""
    await until(lambda: task["id"] in shop.server.engine._watchers)


# one ----------------------------------------------------------------------------------------------------------------------


async def test_a_completed_task_has_its_result_byte_for_byte(shop: Shop) -> None:
    task = await held(shop)
    body = '{"status":"COMPLETED","result": {"big": 12345678901234567890, "a": 0.10} }'
    answer = await shop.worker.send(f"/tasks/{task['id']}/result", body)
    assert answer.status == 200
    assert b'{"big": 12345678901234567890, "a": 0.10}' in answer.body
    record = answer.json
    assert record.keys() == {"taskId", "status", "completedAt", "result"}
    assert (record["taskId"], record["status"]) == (task["id"], "COMPLETED")
    read = await shop.worker.get(f"/tasks/{task['id']}/result")
    assert b'{"big": 12345678901234567890, "a": 0.10}' in read.body
    assert read.json["result"] == record
    done = read.json["task"]
    assert (done["status"], done["lastKnownLocation"], done["resultKey"]) == ("COMPLETED", "NONE", "codeq:results")
    assert {"workerId", "leaseUntil", "lease", "error"}.isdisjoint(done)
    assert done == await shop.producer.task(task)


async def test_a_failed_task_is_not_retried_and_is_no_dead_letter(shop: Shop) -> None:
    task = await held(shop)
    answer = await shop.worker.on(task, "result", status="FAILED", error=" no disk ", result={"partial": 1})
    record = answer.good()
    assert (record["status"], record["error"], record["result"]) == ("FAILED", "no disk", {"partial": 1})
    assert (await outcome(shop, task))["result"] == record
    done = await shop.producer.task(task)
    assert (done["status"], done["lastKnownLocation"], done["error"]) == ("FAILED", "NONE", "no disk")
    await shop.worker.claims_nothing()
    assert (await shop.boss.get("/admin/dlq")).good()["tasks"] == []


@on_sqlite
async def test_an_error_beside_a_completed_result_is_left_out(shop: Shop) -> None:
    record = await shop.worker.complete(await held(shop), error="ignored")
    assert "error" not in record


@on_sqlite
async def test_an_invalid_result_is_refused(shop: Shop) -> None:
    task = await held(shop)
    wrong: list[tuple[dict[str, Any], str, str]] = [
        ({}, "invalid request body", "status"),
        ({"status": ""}, "invalid request body", "status"),
        ({"status": "DONE"}, "invalid status", "status"),
        ({"status": "completed", "result": {}}, "invalid status", "status"),
        ({"status": "COMPLETED"}, "result required when status=COMPLETED", "result"),
        ({"status": "COMPLETED", "result": None}, "result required when status=COMPLETED", "result"),
        ({"status": "COMPLETED", "result": [1]}, "invalid request body", "result"),
        ({"status": "COMPLETED", "result": "x"}, "invalid request body", "result"),
        ({"status": "FAILED"}, "error required when status=FAILED", "error"),
        ({"status": "FAILED", "error": "  "}, "error required when status=FAILED", "error"),
        ({"status": "FAILED", "error": None, "result": {}}, "error required when status=FAILED", "error"),
    ]
    for body, error, field in wrong:
        refused(await shop.worker.on(task, "result", **body), 400, error, field)
        answer = (await shop.worker.post("/tasks/batch/results", {"results": [{"taskId": task["id"], **body}]})).good()
        assert answer["results"][0]["error"] == error
    assert (await shop.producer.task(task))["status"] == "IN_PROGRESS"


BODIES: list[dict[str, Any]] = [
    {"status": "COMPLETED", "result": {"n": 1}, "artifacts": [{"name": "a.txt", "contentBase64": "aGVsbG8="}]},
    {"status": "COMPLETED", "result": {"n": 1}},
    {"status": "FAILED", "error": "no \x00 disk " + "x" * 11_000, "result": {"step": 3}},
]


@pytest.mark.parametrize("body", BODIES, ids=["with a file", "completed", "failed"])
@pytest.mark.parametrize("with_lease", [False, True])
async def test_a_worker_whose_answer_was_lost_may_send_its_result_again(
    shop: Shop, body: dict[str, Any], with_lease: bool
) -> None:
    task = await shop.producer.create()
    claimed = await shop.worker.claim()
    mine = {**body, "lease": claimed["lease"]} if with_lease else body
    first = (await shop.worker.on(task, "result", **mine)).good()
    before = await shop.producer.task(task)
    again = (await shop.worker.on(task, "result", **mine)).good()
    assert again == (await outcome(shop, task))["result"]
    if "error" not in first:  # whose end is cut when it is kept
        assert again == first
    item = {"taskId": task["id"], **mine}
    assert (await shop.worker.post("/tasks/batch/results", {"results": [item]})).good()["results"][0]["result"] == again
    assert await shop.producer.task(task) == before


async def test_another_outcome_of_a_finished_task_is_refused_with_how_it_ended(shop: Shop) -> None:
    task = await shop.producer.create()
    lease = (await shop.worker.claim())["lease"]
    await shop.worker.complete(task, result={"n": 1})
    for other in ({"status": "FAILED", "error": "no"}, {"status": "FAILED", "error": "no", "lease": lease}):
        said = refused(await shop.worker.on(task, "result", **other), 409, "not-in-progress")
        assert "COMPLETED" in said["detail"]
    mine = {"status": "COMPLETED", "result": {"n": 1}}
    refused(await shop.worker.on(task, "result", **mine, lease=lease + 1), 409, "not-in-progress")
    refused(await shop.worker_2.on(task, "result", **mine), 409, "not-in-progress")
    other_tenant = refused(await shop.other_worker.on(task, "result", **mine, lease=lease), 404, "task not found")
    assert task["id"] not in str(other_tenant)


async def test_a_failure_that_the_worker_did_not_report_is_not_its_result(shop: Shop) -> None:
    task = await shop.producer.create()
    lease = (await shop.worker.claim())["lease"]
    (await shop.producer.on(task, "cancel")).good()
    for failed in ({"status": "FAILED", "error": "CANCELLED"}, {"status": "FAILED", "error": "cancelled"}):
        refused(await shop.worker.on(task, "result", **failed, lease=lease), 409, "not-in-progress")


@on_sqlite
async def test_a_second_result_changes_nothing(shop: Shop) -> None:
    task = await held(shop)
    first = await shop.worker.complete(task, result={"n": 1})
    refused(await shop.worker.on(task, "result", status="COMPLETED", result={"n": 2}), 409, "not-in-progress")
    assert (await outcome(shop, task))["result"] == first


async def test_of_concurrent_results_only_one_counts(shop: Shop) -> None:
    task = await held(shop)
    posts = [shop.worker.on(task, "result", status="COMPLETED", result={"n": n}) for n in range(8)]
    answers = await asyncio.gather(*posts)
    [good] = [answer.json for answer in answers if answer.status == 200]
    assert [answer.status for answer in answers].count(409) == 7
    assert (await outcome(shop, task))["result"] == good


# many ---------------------------------------------------------------------------------------------------------------------


@on_sqlite
async def test_a_batch_of_results_answers_in_order_each_for_itself(shop: Shop) -> None:
    good, bad, strange, file = [await held(shop, name) for name in ("a", "b", "c", "d")]
    (await shop.worker.on(strange, "abandon")).good()
    await shop.worker_2.claim("c")
    artifacts = [{"name": "a.txt", "contentBase64": "aGk"}]
    body = {
        "results": [
            {"taskId": bad["id"], "status": "FAILED", "error": "x"},
            {"taskId": NOBODY, "status": "FAILED", "error": "x"},
            {"taskId": good["id"], "status": "COMPLETED", "result": {"n": 1}},
            {"taskId": strange["id"], "status": "FAILED", "error": "x"},
            {"taskId": good["id"], "status": "DONE"},
            {"status": "FAILED", "error": "x"},
            7,
            {"taskId": file["id"], "status": "COMPLETED", "result": {}, "artifacts": artifacts},
        ]
    }
    results = (await shop.worker.post("/tasks/batch/results", body)).good()["results"]
    assert [each["taskId"] for each in results] == [
        *(bad["id"], NOBODY, good["id"], strange["id"], good["id"], "", "", file["id"])
    ]
    assert [each.get("error") for each in results] == [
        *(None, "task not found", None, "lease-lost", "invalid status", "task not found", "invalid request body", None)
    ]
    assert results[4]["detail"] == "status: must be COMPLETED or FAILED"
    for task, each in ((bad, results[0]), (good, results[2]), (file, results[7])):
        assert each.keys() == {"taskId", "result"}
        assert (await outcome(shop, task))["result"] == each["result"]
    assert results[7]["result"]["artifacts"][0]["name"] == "a.txt"


@on_sqlite
async def test_a_batch_of_results_has_1_to_100(shop: Shop) -> None:
    bodies: list[dict[str, Any]] = [{}, {"results": []}]
    for body in bodies:
        refused(await shop.worker.post("/tasks/batch/results", body), 400, "invalid body", "results")
    answer = await shop.worker.post("/tasks/batch/results", {"results": [{}] * 101})
    refused(answer, 400, "batch size exceeds maximum of 100")
    assert len((await shop.worker.post("/tasks/batch/results", {"results": [{}] * 100})).good()["results"]) == 100


# artifacts ----------------------------------------------------------------------------------------------------------------


async def test_artifacts_are_kept_and_fetched_again_byte_for_byte(shop: Shop) -> None:
    task = await held(shop)
    content = bytes(range(256)) * 10 + b"!"
    padded = base64.b64encode(content).decode()
    assert padded.endswith("=")
    record = await shop.worker.complete(
        task,
        artifacts=[
            {"name": "bare.bin", "contentBase64": padded.rstrip("=")},
            {"name": "a b ü.txt", "contentBase64": base64.b64encode(b"<hi>").decode(), "contentType": "text/plain"},
            {"name": "empty", "contentBase64": ""},
            {"name": "elsewhere", "url": "s3://bucket/key"},
            {"name": "neither"},
        ],
    )
    kept = {each["name"]: each["url"] for each in record["artifacts"]}
    assert [each["name"] for each in record["artifacts"]] == ["bare.bin", "a b ü.txt", "empty", "elsewhere"]
    assert kept["elsewhere"] == "s3://bucket/key"
    assert (await outcome(shop, task))["result"] == record
    for name, expected in (("bare.bin", content), ("a b ü.txt", b"<hi>"), ("empty", b"")):
        assert kept[name].startswith(shop.server.url)
        path = urlsplit(kept[name]).path.removeprefix("/v1/codeq")
        for caller in (shop.producer, shop.worker):
            fetched = await caller.get(path)
            assert (fetched.status, fetched.body) == (200, expected)
        refused(await shop.other_producer.get(path), 404, "not found")
        refused(await shop.nobody.get(path), 401, "missing Authorization header")
    typed = await shop.producer.get(urlsplit(kept["a b ü.txt"]).path.removeprefix("/v1/codeq"))
    assert typed.headers["content-type"].startswith("text/plain")
    refused(await shop.producer.get(f"/tasks/{task['id']}/artifacts/neither"), 404, "artifact not found")


@on_sqlite
@pytest.mark.parametrize("folder", ["files", "elsewhere"])
async def test_artifacts_of_a_removed_task_are_swept_even_if_the_inference_door_is_off(
    store_url: str, tmp_path: Path, folder: str
) -> None:
    settings = {
        "inference.enabled": False,
        "inference.artifacts_dir": "" if folder == "files" else str(tmp_path / folder),
        "server.data_dir": str(tmp_path),
        "retention.finished_seconds": 0.2,
        "retention.interval_seconds": 0.05,
    }
    async with calling(store_url, settings) as shop:
        task = await held(shop)
        await shop.worker.complete(task, artifacts=[{"name": "a.txt", "contentBase64": "aGk"}])
        blob = tmp_path / folder / hashlib.sha256(b"hi").hexdigest()
        two_hours_ago = time.time() - 7200
        os.utime(blob, (two_hours_ago, two_hours_ago))
        await until(lambda: not blob.exists())
        assert (await shop.producer.get(f"/tasks/{task['id']}")).status == 404


@on_sqlite
async def test_invalid_artifacts_are_refused_and_the_task_goes_on(shop: Shop) -> None:
    task = await held(shop)
    for artifact, says in [
        ({"name": "a", "contentBase64": "%%%"}, "artifact 'a': contentBase64 is not base64"),
        ({"name": "a", "contentBase64": "abcde"}, "artifact 'a': contentBase64 is not base64"),
        ({"name": "", "contentBase64": "eA=="}, "artifact '': "),
        ({"name": "../etc/passwd", "contentBase64": "eA=="}, "artifact '../etc/passwd': "),
        ({"name": "..", "contentBase64": "eA=="}, "artifact '..': "),
        ({"name": "a\nb", "contentBase64": "eA=="}, "artifact 'a\\nb': "),
        ({"name": "x" * 1000, "contentBase64": "eA=="}, f"artifact '{'x' * 100}': "),
        ({"name": "a", "url": "x" * 5000}, "invalid request body"),
    ]:
        answer = await shop.worker.on(task, "result", status="COMPLETED", result={}, artifacts=[artifact])
        assert (answer.status, answer.json["error"][: len(says)]) == (400, says)
        assert (await shop.producer.task(task))["status"] == "IN_PROGRESS"
    answer = await shop.worker.on(task, "result", status="COMPLETED", result={}, artifacts=[{"name": "a"}] * 101)
    refused(answer, 400, "invalid request body", "artifacts")
    await shop.worker.complete(task)


@on_sqlite
async def test_artifact_urls_begin_with_the_public_url_when_there_is_one(store_url: str) -> None:
    async with calling(store_url, {"tasks.public_url": "https://tasks.example/base/"}) as shop:
        task = await held(shop)
        record = await shop.worker.complete(task, artifacts=[{"name": "a/b"}, {"name": "a#?", "contentBase64": "eA"}])
        [only] = record["artifacts"]
        assert only["url"] == f"https://tasks.example/base/v1/codeq/tasks/{task['id']}/artifacts/a%23%3F"
        assert (await shop.producer.get(f"/tasks/{task['id']}/artifacts/a%23%3F")).body == b"x"


# waiting ------------------------------------------------------------------------------------------------------------------


async def test_a_caller_that_waits_for_a_result_gets_it_when_it_comes(shop: Shop) -> None:
    for end in ("result", "nack", "cancel"):
        task = await shop.producer.create(maxAttempts=1)
        await shop.worker.claim()
        waiting = asyncio.create_task(outcome(shop, task, "?waitSeconds=20"))
        await watched(shop, task)
        began = time.monotonic()
        if end == "cancel":
            (await shop.producer.on(task, end)).good()
        elif end == "nack":
            (await shop.worker.on(task, end)).good()
        else:
            await shop.worker.complete(task)
        said = await waiting
        assert time.monotonic() - began < 2
        assert said["task"]["status"] == said["result"]["status"] == ("COMPLETED" if end == "result" else "FAILED")


@on_sqlite
async def test_a_result_that_does_not_come_is_not_found(shop: Shop) -> None:
    task = await shop.producer.create()
    path = f"/tasks/{task['id']}/result"
    for query in ("", "?waitSeconds=0", "?waitSeconds=-1", "?waitSeconds=soon", "?waitSeconds=", "?waitSeconds=1.5"):
        began = time.monotonic()
        said = refused(await shop.producer.get(path + query), 404, "result not found")
        assert "PENDING" in said["detail"]
        assert time.monotonic() - began < 1
    began = time.monotonic()
    refused(await shop.producer.get(f"{path}?waitSeconds=1"), 404, "result not found")
    assert time.monotonic() - began > 0.9
    began = time.monotonic()
    refused(await shop.producer.get(f"/tasks/{NOBODY}/result?waitSeconds=30"), 404, "task not found")
    assert time.monotonic() - began < 1


async def test_a_large_payload_and_a_large_result_come_back_as_they_were_sent(shop: Shop) -> None:
    payload = json.dumps({"text": '"\\\n\t😀' * 40_000, "list": [1.5, None, "ü"] * 1000}, indent=1, ensure_ascii=False)
    made = await shop.producer.send("/tasks", b'{"command":"render","payload":%s}' % payload.encode())
    assert made.good(202)["payload"] == payload
    task = (await shop.worker.post("/tasks/claim", {"commands": ["render"]})).good()
    assert task["payload"] == payload
    done = b'{"status":"COMPLETED","result":%s}' % payload.encode()
    given = (await shop.worker.send(f"/tasks/{task['id']}/result", done)).good()
    assert given["result"] == json.loads(payload)
    assert (await outcome(shop, task))["result"] == given
