"""A subscription: a worker asks to be notified of work for a while. And the book of subscriptions that this node knows."""

from collections.abc import Iterable
from typing import Literal

import msgspec

from chargehand.doors.tasks.names import ANY
from chargehand.engine.job import SECOND
from chargehand.engine.record import Record

SUBSCRIPTION = "subscription"  # the kind of its record; the record is due when the subscription expires
Mode = Literal["fanout", "group", "hash"]


class SubscriptionTerms(msgspec.Struct, frozen=True):
    """The body of the record."""

    owner: str
    url: str
    event_types: tuple[str, ...]  # as they were spelt
    mode: Mode
    group: str
    ttl_seconds: int
    min_interval_seconds: int


class Subscription(msgspec.Struct, frozen=True):
    id: str
    tenant: str
    terms: SubscriptionTerms
    created_at: int
    expires_at: int
    version: int

    @property
    def interval(self) -> int:
        return self.terms.min_interval_seconds * SECOND

    def spelling(self, command: str) -> str:
        """Return the command as this subscriber spelt it."""
        return next((each for each in self.terms.event_types if each.lower() == command), command)


_decoder = msgspec.json.Decoder(SubscriptionTerms)


def subscription_from(record: Record) -> Subscription | None:
    """Return None if another version wrote the record differently: the other subscriptions must still be served."""
    try:
        terms = _decoder.decode(record.body)
    except msgspec.DecodeError:
        return None
    return Subscription(record.name, record.tenant, terms, record.created_at, record.due_at or 0, record.version)


class Book:
    """Finds subscriptions by tenant and command; fast, since every submitted task asks."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Subscription] = {}
        self._found: dict[str, dict[str, dict[str, Subscription]]] = {}  # tenant -> command or * -> id
        self._touched: set[tuple[str, str]] = set()

    @property
    def tenants(self) -> list[str]:
        return list(self._found)

    @property
    def ids(self) -> set[str]:
        return {subscription_id for _, subscription_id in self._known}

    def wanted(self, tenant: str, command: str) -> bool:
        commands = self._found.get(tenant)
        return commands is not None and (command in commands or ANY in commands)

    def matching(self, tenant: str, command: str, at: int) -> list[Subscription]:
        """Return those that have not expired, sorted by id."""
        commands = self._found.get(tenant, {})
        found = {**commands.get(ANY, {}), **commands.get(command, {})}
        return [found[each] for each in sorted(found) if found[each].expires_at > at]

    def active(self, at: int) -> dict[tuple[str, str], int]:
        counts = {
            (tenant, command): sum(each.expires_at > at for each in found.values())
            for tenant, commands in self._found.items()
            for command, found in commands.items()
        }
        return {key: count for key, count in counts.items() if count}

    def learn(self, subscription: Subscription) -> None:
        self._touched.add((subscription.tenant, subscription.id))
        self._add(subscription)

    def forget(self, tenant: str, subscription_id: str) -> None:
        self._touched.add((tenant, subscription_id))
        self._remove((tenant, subscription_id))

    def begin(self) -> None:
        """A read of the records begins: what is learnt or forgotten from now on is newer than the records."""
        self._touched.clear()

    def load(self, records: Iterable[Record]) -> None:
        """Replace all by these records, but for what was learnt or forgotten here since `begin`."""
        gone = self._known.keys() - self._touched
        for record in records:
            key = (record.tenant, record.name)
            gone.discard(key)
            known = self._known.get(key)
            if key not in self._touched and (known is None or known.version != record.version):
                subscription = subscription_from(record)
                if subscription is not None:
                    self._add(subscription)
        for key in gone:
            self._remove(key)

    def _add(self, subscription: Subscription) -> None:
        self._known[subscription.tenant, subscription.id] = subscription
        commands = self._found.setdefault(subscription.tenant, {})
        for event_type in subscription.terms.event_types:
            commands.setdefault(event_type.lower(), {})[subscription.id] = subscription

    def _remove(self, key: tuple[str, str]) -> None:
        subscription = self._known.pop(key, None)
        if subscription is None:
            return
        commands = self._found[subscription.tenant]
        for command in {event_type.lower() for event_type in subscription.terms.event_types}:
            commands[command].pop(subscription.id)
            if not commands[command]:
                del commands[command]
        if not commands:
            del self._found[subscription.tenant]
