"""What workers say on a stream: that they are ready for tasks, what came of those, and that they are still at it.

A worker's token is its name here as over HTTP. A stream that gives a name of its own gets it behind the token's, so that nobody can
take another's name and with it another's tasks.
"""

import asyncio
from dataclasses import replace
from functools import partial

from chargehand.doors.tasks import access, wire
from chargehand.doors.tasks.errors import whole_text
from chargehand.doors.tasks.grpc.conversation import Answer, Message
from chargehand.doors.tasks.grpc.messages import Wire
from chargehand.doors.tasks.grpc.producing import json_of
from chargehand.doors.tasks.holding import TaskHolder, owner_of
from chargehand.doors.tasks.limits import Limits
from chargehand.doors.tasks.names import ABANDON, CLAIM, HEARTBEAT, NACK, RESULT
from chargehand.doors.tasks.results import NO_TASK, ResultsApi
from chargehand.doors.tasks.roll import Roll
from chargehand.doors.tasks.views import CLAIMED, task_view
from chargehand.doors.tasks.worker import WorkerApi, claim_queues
from chargehand.engine.engine import Engine
from chargehand.engine.guard import Guard
from chargehand.engine.job import SECOND, Job
from chargehand.errors import ChargehandError, Conflict, InvalidField, NotFound, StoreError
from chargehand.http.auth import Caller

MAX_COUNT = 100  # tasks for one Ready: all their payloads are in memory together
MAX_BATCH = 1000
MAX_NAME = 200
WAIT_SECONDS = 30.0
PAUSE_SECONDS = 1.0  # while the store is away


