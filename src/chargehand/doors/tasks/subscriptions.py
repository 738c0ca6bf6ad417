"""Subscriptions of workers over HTTP: create, renew, list, read and end. Each belongs to the worker that created it.

They are records that expire, not a register of workers. What codeQ's documents say holds where its code falls short: the event
types must be among the token's, and a token's worker group is the only one its bearer can join.
"""

from typing import Annotated, cast

import msgspec

from chargehand.config import Config
from chargehand.doors.tasks import wire
from chargehand.doors.tasks.access import admin, check_event_types, worker
from chargehand.doors.tasks.errors import TaskRefused, invalid_body
from chargehand.doors.tasks.names import ANY, BASE, MAX_COMMAND, SUBSCRIBE
from chargehand.doors.tasks.notifier import Notifier
from chargehand.doors.tasks.subscription import SUBSCRIPTION, Mode, Subscription, SubscriptionTerms, subscription_from
from chargehand.engine.delivery import shown_url
from chargehand.engine.engine import Engine
from chargehand.engine.job import SECOND, rfc3339
from chargehand.engine.record import DropRecord, PutRecord
from chargehand.errors import ChargehandError, EgressRefused, InvalidField
from chargehand.http.auth import Caller
from chargehand.http.request import Request
from chargehand.http.response import Response
from chargehand.http.route import Route, read_body, reply
from chargehand.webhooks.egress import EgressPolicy

PATH = f"{BASE}/workers/subscriptions"
MAX_BODY_BYTES = 100_000
MAX_SECONDS = 86_400
MAX_EVENT_TYPES = 100
MAX_GROUP = 200
MAX_ACTIVE = 1000  # of a tenant
PAGE = 1000
MODES = ("fanout", "group", "hash")
TRIES = 5


class Subscribe(msgspec.Struct, rename="camel"):
    callback_url: Annotated[str | None, msgspec.Meta(description="Where notifications are posted")] = None
    event_types: (
        Annotated[list[str], msgspec.Meta(max_length=1000, description="Commands; those of the token, if left out")]
        | None
    ) = None
    ttl_seconds: Annotated[int | None, msgspec.Meta(description="Until it expires, unless renewed; a day at most")] = (
        None
    )
    delivery_mode: Annotated[str | None, msgspec.Meta(description="`fanout`, `group` or `hash`")] = None
    group_id: Annotated[str | None, msgspec.Meta(description="For `group`: one member of each group is notified")] = (
        None
    )
    min_interval_seconds: Annotated[
        int | None, msgspec.Meta(description="The least time between two notifications")
    ] = None


class Renew(msgspec.Struct, rename="camel"):
    ttl_seconds: int | None = None


class Subscribed(msgspec.Struct, rename="camel"):
    subscription_id: str
    expires_at: str


class SubscriptionView(msgspec.Struct, rename="camel"):
    subscription_id: str
    callback_url: Annotated[str, msgspec.Meta(description="Without its query, which may hold a secret")]
    event_types: list[str]
    delivery_mode: Mode
    group_id: str
    ttl_seconds: int
    min_interval_seconds: int
    owner: str
    created_at: str
    expires_at: str


class SubscriptionList(msgspec.Struct):
    subscriptions: list[SubscriptionView]


_subscribe = msgspec.json.Decoder(Subscribe)
_renew = msgspec.json.Decoder(Renew)


