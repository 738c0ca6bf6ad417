"""codeQ's gRPC streams, spoken with grpcio's own client: Hello, tasks created, handed out, finished, nothing lost when a side goes."""

import asyncio
import math
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import psutil  # type: ignore[import-untyped]
import pytest

from chargehand.config import load_config
from chargehand.config.loading import require_safe
from chargehand.doors.tasks.grpc.conversation import Answer, Conversation
from chargehand.doors.tasks.grpc.messages import EVENT, Wire, producer_wire, worker_wire
from chargehand.errors import ConfigError, Unauthenticated
from chargehand.http.auth import Caller
from tests.api.serving import on_sqlite, until
from tests.tasks.calling import Shop, calling

SOON = 30.0
ON = {"tasks.grpc_listen": "127.0.0.1:0"}
PRODUCER, WORKER = producer_wire(), worker_wire()


class Stream:
    """One stream, as a client has it."""

    def __init__(self, channel: grpc.aio.Channel, wire: Wire) -> None:
        self.wire = wire
        call = channel.stream_stream(
            f"/{wire.service}/Stream",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=wire.Answer.FromString,
        )
        self.call: Any = call()

    async def say(self, **message: Any) -> None:
        await self.call.write(self.wire.Asked(**message))

    async def hear(self, kind: str) -> Any:
        async with asyncio.timeout(SOON):
            answer = await self.call.read()
        assert answer is not grpc.aio.EOF, "the stream has ended"
        assert answer.WhichOneof(EVENT) == kind, answer
        return getattr(answer, kind)

    async def ends(self) -> tuple[grpc.StatusCode, str]:
        async with asyncio.timeout(SOON):
            return await self.call.code(), await self.call.details()

    async def ready(self, *commands: str, count: int = 0) -> None:
        await self.say(ready=self.wire.Ready(commands=commands, count=count))

    async def finish(self, task_id: str, status: str = "COMPLETED", result: bytes = b'{"ok":true}', **more: str) -> Any:
        await self.say(result=self.wire.Result(task_id=task_id, status=status, result_json=result, **more))
        return await self.hear("result_ack")


@asynccontextmanager
async def connected(shop: Shop) -> AsyncIterator[grpc.aio.Channel]:
    assert shop.server.tasks is not None
    assert shop.server.tasks.grpc is not None
    async with grpc.aio.insecure_channel(shop.server.tasks.grpc.address) as channel:
        yield channel


async def working(channel: grpc.aio.Channel, token: str = "worker", worker_id: str = "") -> Stream:
    stream = Stream(channel, WORKER)
    await stream.say(hello=WORKER.Hello(token=token, worker_id=worker_id))
    await stream.hear("hello_ack")
    return stream


async def producing(channel: grpc.aio.Channel, token: str = "producer") -> Stream:
    stream = Stream(channel, PRODUCER)
    await stream.say(hello=PRODUCER.Hello(token=token))
    await stream.hear("hello_ack")
    return stream


async def test_a_task_goes_from_a_producers_stream_to_a_workers_and_its_result_comes_back(store_url: str) -> None:
    async with calling(store_url, ON) as shop, connected(shop) as channel:
        producer, worker = await producing(channel), await working(channel)
        await worker.ready("render")
        task = PRODUCER.CreateTask(seq=7, command="render", payload=b'{"n": 1.50}', priority=3, max_attempts=2)
        await producer.say(create=task)
        made = await producer.hear("create_ack")
        assert (made.seq, made.ok, made.error_message) == (7, True, "")
        given = (await worker.hear("task")).task
        assert (given.id, given.command, given.payload) == (made.task_id, "render", b'{"n": 1.50}')
        assert (given.priority, given.max_attempts, given.attempts, given.tenant_id) == (3, 2, 1, "acme")
        assert (given.status, given.worker_id) == ("IN_PROGRESS", "worker")
        assert given.created_at.ToDatetime() <= given.updated_at.ToDatetime()
        ack = await worker.finish(given.id, result=b'{"sum": 2}')
        assert (ack.task_id, ack.ok) == (given.id, True)
        result = (await shop.producer.get(f"/tasks/{made.task_id}/result")).good()
        assert result["result"]["result"] == {"sum": 2}


