"""Notifies subscribed workers of work: finds out when to check a queue, checks it, and sends the notifications.

Never in a producer's request. The node that stores the queue's bell (`bells`), guarded by its version, sends: a node that loses
the race checks again and finds nothing to do, so a group is notified once and not once by each node. Best effort: a notification
is tried once, and is lost if the process dies between storing the bell and sending.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from random import Random
from typing import Literal

import msgspec
from msgspec.structs import replace

from chargehand.config import Config
from chargehand.doors.tasks.bells import Bell, ring
from chargehand.doors.tasks.names import ANY, BASE, KIND, task_queue
from chargehand.doors.tasks.subscription import SUBSCRIPTION, Book, Subscription, SubscriptionTerms
from chargehand.engine.chores import Chore
from chargehand.engine.delivery import shown_url
from chargehand.engine.engine import Engine
from chargehand.engine.hint import Hint
from chargehand.engine.job import SECOND, State
from chargehand.engine.moves import Moved
from chargehand.engine.queue import Queue
from chargehand.engine.reads import Pulse, QueueHead
from chargehand.engine.record import DropRecord, PutRecord, Record
from chargehand.errors import StoreError
from chargehand.observability.logs import get_logger
from chargehand.observability.tracing import Tracing
from chargehand.webhooks.egress import EgressPolicy
from chargehand.webhooks.sending import WebhookSender

log = get_logger(__name__)
BELL = "bell"  # the kind of its record, one for each queue that has or had subscribers
BELL_SECONDS = 7 * 86_400  # after which a bell that did not change is removed
MAX_KNOWN = 10_000  # subscriptions of all tenants
MAX_DEPTH = 1_000_000
FIRST_BOUND = 1000  # most queues are shorter, so that one read suffices
AT_ONCE = 64
PER_HOST = 16  # so that one dead host does not use all slots
MAX_UNSENT = 10_000
CHECKS_AT_ONCE = 8
GATHER_SECONDS = 0.02  # between two checks of a queue: one check covers all that happened meanwhile
MAX_TIMER_SECONDS = 3600.0
TRIES = 5

Key = tuple[str, str]  # tenant and command, the latter in lower case
Count = Callable[[Literal["queue_ready"], Queue, Literal["success", "failure"]], None]
_decoder = msgspec.json.Decoder(Bell)


class Notification(msgspec.Struct, frozen=True, rename="camel"):
    event_type: str
    available: bool
    queue_depth: int
    claim_url: str
    sent_at: str
    notification_id: str


class Notifier:
    def __init__(
        self,
        engine: Engine,
        config: Config,
        policy: EgressPolicy,
        tracing: Tracing,
        count: Count,
        now: Callable[[], int] | None = None,
    ) -> None:
        self.book = Book()
        self._engine = engine
        self._jobs = engine.jobs
        self._records = engine.records
        self._count = count
        self._now = now or engine.now
        self._poll_seconds = config.engine.poll_seconds
        self._read_seconds = 0.0  # that the last reading of all subscriptions took
        self._sender = WebhookSender(config.webhooks, policy, {}, tracing, Random(), time.monotonic)  # noqa: S311 - not used here
        self._until: dict[Key, int] = {}  # may be newer than in the stored bell: `until` alone is not worth a write
        self._sent: dict[str, int] = {}  # subscription -> when it was notified last, of any queue
        self._wanted: dict[Key, None] = {}
        self._seen: dict[Queue, QueueHead] = {}  # queues as they were at the last check of all of them
        self._news = asyncio.Event()
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._hosts: dict[str, asyncio.Semaphore] = {}

    def active(self) -> dict[Key, int]:
        """Return the number of subscriptions by tenant and command (or `*`)."""
        return self.book.active(self._now())

    # when to check ------------------------------------------------------------------------------------------------------

    def on_move(self, moved: Moved) -> None:
        if moved.state is State.QUEUED:
            self._filled(moved.queue, moved.run_at)

    def on_hint(self, hint: Hint) -> None:
        for queue, run_at in hint.queues:
            if queue.kind == KIND:
                self._filled(queue, run_at)

    def _filled(self, queue: Queue, run_at: int) -> None:
        if self.book.wanted(queue.tenant, queue.name):
            self._check_in((queue.tenant, queue.name), (run_at - self._now()) / SECOND)

    def _check_in(self, key: Key, in_seconds: float) -> None:
        if in_seconds <= 0:
            self._due(key)
            return
        loop = asyncio.get_running_loop()
        timer = self._timers.get(key)
        at = loop.time() + min(in_seconds, MAX_TIMER_SECONDS)
        if timer is not None:
            if timer.when() <= at:
                return
            timer.cancel()
        self._timers[key] = loop.call_at(at, self._due, key)

    def _due(self, key: Key) -> None:
        if timer := self._timers.pop(key, None):
            timer.cancel()
        self._wanted[key] = None
        self._news.set()

    async def run(self) -> None:
        async with self._sender.session():
            try:
                await self._keep_checking()
            finally:
                for timer in self._timers.values():
                    timer.cancel()
                self._timers.clear()
                for task in self._sending:
                    task.cancel()
                await asyncio.gather(*self._sending, return_exceptions=True)

    def chores(self) -> list[Chore]:
        return [Chore("subscriptions", self._poll_seconds, self._read, self._rest)]

    async def _read(self) -> None:
        began = time.monotonic()
        await self._read_subscriptions()
        await self._check_everywhere()
        self._read_seconds = time.monotonic() - began

    async def _rest(self, seconds: float) -> None:
        """Longer where there are many subscriptions: at most a tenth of the time is spent on reading them."""
        await asyncio.sleep(max(seconds, 10 * self._read_seconds))

    async def _read_subscriptions(self) -> None:
        """Read the subscriptions of all nodes. Remove those that have expired, unless they are being renewed right now."""
        for kind in (SUBSCRIPTION, BELL):
            for record in await self._records.due(kind, 1000):
                drop = DropRecord(kind, record.tenant, record.name, record.version)
                if await self._records.drop(drop) and kind == SUBSCRIPTION:
                    self.book.forget(record.tenant, record.name)
        self.book.begin()
        records = await self._records.list(SUBSCRIPTION, limit=MAX_KNOWN)
        if len(records) == MAX_KNOWN:
            log.warning("too many subscriptions, some are not served", known=MAX_KNOWN)
        self.book.load(records)
        ids = self.book.ids
        self._sent = {each: when for each, when in self._sent.items() if each in ids}
        self._until = {key: until for key, until in self._until.items() if self.book.wanted(*key)}

    async def _check_everywhere(self) -> None:
        tenants = self.book.tenants
        if not tenants:
            return
        tenant = tenants[0] if len(tenants) == 1 else None
        seen, self._seen = self._seen, {}
        for head in await self._jobs.queue_heads(KIND, 1, tenant, wide=True):
            key = head.queue.tenant, head.queue.name
            if self.book.wanted(*key):
                self._seen[head.queue] = head
                # An unchanged queue needs no check: for a unit that is owed a notification there is a timer.
                if seen.get(head.queue) != head:
                    self._due(key)

    async def _keep_checking(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            wanted, self._wanted = list(self._wanted), {}
            await _some_at_once(self._check, wanted)
            await asyncio.sleep(GATHER_SECONDS)

    # checking -----------------------------------------------------------------------------------------------------------

    async def _check(self, key: Key) -> None:
        try:
            for _ in range(TRIES):
                if await self._try(key):
                    return
            self._check_in(key, self._poll_seconds)
        except StoreError as error:
            log.warning("cannot check a queue, will check it again", tenant=key[0], command=key[1], error=str(error))
            self._check_in(key, self._poll_seconds)

    async def _try(self, key: Key) -> bool:
        """Return False if another node stored the bell first."""
        bell, version = _bell(await self._records.get(BELL, *key))
        bell = replace(bell, until=max(bell.until, self._until.get(key, 0)))
        queue = task_queue(*key)
        pulse = await self._jobs.pulse(queue, bell.until, FIRST_BOUND)
        subscriptions = self.book.matching(*key, pulse.at)
        if not subscriptions:
            self._until.pop(key, None)
            return True
        self._note_sent(bell)
        rung = ring(bell, subscriptions, pulse, self._sent)
        if rung.changed:
            # Noted before the write: other queues are checked meanwhile, and the interval counts over all of them.
            before = {each.id: self._sent.get(each.id, 0) for each in rung.notified}
            self._note_sent(rung.bell)
            if not await self._put(key, rung.bell, version, pulse.at):
                self._sent |= before
                return False
        self._until[key] = rung.bell.until
        for at in (rung.again_at, pulse.next_at):
            if at is not None:
                self._check_in(key, max(0.001, (at - pulse.at) / SECOND))
        if rung.notified:
            await self._notify(key, rung.notified, queue, pulse)
        return True

    def _note_sent(self, bell: Bell) -> None:
        for each, when in bell.sent.items():
            if when > self._sent.get(each, 0):
                self._sent[each] = when

    async def _put(self, key: Key, bell: Bell, version: int, at: int) -> bool:
        put = PutRecord(BELL, *key, msgspec.json.encode(bell), version, at + BELL_SECONDS * SECOND)
        return await self._records.put(put) is not None

    async def prepare(self, tenant: str, terms: SubscriptionTerms, others: Sequence[Subscription]) -> None:
        """Before a subscription is stored, mark what its queues hold now as known, unless others are subscribed to them."""
        taken = {event_type.lower() for each in others for event_type in each.terms.event_types}
        if ANY in taken:
            return
        commands = {event_type.lower() for event_type in terms.event_types}
        if ANY in commands:
            commands |= {head.queue.name for head in await self._jobs.queue_heads(KIND, 1, tenant, wide=True)}
        await _some_at_once(self._begin, [(tenant, command) for command in commands - taken - {ANY}])

    async def _begin(self, key: Key) -> None:
        bell, version = _bell(await self._records.get(BELL, *key))
        pulse = await self._jobs.pulse(task_queue(*key), 0, 1)
        if pulse.ready:
            until = max(bell.until, pulse.newest_at or 0)
            # If this loses the race, another node has just brought the bell up to date.
            await self._put(key, replace(bell, until=until, owed=(), shut=pulse.paused), version, pulse.at)

    # sending ------------------------------------------------------------------------------------------------------------

    async def _notify(self, key: Key, subscriptions: Sequence[Subscription], queue: Queue, pulse: Pulse) -> None:
        depth = pulse.ready
        if depth == FIRST_BOUND:
            depth = max(depth, (await self._jobs.pulse(queue, pulse.at, MAX_DEPTH)).ready)
        for subscription in subscriptions:
            if len(self._sending) >= MAX_UNSENT:
                self._failed(key, subscription, "too many notifications wait to be sent")
                continue
            task = asyncio.get_running_loop().create_task(self._send(key, subscription, depth))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _send(self, key: Key, subscription: Subscription, depth: int) -> None:
        url = subscription.terms.url
        host = url.split("/", 3)[2]
        if len(self._hosts) > MAX_KNOWN:
            self._hosts.clear()
        async with self._hosts.setdefault(host, asyncio.Semaphore(PER_HOST)), self._slots:
            notification_id = f"ntf-{self._engine.new_id()}"
            sent_at = datetime.fromtimestamp(self._now() // SECOND, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            spelling = subscription.spelling(key[1])
            body = Notification(spelling, True, depth, f"{BASE}/tasks/claim", sent_at, notification_id)
            try:
                posted = await self._sender.notify(
                    subscription.tenant, url, "codeq", notification_id, msgspec.json.encode(body)
                )
            except Exception:
                log.exception("a notification could not be sent", subscription=subscription.id)
                self._count("queue_ready", task_queue(*key), "failure")
                return
        if posted.status is not None and 200 <= posted.status < 300:
            self._count("queue_ready", task_queue(*key), "success")
        else:
            self._failed(key, subscription, posted.error or f"answered {posted.status}")

    def _failed(self, key: Key, subscription: Subscription, reason: str) -> None:
        """Count a failed notification. It is not retried: the next edge, or the worker's own polling, makes up for it."""
        url = shown_url(subscription.terms.url)
        log.warning(
            "a worker could not be notified of work",
            subscription=subscription.id,
            command=key[1],
            url=url,
            reason=reason,
        )
        self._count("queue_ready", task_queue(*key), "failure")


async def _some_at_once(do: Callable[[Key], Awaitable[None]], keys: Sequence[Key]) -> None:
    for begin in range(0, len(keys), CHECKS_AT_ONCE):
        await asyncio.gather(*[do(key) for key in keys[begin : begin + CHECKS_AT_ONCE]])


def _bell(record: Record | None) -> tuple[Bell, int]:
    if record is None:
        return Bell(), 0
    try:
        return _decoder.decode(record.body), record.version
    except msgspec.DecodeError:
        return Bell(), record.version