class Subscriptions:
    def __init__(self, engine: Engine, config: Config, policy: EgressPolicy, notifier: Notifier) -> None:
        self._engine = engine
        self._jobs = engine.jobs
        self._records = engine.records
        self._policy = policy
        self._notifier = notifier
        self._ttl_seconds = max(1, int(config.tasks.subscription_ttl_seconds))
        self._min_interval_seconds = max(1, int(config.tasks.subscription_min_interval_seconds))

    def routes(self) -> list[Route]:
        # fmt: off
        return [
            wire.route("POST", PATH, self.subscribe, "Subscribe to notifications of work",
                  "A notification is a hint: it assigns nothing, tasks are claimed as always. One is sent when an empty queue gets work, when a "
                  "delayed task becomes ready, and when a paused queue resumes.", request=Subscribe, reply=Subscribed, status=201),
            wire.route("GET", PATH, self.list_all, "List your subscriptions", "Admins see all of their tenant.", reply=SubscriptionList),
            wire.route("GET", f"{PATH}/{{subscription_id}}", self.get, "Read a subscription", reply=SubscriptionView),
            wire.route("DELETE", f"{PATH}/{{subscription_id}}", self.end, "End a subscription", status=204),
            wire.route("POST", f"{PATH}/{{subscription_id}}/heartbeat", self.renew, "Renew a subscription",
                  "For `ttlSeconds` from now, or for as long as it was made for.", request=Renew, reply=Subscribed),
        ]
        # fmt: on

    async def subscribe(self, req: Request, resp: Response) -> None:
        caller = worker(req.caller, SUBSCRIBE)
        asked = await wire.read(req, _subscribe, MAX_BODY_BYTES)
        terms = self._terms(caller, asked)
        now = await self._jobs.now()
        others = await self._active(caller.tenant, now)
        if len(others) >= MAX_ACTIVE:
            raise TaskRefused(
                429, "too many subscriptions", detail=f"a tenant has {MAX_ACTIVE} at most; end some, or let them expire"
            )
        await self._notifier.prepare(caller.tenant, terms, others)
        name = f"sub-{self._engine.new_id()}"
        body = msgspec.json.encode(terms)
        put = PutRecord(SUBSCRIPTION, caller.tenant, name, body, 0, now + terms.ttl_seconds * SECOND)
        record = await self._records.put(put)
        if record is None or (subscription := subscription_from(record)) is None:
            raise ChargehandError(f"the new id {name} is taken")
        self._notifier.book.learn(subscription)
        reply(resp, _subscribed(subscription), 201)

    async def renew(self, req: Request, resp: Response, subscription_id: str) -> None:
        caller = worker(req.caller, SUBSCRIBE)
        ttl = _seconds(wire.parse_or_ignore(_renew, await read_body(req, MAX_BODY_BYTES)).ttl_seconds)
        for _ in range(TRIES):
            found = await self._find(caller, subscription_id)
            if found.terms.owner != caller.subject:
                raise _not_found()
            terms = msgspec.structs.replace(found.terms, ttl_seconds=ttl or found.terms.ttl_seconds)
            due_at = await self._jobs.now() + terms.ttl_seconds * SECOND
            put = PutRecord(SUBSCRIPTION, caller.tenant, found.id, msgspec.json.encode(terms), found.version, due_at)
            record = await self._records.put(put)
            if record is not None and (renewed := subscription_from(record)) is not None:
                self._notifier.book.learn(renewed)
                reply(resp, _subscribed(renewed))
                return
        raise TaskRefused(409, "conflict", detail="another request renews it at the same moment; try again")

    async def list_all(self, req: Request, resp: Response) -> None:
        caller, sees_all = _reader(req)
        found = await self._active(caller.tenant, await self._jobs.now())
        views = [_view(each) for each in found if sees_all or each.terms.owner == caller.subject]
        reply(resp, SubscriptionList(views))

    async def get(self, req: Request, resp: Response, subscription_id: str) -> None:
        reply(resp, _view(await self._seen(req, subscription_id)))

    async def end(self, req: Request, resp: Response, subscription_id: str) -> None:
        found = await self._seen(req, subscription_id)
        await self._records.drop(DropRecord(SUBSCRIPTION, found.tenant, found.id))
        self._notifier.book.forget(found.tenant, found.id)
        resp.status = 204

    # what was asked for -------------------------------------------------------------------------------------------------

    def _terms(self, caller: Caller, asked: Subscribe) -> SubscriptionTerms:
        try:
            url = self._policy.check_url("callbackUrl", (asked.callback_url or "").strip())
        except EgressRefused as error:
            raise invalid_body(error, "invalid callback url") from None
        event_types = _event_types(caller, asked.event_types)
        mode, group = _mode(caller, (asked.delivery_mode or "").strip(), (asked.group_id or "").strip())
        return SubscriptionTerms(
            caller.subject,
            url,
            event_types,
            mode,
            group,
            _seconds(asked.ttl_seconds) or self._ttl_seconds,
            _seconds(asked.min_interval_seconds) or self._min_interval_seconds,
        )

    # finding ------------------------------------------------------------------------------------------------------------

    async def _active(self, tenant: str, now: int) -> list[Subscription]:
        found: list[Subscription] = []
        after = ""
        while True:
            records = await self._records.list(SUBSCRIPTION, tenant, after=after, limit=PAGE)
            found += [each for each in map(subscription_from, records) if each is not None and each.expires_at > now]
            if len(records) < PAGE:
                return found
            after = records[-1].name

    async def _find(self, caller: Caller, subscription_id: str) -> Subscription:
        record = await self._records.get(SUBSCRIPTION, caller.tenant, subscription_id)
        found = None if record is None else subscription_from(record)
        if found is None or found.expires_at <= await self._jobs.now():
            raise _not_found()
        return found

    async def _seen(self, req: Request, subscription_id: str) -> Subscription:
        caller, sees_all = _reader(req)
        found = await self._find(caller, subscription_id)
        if not sees_all and found.terms.owner != caller.subject:
            raise _not_found()
        return found