@on_sqlite
async def test_a_batch_is_acknowledged_in_its_order_and_an_invalid_task_does_not_stop_the_others(
    store_url: str,
) -> None:
    async with calling(store_url, ON) as shop, connected(shop) as channel:
        producer = await producing(channel)
        good = PRODUCER.CreateTask(seq=1, command="render", payload=b"1")
        bad = {
            "command is required": PRODUCER.CreateTask(seq=2, payload=b"1"),
            "delaySeconds must be >= 0": PRODUCER.CreateTask(seq=3, command="a", payload=b"1", delay_seconds=-1),
            "payload: must be JSON": PRODUCER.CreateTask(seq=4, command="a", payload=b'{"a"'),
            "payload: is required": PRODUCER.CreateTask(seq=5, command="a"),
            "payload: is not valid UTF-8": PRODUCER.CreateTask(seq=6, command="a", payload=b'"\xff"'),
            "no *": PRODUCER.CreateTask(seq=7, command="*", payload=b"1"),
        }
        await producer.say(create_batch=PRODUCER.CreateTaskBatch(tasks=[good, *bad.values(), good]))
        first, *refused, last = (await producer.hear("create_ack_batch")).acks
        assert first.ok
        assert last.ok
        assert [ack.seq for ack in refused] == [2, 3, 4, 5, 6, 7]
        for why, ack in zip(bad, refused, strict=True):
            assert not ack.ok
            assert why in ack.error_message


@on_sqlite
async def test_a_repeated_idempotency_key_is_acknowledged_with_the_task_it_made(store_url: str) -> None:
    async with calling(store_url, ON) as shop, connected(shop) as channel:
        producer = await producing(channel)
        task = PRODUCER.CreateTask(seq=1, command="render", payload=b"1", idempotency_key="once")
        task.run_at.FromJsonString("2100-01-02T03:04:05.000006Z")
        task.trace_parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        ids = set()
        for _ in range(2):
            await producer.say(create=task)
            ids.add((await producer.hear("create_ack")).task_id)
        [task_id] = ids
        kept = await shop.producer.task({"id": task_id})
        assert kept["runAt"].startswith("2100-01-02T03:04:05")
        assert kept["traceParent"].split("-")[1] == "0af7651916cd43dd8448eb211c80319c"


async def test_many_are_claimed_at_once_and_finished_at_once(store_url: str) -> None:
    async with calling(store_url, ON) as shop, connected(shop) as channel:
        made = {(await shop.producer.create(payload=n))["id"] for n in range(5)}
        worker = await working(channel)
        await worker.ready("render", count=8)
        given = (await worker.hear("task_batch")).tasks
        assert {task.id for task in given} == made
        results = [
            WORKER.Result(task_id=given[0].id, status="FAILED", error="no paper"),
            WORKER.Result(task_id=given[1].id, status="COMPLETED", result_json=b"{}"),
            WORKER.Result(task_id=given[2].id, status="COMPLETED"),
            WORKER.Result(task_id=given[3].id, status="DONE", result_json=b"{}"),
            WORKER.Result(task_id="01HZZZZZZZZZZZZZZZZZZZZZZZ", status="COMPLETED", result_json=b"{}"),
        ]
        await worker.say(result_batch=WORKER.ResultBatch(results=results))
        acks = (await worker.hear("result_ack_batch")).acks
        assert [ack.ok for ack in acks] == [True, True, False, False, False]
        assert acks[2].error_message == "result required when status=COMPLETED"
        assert acks[3].error_message.startswith("invalid status")
        assert acks[4].error_message == "task not found"
        assert (await shop.producer.task({"id": given[0].id}))["error"] == "no paper"


