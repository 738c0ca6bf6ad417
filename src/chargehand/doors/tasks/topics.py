"""Topics: the policy that a tenant's administrator sets for all tasks of a command. Unlike codeQ's, it is applied.

A topic has the name of its command, in upper or lower case, as queues do. codeQ allows DNS labels; most commands
(`GENERATE_MASTER`) are none, so upper case, `_` and up to 200 characters are allowed here as well.

`maxConsumers`, `rate` and `perKey` become limits of the command's queue: when they are set, when they change, and when a server
starts. In between an operator may change the queue's limits. What a topic never said is not changed.
"""

import asyncio
import re
from collections.abc import Iterable
from typing import Annotated, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from chargehand.config import Config
from chargehand.doors.tasks import access
from chargehand.doors.tasks.errors import TaskRefused
from chargehand.doors.tasks.names import BASE, MAX_COMMAND, task_queue
from chargehand.doors.tasks.wire import route
from chargehand.engine.chores import Chore
from chargehand.engine.engine import Engine
from chargehand.engine.job import QueueLimits, QueueSettings, Rate, rfc3339
from chargehand.engine.queue import Queue
from chargehand.engine.record import DropRecord, PutRecord, Record
from chargehand.errors import BadRequest, TooLarge
from chargehand.http.request import Request
from chargehand.http.response import Response
from chargehand.http.route import Route, decode, read_body, reply
from chargehand.observability.logs import get_logger

log = get_logger(__name__)
RECORD = "topic"
MAX_BODY = 1_048_576
MAX_TOPICS = 1000  # of a tenant
MOST_KNOWN = 100_000  # of all tenants
MAX_RATE = 10_000  # starts that are remembered for as long as they count
MAX_RATE_SECONDS = 86_400
HIGHEST = 9  # codeQ's tiers go up to 10, its priorities do not
_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]*[A-Za-z0-9_])?")
_ALLOWED_NAME = f"must be 1 to {MAX_COMMAND} letters, digits, - or _, and neither begin nor end with -"
_RANGES = {"maxAttempts": (1, 100), "retentionSeconds": (0, 2_147_483_647), "maxConsumers": (0, 10_000)}


class RatePolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """At most so many starts in any stretch of time of this length."""

    count: Annotated[int, msgspec.Meta(ge=1, le=MAX_RATE)]
    seconds: Annotated[float, msgspec.Meta(ge=0.1, le=MAX_RATE_SECONDS)] = 1.0