def _reader(req: Request) -> tuple[Caller, bool]:
    """Return the caller, and whether it may see the whole tenant."""
    try:
        return admin(req.caller), True
    except TaskRefused:
        return worker(req.caller, SUBSCRIBE), False


def _event_types(caller: Caller, asked: list[str] | None) -> tuple[str, ...]:
    if not asked:
        return (ANY,) if ANY in caller.event_types else tuple(sorted(caller.event_types))
    if len(asked) > MAX_EVENT_TYPES:
        raise invalid_body(InvalidField("eventTypes", f"has {len(asked)} entries; {MAX_EVENT_TYPES} are the most"))
    event_types = tuple(dict.fromkeys(each.strip() for each in asked))
    for each in event_types:
        if not 1 <= len(each) <= MAX_COMMAND or not each.isprintable():
            raise invalid_body(InvalidField("eventTypes", f"must have 1 to {MAX_COMMAND} printable characters each"))
    check_event_types(caller, event_types)
    return event_types


def _mode(caller: Caller, mode: str, group: str) -> tuple[Mode, str]:
    if caller.worker_group and group not in ("", caller.worker_group):
        raise TaskRefused(403, "groupId not allowed", detail=f"the token's workerGroup is {caller.worker_group!r}")
    if not mode:
        mode = "group" if caller.worker_group else "fanout"
    if mode not in MODES:
        raise TaskRefused(400, "invalid deliveryMode", detail=f"it is one of {', '.join(MODES)}", field="deliveryMode")
    group = group or caller.worker_group
    if mode != "group":
        return cast(Mode, mode), ""
    if not group:
        detail = "for deliveryMode group, unless the token has a workerGroup"
        raise TaskRefused(400, "groupId is required", detail=detail, field="groupId")
    if len(group) > MAX_GROUP or not group.isprintable():
        raise invalid_body(InvalidField("groupId", f"must have 1 to {MAX_GROUP} printable characters"))
    return "group", group


def _seconds(asked: int | None) -> int:
    """Return 0 for the default."""
    return min(asked, MAX_SECONDS) if asked and asked > 0 else 0


def _not_found() -> TaskRefused:
    return TaskRefused(404, "not-found", detail="there is no such subscription of yours, or it has expired")


def _subscribed(subscription: Subscription) -> Subscribed:
    return Subscribed(subscription.id, rfc3339(subscription.expires_at))


def _view(subscription: Subscription) -> SubscriptionView:
    terms = subscription.terms
    return SubscriptionView(
        subscription.id,
        shown_url(terms.url),
        list(terms.event_types),
        terms.mode,
        terms.group,
        terms.ttl_seconds,
        terms.min_interval_seconds,
        terms.owner,
        rfc3339(subscription.created_at),
        rfc3339(subscription.expires_at),
    )