@on_sqlite
async def test_a_stream_can_extend_abandon_and_nack_a_task(store_url: str) -> None:
    async with calling(store_url, ON | {"tasks.backoff_base_seconds": 0}) as shop, connected(shop) as channel:
        task_id = (await shop.producer.create(maxAttempts=2))["id"]
        worker = await working(channel)
        await worker.ready()
        assert (await worker.hear("task")).task.id == task_id
        await worker.say(heartbeat=WORKER.Heartbeat(task_id=task_id, extend_seconds=900))
        assert (await worker.hear("heartbeat_ack")).ok
        await worker.say(abandon=WORKER.Abandon(task_id=task_id))
        assert (await worker.hear("abandon_ack")).ok
        for dead in (False, True):
            await worker.ready()
            assert (await worker.hear("task")).task.id == task_id
            await worker.say(nack=WORKER.Nack(task_id=task_id, reason="out of ink"))
            ack = await worker.hear("nack_ack")
            assert (ack.ok, ack.dlq, ack.applied_delay_seconds) == (True, dead, 0)
        for refused in ("nack", "heartbeat", "abandon"):
            message = {"nack": WORKER.Nack, "heartbeat": WORKER.Heartbeat, "abandon": WORKER.Abandon}[refused]
            await worker.say(**{refused: message(task_id=task_id)})
            ack = await worker.hear(f"{refused}_ack")
            assert (ack.ok, ack.error_message.split(":")[0]) == (False, "not-in-progress")


@on_sqlite
async def test_a_ready_worker_waits_and_blocks_no_other_message(store_url: str) -> None:
    async with calling(store_url, ON) as shop, connected(shop) as channel:
        worker = await working(channel)
        await worker.ready("later")
        task = await shop.producer.create("now")
        await worker.ready("now")
        assert (await worker.hear("task")).task.id == task["id"]
        assert (await worker.finish(task["id"])).ok
        late = await shop.producer.create("later")
        assert (await worker.hear("task")).task.id == late["id"]


@on_sqlite
async def test_a_worker_that_hangs_up_waits_for_nothing_any_more(store_url: str) -> None:
    async with calling(store_url, ON) as shop, connected(shop) as channel:
        worker = await working(channel)
        await worker.ready("render")
        waiters = shop.server.engine.wakeups
        await until(lambda: waiters.waiting == 1)
        worker.call.cancel()
        await until(lambda: waiters.waiting == 0)
        task = await shop.producer.create()
        assert (await shop.worker_2.claim("render"))["id"] == task["id"]


@on_sqlite
async def test_a_client_that_half_closes_still_gets_its_answers(store_url: str) -> None:
    async with calling(store_url, ON) as shop, connected(shop) as channel:
        producer = await producing(channel)
        for seq in range(1, 21):
            await producer.say(create=PRODUCER.CreateTask(seq=seq, command="render", payload=b"1"))
        await producer.call.done_writing()
        assert {(await producer.hear("create_ack")).seq for _ in range(20)} == set(range(1, 21))
        assert await producer.ends() == (grpc.StatusCode.OK, "")
        worker = await working(channel)
        await worker.ready("nothing")
        await worker.call.done_writing()
        assert await worker.ends() == (grpc.StatusCode.OK, "")


@on_sqlite
async def test_a_server_that_stops_ends_the_streams_and_says_so(store_url: str) -> None:
    async with calling(store_url, ON) as shop, connected(shop) as channel:
        worker = await working(channel)
        await worker.ready("render")
        await until(lambda: shop.server.engine.wakeups.waiting == 1)
        closing = asyncio.create_task(shop.server.tasks.grpc.close(5))  # type: ignore[union-attr]
        status, text = await worker.ends()
        await closing
        assert (status, text) == (grpc.StatusCode.UNAVAILABLE, "the server stops; connect again")