class KeyPolicy(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """What holds for the tasks of each `limitKey` by itself."""

    max_consumers: Annotated[int, msgspec.Meta(ge=0, le=10_000, description="0: no limit")] = 0
    rate: RatePolicy | UnsetType = UNSET


class Policy(msgspec.Struct, frozen=True, rename="camel"):
    """What applies to all tasks of a command. Attempts and tiers are required."""

    priority_tiers: Annotated[tuple[int, ...], msgspec.Meta(max_length=100)] = ()
    max_attempts: int = 0
    dead_letter_topic_ref: str = ""
    retention_seconds: int = 0
    max_consumers: int = 0
    rate: RatePolicy | UnsetType = UNSET
    per_key: KeyPolicy | UnsetType = UNSET


class PutTopic(Policy, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A policy as callers send it."""


class StoredTopic(msgspec.Struct, frozen=True):
    """The body of the record, with the name as it was first spelt: the record's own name is in lower case."""

    name: str
    policy: Policy


class Topic(msgspec.Struct, rename="camel"):
    topic_id: str
    tenant_id: str
    topic_name: str
    policy: Policy
    version: int
    created_at: str
    updated_at: str


class TopicList(msgspec.Struct):
    topics: list[Topic]


class TopicLimits(NamedTuple):
    """The limits that a topic sets for its queue; 0 or empty: none."""

    max_running: int = 0
    limits: QueueLimits = QueueLimits()


NO_LIMITS = TopicLimits()
Known = dict[tuple[str, str], tuple[int, Policy]]  # (tenant, command in lower case) -> version, policy
_sent = msgspec.json.Decoder(PutTopic)
_bodies = msgspec.json.Decoder(StoredTopic)


def attempts(policy: Policy | None, default: int) -> int:
    return policy.max_attempts if policy is not None and policy.max_attempts else default


def keep_seconds(policy: Policy | None) -> float | None:
    """Return None for as long as the server keeps finished jobs."""
    return float(policy.retention_seconds) if policy is not None and policy.retention_seconds else None


def tier(policy: Policy | None, priority: int) -> int:
    """Return the highest tier that is not above the asked priority, else the lowest tier."""
    if policy is None or not policy.priority_tiers:
        return priority
    tiers = [min(each, HIGHEST) for each in policy.priority_tiers]
    return max((each for each in tiers if each <= priority), default=min(tiers))


class Topics:
    def __init__(self, engine: Engine, config: Config) -> None:
        self._engine = engine
        self._poll_seconds = config.engine.poll_seconds
        self._known: Known = {}
        self._changing = asyncio.Lock()  # a reload that began before a change must not undo it

    def routes(self) -> list[Route]:
        path = f"{BASE}/admin/topics"
        one = path + "/{topic_name}"
        # fmt: off
        return [
            route("GET", path, self.list_topics, "List the topics", "Ours, not codeQ's.", reply=TopicList),
            route("PUT", one, self.put_topic, "Make or change a topic",
                  "201 when it is made, else 200. What a command's topic says holds for tasks that are created from then on.", request=PutTopic, reply=Topic),
            route("GET", one, self.get_topic, "Show a topic", reply=Topic),
            route("DELETE", one, self.delete_topic, "Delete a topic",
                  "Needs `?deletionPolicy=Delete`. The tasks stay. 204 also when there is none.", status=204),
        ]
        # fmt: on

    def chores(self) -> list[Chore]:
        return [Chore("topics", self._poll_seconds, self.load)]

    # for the other parts ------------------------------------------------------------------------------------------------

    def policy(self, tenant: str, command: str) -> Policy | None:
        """Return the policy as this node knows it: its own changes at once, those of other nodes within engine.poll_seconds."""
        known = self._known.get((tenant, command.strip().lower()))
        return None if known is None else known[1]

    async def load(self) -> None:
        """Read all topics, and set the queue limits of those that changed since the last read.

        The node that changed a topic has set its limit already, unless it died before it could, or another node overwrote it
        with what it had read before the change: that node reads the topics again too.
        """
        async with self._changing:
            records = await self._engine.records.list(RECORD, limit=MOST_KNOWN)
            before, known = self._known, _known(records)
            changed = {
                topic: (_limits_of(before.get(topic)), _limits_of(known.get(topic)))
                for topic in before.keys() | known.keys()
                if before.get(topic) != known.get(topic)
            }
            if any(each != NO_LIMITS for pair in changed.values() for each in pair):
                settings = await self._settings()
                for (tenant, name), (had, wants) in changed.items():
                    await self._limit(
                        settings, tenant, name, _still(had, settings.get(task_queue(tenant, name))), wants
                    )
            self._known = known

    # the endpoints ------------------------------------------------------------------------------------------------------

    async def list_topics(self, req: Request, resp: Response) -> None:
        tenant = access.admin(req.caller).tenant
        records = await self._engine.records.list(RECORD, tenant, limit=MAX_TOPICS)
        reply(resp, TopicList([_view(record) for record in records]))

    async def get_topic(self, req: Request, resp: Response, topic_name: str) -> None:
        tenant = access.admin(req.caller).tenant
        record = await self._get(tenant, topic_name)
        if record is None:
            raise TaskRefused(404, "topic not found", detail=f"there is no topic {topic_name[:MAX_COMMAND]!r}")
        reply(resp, _view(record))

    async def put_topic(self, req: Request, resp: Response, topic_name: str) -> None:
        tenant = access.admin(req.caller).tenant
        _check_name("topicName", topic_name)
        policy = _checked(await _read(req), topic_name)
        async with self._changing:
            record, created = await self._put(tenant, topic_name, policy)
        reply(resp, _view(record), 201 if created else 200)

    async def delete_topic(self, req: Request, resp: Response, topic_name: str) -> None:
        tenant = access.admin(req.caller).tenant
        if req.get_param("deletionPolicy") != "Delete":
            raise TaskRefused(400, "deletionPolicy=Delete is required")
        name = topic_name.lower()
        async with self._changing:
            record = await self._get(tenant, name)
            if record is not None:
                # The limits are removed first: after a crash in between, the topic can still be deleted again.
                had = _limits(_bodies.decode(record.body).policy)
                await self._limit(await self._settings(), tenant, name, had, NO_LIMITS)
                await self._engine.records.drop(DropRecord(RECORD, tenant, name))
            self._known.pop((tenant, name), None)
        resp.status = 204

    # how they are kept --------------------------------------------------------------------------------------------------

    async def _get(self, tenant: str, topic_name: str) -> Record | None:
        if not _is_name(topic_name):
            return None
        return await self._engine.records.get(RECORD, tenant, topic_name.lower())

    async def _put(self, tenant: str, topic_name: str, policy: Policy) -> tuple[Record, bool]:
        records, name = self._engine.records, topic_name.lower()
        while True:
            found = await self._get(tenant, name)
            kept = None if found is None else _bodies.decode(found.body)
            if found is None and len(await records.list(RECORD, tenant, limit=MAX_TOPICS)) >= MAX_TOPICS:
                raise TaskRefused(409, "too many topics", detail=f"a tenant may have {MAX_TOPICS}; delete one first")
            if kept is not None and (gone := _gone(_limits(kept.policy), _limits(policy))) != NO_LIMITS:
                await self._limit(await self._settings(), tenant, name, gone, NO_LIMITS)
            record = found
            if kept is None or kept.policy != policy:
                body = msgspec.json.encode(StoredTopic(kept.name if kept else topic_name, policy))
                record = await records.put(
                    PutRecord(RECORD, tenant, name, body, expected=0 if found is None else found.version)
                )
            if record is None:
                continue  # another writer was first: read it again
            if (wants := _limits(policy)) != NO_LIMITS:
                await self._limit(await self._settings(), tenant, name, NO_LIMITS, wants)
            self._known[tenant, name] = (record.version, policy)
            return record, found is None

    async def _settings(self) -> dict[Queue, QueueSettings]:
        return {each.queue: each for each in await self._engine.jobs.list_queue_settings()}

    async def _limit(
        self, settings: dict[Queue, QueueSettings], tenant: str, name: str, had: TopicLimits, wants: TopicLimits
    ) -> None:
        """Set what the topic wants, and remove what it had and does not want any more. The rest is an operator's."""
        queue = task_queue(tenant, name)
        now = new = settings.get(queue, QueueSettings(queue))
        if had.max_running or wants.max_running:
            new = replace(new, max_running=wants.max_running or None)
        if (had.limits, wants.limits) != (QueueLimits(), QueueLimits()):
            new = replace(new, limits=wants.limits)
        if new != now:
            await self._engine.set_queue(new)


async def _read(req: Request) -> PutTopic:
    """Decode the policy. Stricter than the rest of this wire: unknown fields are refused."""
    try:
        return decode(_sent, await read_body(req, MAX_BODY))
    except (BadRequest, TooLarge) as error:
        raise TaskRefused(400, f"invalid request body: {error.message}") from None


def _checked(policy: PutTopic, topic_name: str) -> Policy:
    tiers = policy.priority_tiers
    if not 1 <= len(tiers) <= 10:
        raise _unprocessable("priorityTiers", f"must have 1 to 10 entries, not {len(tiers)}")
    if not all(0 <= each <= 10 for each in tiers):
        raise _unprocessable("priorityTiers", "every entry must be from 0 to 10")
    if len(set(tiers)) != len(tiers):
        raise _unprocessable("priorityTiers", "every entry may be there only once")
    values = msgspec.to_builtins(policy)
    for field, (least, most) in _RANGES.items():
        if not least <= values[field] <= most:
            raise _unprocessable(field, f"must be from {least} to {most}, not {str(values[field])[:30]}")
    if policy.dead_letter_topic_ref:
        _check_name("deadLetterTopicRef", policy.dead_letter_topic_ref)
        if policy.dead_letter_topic_ref.lower() == topic_name.lower():
            raise _unprocessable("deadLetterTopicRef", "must be another topic than this one")
    return Policy(**msgspec.structs.asdict(policy) | {"priority_tiers": tuple(sorted(tiers))})


def _is_name(name: str) -> bool:
    return len(name) <= MAX_COMMAND and _NAME.fullmatch(name) is not None


def _check_name(field: str, name: str) -> None:
    if not _is_name(name):
        raise _unprocessable(field, _ALLOWED_NAME)


def _unprocessable(field: str, text: str) -> TaskRefused:
    return TaskRefused(422, f"{field}: {text}", field=field)


def _known(records: Iterable[Record]) -> Known:
    known: Known = {}
    for record in records:
        try:
            known[record.tenant, record.name] = (record.version, _bodies.decode(record.body).policy)
        except msgspec.DecodeError as error:
            log.error("a topic cannot be read", tenant=record.tenant, topic=record.name, error=str(error))
    return known


def _limits_of(known: tuple[int, Policy] | None) -> TopicLimits:
    return NO_LIMITS if known is None else _limits(known[1])


def _limits(policy: Policy) -> TopicLimits:
    per_key = KeyPolicy() if policy.per_key is UNSET else policy.per_key
    limits = QueueLimits(_rate(policy.rate), per_key.max_consumers or None, _rate(per_key.rate))
    return TopicLimits(policy.max_consumers, limits)


def _rate(rate: RatePolicy | UnsetType) -> Rate | None:
    return None if rate is UNSET else Rate(rate.count, rate.seconds)


def _gone(had: TopicLimits, wants: TopicLimits) -> TopicLimits:
    return TopicLimits(
        0 if wants.max_running else had.max_running, QueueLimits() if wants.limits != QueueLimits() else had.limits
    )


def _still(had: TopicLimits, now: QueueSettings | None) -> TopicLimits:
    """Return what a topic had, as far as nobody has changed it since."""
    if now is None:
        return NO_LIMITS
    return TopicLimits(
        had.max_running if now.max_running == had.max_running else 0,
        had.limits if now.limits == had.limits else QueueLimits(),
    )


def _view(record: Record) -> Topic:
    kept = _bodies.decode(record.body)
    return Topic(
        f"{record.tenant}.{kept.name}", record.tenant, kept.name, kept.policy, record.version,
        rfc3339(record.created_at), rfc3339(record.updated_at),
    )  # fmt: skip
