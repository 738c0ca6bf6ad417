"""A flow across three doors: a machine is installed behind a BMC that we did not write, a worker runs a task on it, a model reports."""

from pathlib import Path
from typing import Any

from msgspec.json import decode

from tests.api.serving import until
from tests.inference.calling import MODELS
from tests.inference.conformance import OllamaTarget
from tests.provisioning.lab import RECIPE, lab
from tests.provisioning.sushy import FIRST, emulator
from tests.provisioning.test_job_on_sushy import SERIAL, a_machine, register

STEPS: list[dict[str, Any]] = [
    {"name": "install", "door": "provisioning", "body": {"server_serial": SERIAL, "recipe": RECIPE}},
    {
        "name": "burn-in",
        "door": "tasks",
        "after": ["install"],
        "body": {
            "command": "burn-in",
            "payload": {"host": "{{install.hostname}}", "serial": "{{install.serial}}", "all": "{{install}}"},
        },
    },
    {
        "name": "report",
        "door": "inference",
        "after": ["burn-in"],
        "body": {
            "model": "a",
            "prompt": "{{install.serial}} runs {{install.image}} and burnt in at {{burn-in.degrees}} degrees. Why?",
        },
    },
]


async def test_a_machine_is_installed_then_tried_then_reported_on(store_url: str, tmp_path: Path) -> None:
    async with OllamaTarget(MODELS) as target:
        settings = {"inference.targets": [{"name": "desk", "url": target.url}], "inference.probe_seconds": 0.25}
        async with (
            lab(store_url, tmp_path, settings=settings) as room,
            a_machine(room.guest) as (machine, url),
        ):
            with emulator(tmp_path, notify_url=url) as bmc:
                await register(room, bmc.url, FIRST.uuid)
                flow_id = (await room.api.post("/engine/flows", {"steps": STEPS})).good(202)["job_id"]

                async def tried() -> Any:
                    answer = await room.api.post("/v1/codeq/tasks/claim", {"commands": ["burn-in"], "waitSeconds": 1})
                    return answer.json if answer.status == 200 else None

                task = await until(tried)
                assert machine.boots[0] == "Cd"
                installed = {"serial": SERIAL, "hostname": "n1", "image": RECIPE["oci_url"], "outcome": "succeeded"}
                given = decode(task["payload"])
                assert (given["host"], given["serial"]) == ("n1", SERIAL)
                assert given["all"] | installed == given["all"]
                assert given["all"]["uuid"].lower() == FIRST.uuid
                end = {"status": "COMPLETED", "result": {"degrees": 71}}
                (await room.api.post(f"/v1/codeq/tasks/{task['id']}/result", end)).good()
                flow = (await room.api.get(f"/engine/flows/{flow_id}/wait?seconds=30")).good()
                assert (flow["state"], flow["counts"]) == ("succeeded", {"succeeded": 3})
        asked = [decode(seen.body) for seen in target.seen if seen.path == "/api/generate"][-1]
        assert asked["prompt"] == f"{SERIAL} runs {RECIPE['oci_url']} and burnt in at 71 degrees. Why?"


async def test_a_machine_waits_for_steps_then_for_its_queue(store_url: str, tmp_path: Path) -> None:
    first = {"name": "first", "door": "engine", "body": {"queue": "q", "payload": None}}
    async with lab(store_url, tmp_path) as room:
        await room.register(SERIAL)
        queue = f"/engine/queues/provision/{SERIAL}"
        (await room.api.call("PUT", queue, {"paused": True})).good()
        flow = {"steps": [first, STEPS[0] | {"after": ["first"]}]}
        flow_id = (await room.api.post("/engine/flows", flow)).good(202)["job_id"]
        job_id = (await room.api.get(f"/engine/flows/{flow_id}")).good()["steps"][1]["job_id"]

        async def why() -> Any:
            [listed] = (await room.api.get("/api/v1/jobs")).good()["jobs"]
            assert listed["waiting_for"] == (await room.job(job_id))["waiting_for"]
            return listed["waiting_for"]

        assert await why() == "steps"
        (await room.api.move(await room.api.claim(), "succeed", result=1)).good()
        assert await why() == "queue paused"