# who may do what --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wire", "first", "status", "text"),
    [
        (WORKER, {"hello": WORKER.Hello(token="wrong")}, "UNAUTHENTICATED", "auth failed: invalid token"),
        (PRODUCER, {"hello": PRODUCER.Hello()}, "UNAUTHENTICATED", "auth failed: invalid token"),
        (WORKER, {"hello": WORKER.Hello(token="producer")}, "UNAUTHENTICATED", "missing scope"),
        (PRODUCER, {"hello": PRODUCER.Hello(token="worker")}, "UNAUTHENTICATED", "a worker's token"),
        (WORKER, {"hello": WORKER.Hello(token="worker", worker_id="a\nb")}, "UNAUTHENTICATED", "worker_id"),
        (WORKER, {"ready": WORKER.Ready()}, "FAILED_PRECONDITION", "first event must be Hello"),
    ],
)
@on_sqlite
async def test_a_stream_without_a_valid_hello_is_refused(
    store_url: str, wire: Wire, first: dict[str, Any], status: str, text: str
) -> None:
    async with calling(store_url, ON) as shop, connected(shop) as channel:
        stream = Stream(channel, wire)
        await stream.say(**first)
        ended, why = await stream.ends()
        assert ended.name == status
        assert text in why


@on_sqlite
async def test_a_second_hello_and_an_unknown_message_are_refused(store_url: str) -> None:
    async with calling(store_url, ON) as shop, connected(shop) as channel:
        worker = await working(channel)
        await worker.say(hello=WORKER.Hello(token="boss"))
        error = await worker.hear("error")
        assert (error.code, error.message) == ("FailedPrecondition", "already-authenticated")
        await worker.say()
        error = await worker.hear("error")
        assert (error.code, error.message) == ("InvalidArgument", "unknown-event")
        await worker.ready(" ")
        assert "commands" in (await worker.hear("error")).message


@on_sqlite
async def test_a_name_that_a_worker_gives_itself_takes_nobody_elses_tasks(store_url: str) -> None:
    async with calling(store_url, ON) as shop, connected(shop) as channel:
        held = (await shop.producer.create())["id"]
        await shop.worker.claim("render")
        thief = await working(channel, "worker-2", worker_id="worker")
        ack = await thief.finish(held)
        assert (ack.ok, ack.error_message.split(":")[0]) == (False, "not-owner")
        await shop.worker.complete({"id": held})


@on_sqlite
async def test_the_rates_of_a_door_hold_on_streams_too(store_url: str) -> None:
    rates = {"tasks.producer_per_minute": 1, "tasks.producer_burst": 1}
    async with calling(store_url, ON | rates) as shop, connected(shop) as channel:
        producer = await producing(channel)
        for ok in (True, False):
            await producer.say(create=PRODUCER.CreateTask(seq=1, command="render", payload=b"1"))
            ack = await producer.hear("create_ack")
            assert ack.ok is ok
        assert ack.error_message == "rate limit exceeded"


class Talk:
    """A conversation without a server, by a clock that the test moves."""

    def __init__(self, until: float = math.inf) -> None:
        self.now, self.checks, self.revoked = 1_000_000.0, 0, False
        self.wire, self.waits = PRODUCER, frozenset[str]()
        self._until = until
        self._asked: asyncio.Queue[Any] = asyncio.Queue()
        self.answers = Conversation(self, self._known, lambda: self.now).run(self._events(), self)

    async def say(self, **message: Any) -> Any:
        self._asked.put_nowait(PRODUCER.Asked(**message))
        async with asyncio.timeout(SOON):
            return await anext(self.answers)

    async def _events(self) -> AsyncIterator[Any]:
        while True:
            yield await self._asked.get()

    async def _known(self, token: str) -> Caller:
        self.checks += 1
        if self.revoked or self.now > self._until:
            raise Unauthenticated("the token is not valid any more")
        return Caller("robot", "acme", until=self._until)

    def greet(self, caller: Caller, hello: Any) -> Any:
        return PRODUCER.Answer(hello_ack=PRODUCER.HelloAck())

    async def handle(self, kind: str, message: Any) -> Answer:
        return Answer(PRODUCER.Answer(create_ack=PRODUCER.CreateAck(ok=True)))

    async def abort(self, status: grpc.StatusCode, text: str) -> None:
        raise PermissionError(f"{status.name}: {text}")