class Working:
    waits = frozenset({"ready"})

    def __init__(
        self, words: Wire, engine: Engine, worker: WorkerApi, results: ResultsApi, limits: Limits, roll: Roll
    ) -> None:
        self.wire = words
        self._engine = engine
        self._worker = worker
        self._results = results
        self._limits = limits
        self._roll = roll
        self._caller = Caller("", "")

    def greet(self, caller: Caller, hello: Message) -> Message:
        access.worker(caller, CLAIM)
        name = hello.worker_id.strip()
        if len(name) > MAX_NAME or not name.isprintable():
            raise InvalidField("worker_id", f"at most {MAX_NAME} printable characters")
        own = name and name != caller.subject
        self._caller = replace(caller, subject=f"{caller.subject}/{name}") if own else caller
        ack = self.wire.HelloAck(worker_id=name or caller.subject, tenant_id=caller.tenant)
        return self.wire.Answer(hello_ack=ack)

    async def handle(self, kind: str, message: Message) -> Answer | None:
        match kind:
            case "ready":
                return await self._ready(message)
            case "result":
                return Answer(self.wire.Answer(result_ack=await self._result(message)))
            case "result_batch":
                return Answer(self.wire.Answer(result_ack_batch=await self._results_of(message)))
            case "nack":
                return Answer(self.wire.Answer(nack_ack=await self._nack(message)))
            case "heartbeat":
                return Answer(self.wire.Answer(heartbeat_ack=await self._heartbeat(message)))
            case _:
                return Answer(self.wire.Answer(abandon_ack=await self._abandon(message)))

    # claiming ---------------------------------------------------------------------------------------------------------

    async def _ready(self, asked: Message) -> Answer | None:
        """Wait for tasks as long as the stream lives: whoever said that it is ready will not say it again."""
        self._limits.check("worker", "claim", access.worker(self._caller, CLAIM))
        queues = claim_queues(self._caller, wire.ClaimTask(tuple(asked.commands) or None))
        lease = self._worker.lease(asked.lease_seconds)
        limit = min(max(asked.count, 1), MAX_COUNT)
        claim = partial(
            self._engine.claim,
            queues,
            owner_of(self._caller),
            lease,
            limit=limit,
            stage=CLAIMED,
            wait_seconds=WAIT_SECONDS,
        )
        with self._roll.asking(self._caller, queues):
            while not self._engine.draining:
                try:
                    jobs = await claim()
                except StoreError:
                    await asyncio.sleep(PAUSE_SECONDS)
                    continue
                if jobs:
                    return self._assigned(jobs, many=asked.count > 1)
        return None

    def _assigned(self, jobs: tuple[Job, ...], *, many: bool) -> Answer:
        tasks = [self._task(job) for job in jobs]
        told = (
            {"task_batch": self.wire.TaskBatch(tasks=tasks)}
            if many
            else {"task": self.wire.TaskAssignment(task=tasks[0])}
        )
        return Answer(self.wire.Answer(**told), partial(self._take_back, jobs))

    async def _take_back(self, jobs: tuple[Job, ...]) -> None:
        for job in jobs:
            try:
                await self._engine.park(Guard.held(job), "", message="handed back: the stream's reader is gone")
            except (Conflict, NotFound, StoreError):
                continue  # it was cancelled meanwhile; or its lease lapses

    def _task(self, job: Job) -> Message:
        view = task_view(job, job.updated_at)
        task = self.wire.Task(
            id=view.id,
            command=view.command,
            payload=view.payload.encode(),
            priority=view.priority,
            webhook=view.webhook,
            max_attempts=view.max_attempts,
            status=view.status,
            worker_id=view.worker_id,
            lease_until=view.lease_until,
            attempts=view.attempts,
            tenant_id=view.tenant_id,
        )
        for field, at in ((task.created_at, job.created_at), (task.updated_at, job.updated_at)):
            field.seconds, micros = divmod(at, SECOND)
            field.nanos = micros * 1000
        return task

    # what came of them ------------------------------------------------------------------------------------------------

    async def _results_of(self, batch: Message) -> Message:
        if len(batch.results) > MAX_BATCH:
            text = f"at most {MAX_BATCH} results in a batch"
            acks = [self.wire.ResultAck(task_id=each.task_id, ok=False, error_message=text) for each in batch.results]
        else:
            acks = await asyncio.gather(*(self._result(each) for each in batch.results))
        return self.wire.ResultAckBatch(acks=acks)

    async def _result(self, said: Message) -> Message:
        try:
            holder = TaskHolder.of(self._caller, RESULT, said.task_id, NO_TASK)
            result = json_of("result_json", said.result_json)
            await self._results.submit(holder, wire.SubmitResult(said.status, result, said.error), base_url="")
        except ChargehandError as error:
            return self.wire.ResultAck(task_id=said.task_id, ok=False, error_message=whole_text(error))
        return self.wire.ResultAck(task_id=said.task_id, ok=True)

    async def _nack(self, said: Message) -> Message:
        try:
            holder = TaskHolder.of(self._caller, NACK, said.task_id)
            done = await self._worker.give_up(holder, wire.Nack(float(said.delay_seconds), said.reason))
        except ChargehandError as error:
            return self.wire.NackAck(task_id=said.task_id, ok=False, error_message=whole_text(error))
        return self.wire.NackAck(
            task_id=said.task_id, ok=True, applied_delay_seconds=done.delay_seconds, dlq=done.status == "dlq"
        )

    async def _heartbeat(self, said: Message) -> Message:
        try:
            holder = TaskHolder.of(self._caller, HEARTBEAT, said.task_id)
            await self._worker.beat(holder, wire.Heartbeat(float(said.extend_seconds)))
        except ChargehandError as error:
            return self.wire.HeartbeatAck(task_id=said.task_id, ok=False, error_message=whole_text(error))
        self._roll.beat(self._caller)
        return self.wire.HeartbeatAck(task_id=said.task_id, ok=True)

    async def _abandon(self, said: Message) -> Message:
        try:
            await self._worker.give_back(TaskHolder.of(self._caller, ABANDON, said.task_id), None)
        except ChargehandError as error:
            return self.wire.AbandonAck(task_id=said.task_id, ok=False, error_message=whole_text(error))
        return self.wire.AbandonAck(task_id=said.task_id, ok=True)
