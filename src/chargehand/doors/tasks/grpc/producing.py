"""What producers say on a stream: create a task, or many. Each is acknowledged when it is durable."""

import asyncio

import msgspec

from chargehand.doors.tasks import access, wire
from chargehand.doors.tasks.errors import TaskRefused, whole_text
from chargehand.doors.tasks.grpc.conversation import Answer, Message
from chargehand.doors.tasks.grpc.messages import Wire
from chargehand.doors.tasks.producer import ProducerApi
from chargehand.errors import ChargehandError, InvalidField
from chargehand.http.auth import Caller
from chargehand.http.inputs import LAST_YEAR, TEN_YEARS

MAX_BATCH = 1000


class Producing:
    waits: frozenset[str] = frozenset()

    def __init__(self, words: Wire, producer: ProducerApi) -> None:
        self.wire = words
        self._producer = producer
        self._caller = Caller("", "")

    def greet(self, caller: Caller, hello: Message) -> Message:
        self._caller = access.producer(caller)
        return self.wire.Answer(hello_ack=self.wire.HelloAck(tenant_id=caller.tenant, subject=caller.subject))

    async def handle(self, kind: str, message: Message) -> Answer:
        if kind == "create":
            return Answer(self.wire.Answer(create_ack=await self._create(message)))
        if len(message.tasks) > MAX_BATCH:
            text = f"at most {MAX_BATCH} tasks in a batch"
            acks = [self.wire.CreateAck(seq=each.seq, ok=False, error_message=text) for each in message.tasks]
        else:
            acks = await asyncio.gather(*(self._create(each) for each in message.tasks))
        return Answer(self.wire.Answer(create_ack_batch=self.wire.CreateAckBatch(acks=acks)))

    async def _create(self, asked: Message) -> Message:
        try:
            task = await self._producer.create_streamed(
                self._caller, _asked(asked), asked.trace_parent, asked.trace_state
            )
        except ChargehandError as error:
            return self.wire.CreateAck(seq=asked.seq, ok=False, error_message=whole_text(error))
        return self.wire.CreateAck(seq=asked.seq, ok=True, task_id=task.id)


def _asked(asked: Message) -> wire.CreateTask:
    if not asked.command:
        raise TaskRefused(400, "command is required", field="command")
    if asked.delay_seconds < 0:
        raise TaskRefused(400, "delaySeconds must be >= 0", field="delaySeconds")
    if asked.delay_seconds > TEN_YEARS:
        raise InvalidField("delaySeconds", f"must be at most {TEN_YEARS}")
    return wire.CreateTask(
        command=asked.command,
        payload=json_of("payload", asked.payload),
        priority=asked.priority,
        webhook=asked.webhook,
        max_attempts=asked.max_attempts,
        idempotency_key=asked.idempotency_key,
        run_at=_instant(asked.run_at) if asked.HasField("run_at") else None,
        delay_seconds=asked.delay_seconds,
    )


def _instant(at: Message) -> str:
    try:
        return str(at.ToDatetime().isoformat(timespec="microseconds")) + "Z"
    except (ValueError, OverflowError):
        raise InvalidField("runAt", f"must be before the year {LAST_YEAR}") from None


def json_of(field: str, data: bytes) -> msgspec.Raw:
    """Check the grammar: over HTTP the decoder of the whole body does."""
    try:
        return msgspec.json.decode(data, type=msgspec.Raw) if data else msgspec.Raw(b"")
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidField(field, f"must be JSON: {error}") from None