async def test_the_token_of_a_busy_stream_is_checked_again_every_quarter_of_an_hour() -> None:
    talk = Talk()
    await talk.say(hello=PRODUCER.Hello(token="jwt"))
    for _ in range(45):
        talk.now += 60
        await talk.say(create=PRODUCER.CreateTask())
    assert talk.checks == 1 + 3
    talk.revoked = True
    talk.now += 900
    with pytest.raises(PermissionError, match="UNAUTHENTICATED: auth failed: the token is not valid any more"):
        await talk.say(create=PRODUCER.CreateTask())


async def test_a_busy_stream_ends_with_its_token() -> None:
    talk = Talk(until=1_000_060)
    await talk.say(hello=PRODUCER.Hello(token="jwt"))
    talk.now += 59
    await talk.say(create=PRODUCER.CreateTask())
    talk.now += 3
    with pytest.raises(PermissionError, match="UNAUTHENTICATED"):
        await talk.say(create=PRODUCER.CreateTask())


# settings ---------------------------------------------------------------------------------------------------------------


def test_streams_that_other_machines_reach_need_tokens() -> None:
    config = load_config(environ={}, overrides={"tasks.grpc_listen": "0.0.0.0:9091"})
    with pytest.raises(ConfigError, match=r"tasks\.grpc_listen is 0\.0\.0\.0:9091"):
        require_safe(config)


def test_an_invalid_address_is_refused_with_what_is_allowed() -> None:
    with pytest.raises(ConfigError, match=r"tasks\.grpc_listen must be HOST:PORT"):
        load_config(environ={}, overrides={"tasks.grpc_listen": "9091"})


@on_sqlite
async def test_a_port_in_use_is_named(store_url: str, tmp_path: Path) -> None:
    async with calling(store_url, ON) as shop:
        taken = shop.server.tasks.grpc.address  # type: ignore[union-attr]
        with pytest.raises(ConfigError, match=f"{taken} cannot be listened on"):
            async with calling(f"sqlite:///{tmp_path}/other.db", {"tasks.grpc_listen": taken}):
                raise AssertionError("it started")


def test_without_streams_grpcio_is_not_imported(tmp_path: Path) -> None:
    program = f"""
import asyncio, sys
from tests.api.serving import serving

async def main():
    async with serving("sqlite:///{tmp_path}/chargehand.db"):
        return [name for name in sys.modules if name.partition(".")[0] == "grpc" or name.startswith("google.protobuf")]

print(asyncio.run(main()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@on_sqlite
async def test_a_missing_package_is_a_configuration_error(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("streams", "server", "conversation", "working", "producing"):
        monkeypatch.delitem(sys.modules, f"chargehand.doors.tasks.grpc.{module}", raising=False)
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(ConfigError, match=r"tasks\.grpc_listen needs packages .*pip install chargehand\[grpc\]"):
        async with calling(store_url, ON):
            raise AssertionError("it started")
    # The store was open before the doors were made.
    assert [each.cmdline() for each in psutil.Process().children() if store_url.split("///")[1] in each.cmdline()] == []


def test_our_messages_have_the_bytes_of_codeqs() -> None:
    """Written by hand from the wire format: a field's number and type, then its value."""
    event = PRODUCER.Asked(create=PRODUCER.CreateTask(seq=300, command="a", payload=b"{}", delay_seconds=1))
    assert event.SerializeToString() == bytes.fromhex("120c 08ac02 120161 1a027b7d 4801".replace(" ", ""))
    event = WORKER.Answer(error=WORKER.ServerError(message="m", code="c"))
    assert event.SerializeToString() == bytes.fromhex("3a06 0a016d 120163".replace(" ", ""))
